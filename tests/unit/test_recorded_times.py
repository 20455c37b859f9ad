"""How long replicas load and drain, as the decisions and the pods of a pool show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_decision
from builders.compute_pool import a_compute_pool
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.replica_times import ReplicaTimes
from tidegate.services.recorded_day import RecordedObjects, make_recorded_objects

CTR, LOG, FEED = (ObjectKey("ads", name) for name in ("ctr", "log", "feed"))
RAISED = (("log", 2, 1), ("ctr", 1, 2))


def a_pod(name: str, load_s: int) -> dict[str, Any]:
    """A ready pod of the pool."""
    ready = format_timestamp(NOW + timedelta(seconds=load_s))
    return {
        "metadata": {
            "name": f"{name}-{load_s}",
            "namespace": "ads",
            "uid": f"uid-{name}-{load_s}",
            "creationTimestamp": format_timestamp(NOW),
            "labels": {
                "tidegate.io/inference": name,
                "tidegate.io/pool": "cpu-a",
                "tidegate.io/slices": "1",
            },
        },
        "spec": {"nodeName": "node-0"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": ready}],
        },
    }


def decided(
    *moves: tuple[str, int, int], applied_s: float, reclaim_s: float | None, **spec: Any
) -> AllocationDecision:
    """A decision that was complete after so many seconds."""
    outcome: Mapping[str, Any] = {"appliedAt": format_timestamp(NOW + timedelta(seconds=applied_s))}
    reclaim = {} if reclaim_s is None else {"reclaimSeconds": reclaim_s}
    return a_decision(*moves, outcome={**outcome, **reclaim}, **spec)


def measured(pods: Sequence[Mapping[str, Any]], *decisions: AllocationDecision) -> RecordedObjects:
    return make_recorded_objects(a_compute_pool(), (), pods, decisions)


def test_load_time_is_that_of_the_decisions_and_not_of_pods_that_started_with_others() -> None:
    decisions = [decided(*RAISED, applied_s=total, reclaim_s=3.0) for total in (14, 15, 40)]
    times = measured([a_pod("ctr", 60), a_pod("log", 5), a_pod("log", 7)], *decisions).times
    assert times == {CTR: ReplicaTimes(12.0), LOG: ReplicaTimes(6.0, 3.0)}
    alone = measured([], decided(("ctr", 1, 2), applied_s=9, reclaim_s=None))
    assert alone.times == {CTR: ReplicaTimes(9.0)}


@pytest.mark.parametrize(
    ("decision", "drains"),
    [
        (a_decision(*RAISED), {}),
        (a_decision(*RAISED, outcome={"error": "superseded by cpu-a-2 before it was complete"}), {}),
        # It has one time for all that it raised.
        (decided(*RAISED, ("feed", 1, 2), applied_s=30, reclaim_s=3.0), {LOG: ReplicaTimes(drain_s=3.0)}),
        # When the slices were free is unknown.
        (decided(*RAISED, applied_s=30, reclaim_s=None), {}),
        # It is about another pool.
        (decided(*RAISED, applied_s=30, reclaim_s=3.0, pool="cpu-b"), {}),
    ],
)
def test_other_decisions_say_nothing_about_load_times(
    decision: AllocationDecision, drains: Mapping[ObjectKey, ReplicaTimes]
) -> None:
    assert measured([a_pod("ctr", 60)], decision).times == {CTR: ReplicaTimes(60.0), **drains}


def test_drain_time_is_that_of_decisions_that_took_slices_from_one_inference() -> None:
    alone = [decided(*RAISED, applied_s=30, reclaim_s=seconds) for seconds in (3.0, 5.0)]
    both = decided(("log", 2, 1), ("feed", 2, 1), ("ctr", 1, 3), applied_s=90, reclaim_s=60.0)
    recorded = measured([], *alone, both)
    assert recorded.get_times(LOG) == ReplicaTimes(drain_s=4.0)
    assert recorded.get_times(FEED) == ReplicaTimes()
