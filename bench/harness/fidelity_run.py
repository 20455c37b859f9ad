"""What a cluster did with the trace of simulator_fidelity, and the file that keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from harness.cluster_recorder import ClusterTick
from harness.fidelity import RequestCounts
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.trace import DemandTrace


@dataclass(frozen=True, slots=True)
class RunDecision:
    """A decision of the allocator, `at_s` seconds after the begin of the trace; `moves` has replicas before and after."""

    at_s: float
    trigger: str
    moves: Mapping[str, Sequence[int]]
    moved_slices: int
    reclaim_s: float | None
    """The time until the slices that it took were free; None if it took none."""

    @classmethod
    def parse(cls, body: Mapping[str, Any], begin: datetime) -> RunDecision:
        """Read an AllocationDecision."""
        spec, outcome = body["spec"], body.get("status", {}).get("outcome", {})
        return cls(
            round((datetime.fromisoformat(spec["at"]) - begin) / timedelta(seconds=1), 1),
            spec.get("trigger", ""),
            list_moves(spec),
            outcome.get("movedSlices", 0),
            outcome.get("reclaimSeconds"),
        )


def list_moves(decision: Mapping[str, Any]) -> Mapping[str, list[int]]:
    """Return the replicas before and after of each Inference that a decision moves."""
    return {
        move["inference"].partition("/")[2]: [move["from"], move["to"]] for move in decision.get("moves", ())
    }


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """What the cluster did in the time of the trace, and what the product recorded of it."""

    ticks: Sequence[ClusterTick]
    missed: Mapping[str, Sequence[int]]
    """By real-time Inference, the seconds after the begin in which it missed its SLO."""
    decisions: Sequence[RunDecision]
    """Those made in the time of the trace, oldest first."""
    day: SimulatedDay
    what_if: Mapping[str, Any]
    played: Mapping[str, Any]
    problems: Mapping[str, int]


def save_run(run: ClusterRun, path: Path) -> None:
    """Write a run as JSON."""
    manifests = [item.dump() for item in (run.day.pool, *run.day.inferences)]
    day = {"manifests": manifests, "times": run.day.trace.times, "rates": run.day.trace.rates}
    values = {item.name: getattr(run, item.name) for item in fields(run)}
    ticks, decisions = [asdict(tick) for tick in run.ticks], [asdict(item) for item in run.decisions]
    path.write_text(json.dumps({**values, "ticks": ticks, "decisions": decisions, "day": day}, indent=1))


def load_run(path: Path) -> ClusterRun:
    """Read a run that save_run wrote."""
    body = json.loads(path.read_text())
    pool, *inferences = body["day"]["manifests"]
    trace = DemandTrace(
        tuple(body["day"]["times"]), {name: tuple(rates) for name, rates in body["day"]["rates"].items()}
    )
    day = SimulatedDay(ComputePool.parse(pool), [Inference.parse(item) for item in inferences], trace)
    ticks = [
        ClusterTick(
            **{
                **tick,
                "requests": {name: RequestCounts(**counts) for name, counts in tick["requests"].items()},
            }
        )
        for tick in body["ticks"]
    ]
    decisions = [RunDecision(**item) for item in body["decisions"]]
    return ClusterRun(**{**body, "ticks": ticks, "decisions": decisions, "day": day})
