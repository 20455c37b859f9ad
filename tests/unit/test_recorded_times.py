"""How long replicas load and drain, as the decisions and the pods of a pool show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_decision
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
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
    """The times of the Inferences that are placed in the pool."""
    inferences = [an_inference(key.name, placement={"pool": "cpu-a"}) for key in (CTR, LOG, FEED)]
    return make_recorded_objects(a_compute_pool(), inferences, pods, decisions)


def test_load_time_is_that_of_decisions_that_only_started_replicas_and_not_of_a_pod_that_started_with_others() -> (
    None
):
    decisions = [decided(("ctr", 1, 2), applied_s=total, reclaim_s=None) for total in (11, 12, 40)]
    recorded = measured([a_pod("ctr", 16), a_pod("log", 5), a_pod("log", 7)], *decisions)
    assert recorded.times == {CTR: ReplicaTimes(12.0), LOG: ReplicaTimes(6.0), FEED: ReplicaTimes()}


def test_load_time_is_that_of_the_pods_where_a_decision_waited_for_something_else() -> None:
    slow = decided(("ctr", 1, 2), applied_s=400, reclaim_s=None)
    assert measured([a_pod("ctr", 60)], slow).get_times(CTR) == ReplicaTimes(60.0)
    assert measured([], slow).get_times(CTR) == ReplicaTimes(400.0)


def test_replicas_that_start_on_free_slices_while_others_drain_do_not_seem_to_load_in_no_time() -> None:
    """The new replica of ctr was ready after 60 s, and the one of log was gone after 120 s."""
    recorded = measured([a_pod("ctr", 60)], decided(*RAISED, applied_s=120, reclaim_s=120.0))
    assert recorded.get_times(CTR) == ReplicaTimes(60.0)
    assert recorded.get_times(LOG) == ReplicaTimes(drain_s=120.0)


@pytest.mark.parametrize(
    ("decision", "drain_s"),
    [
        (a_decision(("ctr", 1, 2)), None),
        (a_decision(("ctr", 1, 2), outcome={"error": "superseded by cpu-a-2 before it was complete"}), None),
        # It has one time for all that it raised.
        (decided(("ctr", 1, 2), ("feed", 1, 2), applied_s=30, reclaim_s=None), None),
        # Whether the replicas waited for the slices of the others is unknown.
        (decided(*RAISED, applied_s=30, reclaim_s=3.0), 3.0),
        (decided(*RAISED, applied_s=30, reclaim_s=None), None),
        # It is about another pool.
        (decided(("ctr", 1, 2), applied_s=30, reclaim_s=None, pool="cpu-b"), None),
    ],
)
def test_other_decisions_show_no_load_time(decision: AllocationDecision, drain_s: float | None) -> None:
    recorded = measured([a_pod("ctr", 60)], decision)
    assert recorded.get_times(CTR) == ReplicaTimes(60.0)
    assert recorded.get_times(FEED) == ReplicaTimes()
    assert recorded.get_times(LOG) == ReplicaTimes(drain_s=drain_s)


def test_drain_time_is_that_of_decisions_that_took_slices_from_one_inference() -> None:
    alone = [decided(*RAISED, applied_s=30, reclaim_s=seconds) for seconds in (3.0, 5.0)]
    both = decided(("log", 2, 1), ("feed", 2, 1), ("ctr", 1, 3), applied_s=90, reclaim_s=60.0)
    recorded = measured([], *alone, both)
    assert recorded.get_times(LOG) == ReplicaTimes(drain_s=4.0)
    assert recorded.get_times(FEED) == ReplicaTimes()


@pytest.mark.parametrize(
    ("applied_s", "reclaim_s", "load_s", "drain_s"),
    [(900, 900.0, 900.0, 900.0), (901, 901.0, None, None), (-1, 0.0, None, 0.0)],
)
def test_a_move_that_waited_long_for_a_leader_is_not_counted(
    applied_s: float, reclaim_s: float, load_s: float | None, drain_s: float | None
) -> None:
    started = decided(("ctr", 1, 2), applied_s=applied_s, reclaim_s=None)
    drained = decided(("log", 2, 1), applied_s=1000, reclaim_s=reclaim_s)
    recorded = measured([], started, drained)
    assert recorded.get_times(CTR) == ReplicaTimes(load_s=load_s)
    assert recorded.get_times(LOG) == ReplicaTimes(drain_s=drain_s)
