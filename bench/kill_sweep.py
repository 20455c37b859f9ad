"""Kills the operator before and after every write of every scenario, bends its watches, serves it the past.

    python bench/kill_sweep.py [--scenario NAME …] [--faults kill break refuse watch stale] [--minutes 40]

Starts a control plane of its own (no root). Real: API server, controller manager, scheduler, the operator process,
the agents' code and their mutual TLS. Pretended: the containers, and the model server beside each agent.
Prints one JSON document; exits 1 when a run ended otherwise than one without a fault, or broke an invariant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from faults import scenarios
from faults.injections import NoFault, WatchDeed, WatchFault, When, WriteDeed, WriteFault
from faults.installation import a_site, a_sweep
from faults.scenarios import Scenario
from faults.sweep import Outcome, Sweep
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.programs import CONTROL_PLANE

KINDS = ("kill", "break", "refuse", "watch", "stale")
WATCH_FAULTS = (
    *(WatchFault(deed, "inferences") for deed in WatchDeed),
    *(WatchFault(deed, "pods") for deed in WatchDeed),
    WatchFault(WatchDeed.GONE, "deployments"),
    WatchFault(WatchDeed.BLIND, "configmaps"),
)
STALE_S = 1.5


async def iter_runs(
    sweep: Sweep, scenario: Scenario, reference: Outcome, kind: str
) -> AsyncIterator[Outcome]:
    """Yield all runs of one kind of fault."""
    if kind == "watch":
        for fault in WATCH_FAULTS:
            yield await sweep.run(scenario, fault, reference.world)
    elif kind == "stale":
        for number in range(1, len(reference.steps) + 1):
            yield await sweep.run(scenario, WriteFault(number, When.AFTER, stale_s=STALE_S), reference.world)
    else:
        async for outcome in sweep.every_write(scenario, reference, WriteDeed(kind)):
            yield outcome


async def run_sweeps(
    sweep: Sweep, chosen: Sequence[Scenario], kinds: Sequence[str], until: float
) -> list[dict[str, object]]:
    """Return one summary for each scenario and kind of fault, also of those that ran out of time."""
    summaries: list[dict[str, object]] = []
    for scenario in chosen:
        reference = await sweep.run(scenario, NoFault())
        for kind in kinds:
            started_at, outcomes, cut_short = time.monotonic(), [], False
            async for outcome in iter_runs(sweep, scenario, reference, kind):
                outcomes.append(outcome)
                message = "; ".join(outcome.problems) or ("ok" if outcome.struck else "not reached")
                print(f"{scenario.name}: {outcome.fault}: {message}", file=sys.stderr, flush=True)
                if time.monotonic() > until:
                    cut_short = True
                    break
            summaries.append(
                _summarise_runs(scenario, kind, reference, outcomes, time.monotonic() - started_at)
                | {"cut_short": cut_short}
            )
    return summaries


def _summarise_runs(
    scenario: Scenario, kind: str, reference: Outcome, outcomes: Sequence[Outcome], seconds: float
) -> dict[str, object]:
    struck = [outcome for outcome in outcomes if outcome.struck]
    settled = [outcome.seconds for outcome in struck]
    return {
        "scenario": scenario.name,
        "fault": kind,
        "writes_without_fault": list(reference.steps),
        "seconds_without_fault": reference.seconds,
        "problems_without_fault": list(reference.problems),
        "runs": len(outcomes),
        "struck": len(struck),
        "settled_seconds": {"median": statistics.median(settled), "most": max(settled)} if settled else None,
        "wrong": [
            {"fault": outcome.fault, "steps": list(outcome.steps), "problems": list(outcome.problems)}
            for outcome in outcomes
            if outcome.problems
        ],
        "wall_seconds": round(seconds, 1),
    }


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [scenario.name for scenario in scenarios.ALL]
    parser.add_argument("--scenario", nargs="+", choices=names, default=names)
    parser.add_argument("--faults", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--minutes", type=float, default=40.0, help="stop after this long, and say so")
    options = parser.parse_args()
    # The agents run in this process; their logs are not needed here.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    binaries = Binaries().ensure(CONTROL_PLANE, lambda line: print(line, file=sys.stderr))
    chosen = [scenario for scenario in scenarios.ALL if scenario.name in options.scenario]

    async def work() -> list[dict[str, object]]:
        async with a_sweep(site) as sweep:
            return await run_sweeps(sweep, chosen, options.faults, time.monotonic() + 60 * options.minutes)

    with (
        tempfile.TemporaryDirectory(prefix="tidegate-sweep-") as folder,
        a_site(binaries, Path(folder)) as site,
    ):
        summaries = asyncio.run(work())
    wrong = sum(len(summary["wrong"]) for summary in summaries if isinstance(summary["wrong"], list))
    total = {"runs": sum(int(str(summary["runs"])) for summary in summaries), "wrong": wrong}
    print(json.dumps({**total, "sweeps": summaries}, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
