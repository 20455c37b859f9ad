"""How a release ends and what it costs: a good model, one of which 2 in 100 requests fail, and one that is a fifth slower.

    python bench/release.py [--clients 8] [--limit-s 240]

A real Envoy, our xDS server, our planner, which judges what the gateway counted, and two upstreams on one machine.
Steps 1, 5, 25, 50, 100 with 2 s each at least; ErrorRate 0.001 and LatencyP99 1.10, their other settings as by default.
Prints one JSON document; exits 1 when a release ends otherwise than it should, or when 0.1 % of all requests failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.release import ERRORS, LATENCY, a_release
from fixtures.envoy import Gateway, Load, backend_of
from fixtures.release import ReleaseRun

LIMIT = 0.001
_ACCESS = (("x-tidegate-access", "ads/ctr"),)
_ROUTE = {"timeout": "30s"}


@dataclass(frozen=True)
class ReleaseCase:
    """A model to release, its checks, and the expected end."""

    name: str
    ends: str
    checks: tuple[dict[str, Any], ...]
    fail_every: int = 0
    stable_s: float = 0.0
    target_s: float = 0.0
    steps: tuple[int, ...] = (1, 5, 25, 50, 100)
    clients: int = 1
    """Multiple of the option --clients; clients that wait cost no CPU."""


CASES = (
    ReleaseCase("2 in 100 fail", "RolledBack", (ERRORS,), fail_every=50),
    ReleaseCase(
        "a fifth slower",
        "RolledBack",
        (LATENCY,),
        stable_s=0.050,
        target_s=0.060,
        steps=(20, 50, 100),
        clients=2,
    ),
    ReleaseCase("good", "Promoted", (ERRORS, LATENCY | {"maxRatioToStable": "1.50"}), steps=(25, 50, 100)),
)


async def run_release(folder: Path, case: ReleaseCase, options: argparse.Namespace) -> dict[str, Any]:
    """Run one release from its beginning to its end, under load."""
    async with Gateway(folder) as gateway:
        stable, target = await gateway.upstream("v3"), await gateway.upstream("v4")
        stable.delay_s, target.delay_s = case.stable_s, case.target_s
        if case.fail_every:
            target.fail_with, target.fail_every = grpc.StatusCode.INTERNAL, case.fail_every
        access = a_release(checks=list(case.checks), steps=list(case.steps), interval="2s", route=_ROUTE)
        backends = backend_of("v3", stable), backend_of("v4", target)
        client = await gateway.start(access, *backends)
        load, release = Load(client, _ACCESS), ReleaseRun(gateway, access, backends)
        started = time.perf_counter()
        async with load.running(options.clients * case.clients), release.running():
            async with asyncio.timeout(options.limit_s):
                await release.ended.wait()
            seconds = time.perf_counter() - started
            # Requests in flight at the end belong to the release.
            await load.answered(2 * options.clients * case.clients)
        return {
            "case": case.name,
            "ended": release.status.phase,
            "should_end": case.ends,
            "step": release.status.step,
            "why": release.status.message,
            "seconds": round(seconds, 1),
            "requests": load.total,
            "of_the_target": target.inferences,
            "failed": len(load.errors),
            "share_failed": round(len(load.errors) / load.total, 6),
            "looks": release.passes,
        }


async def main(options: argparse.Namespace) -> int:
    """Run all cases, one after the other."""
    results = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            results.append(await run_release(Path(folder), case, options))
    met = all(
        result["ended"] == result["should_end"] and result["share_failed"] < LIMIT for result in results
    )
    print(json.dumps({"met": met, "limit_share_failed": LIMIT, "cases": results}, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--limit-s", type=float, default=240, help="for each release")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(asyncio.run(main(parser.parse_args())))
