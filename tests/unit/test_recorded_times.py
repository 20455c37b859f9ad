"""How long replicas load and drain, as the decisions and the pods of a pool show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_decision
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ObjectKey
from tidegate.services.recorded_day import measure_drains, measure_loads

CTR, LOG = ObjectKey("ads", "ctr"), ObjectKey("ads", "log")
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


def decided(*moves: tuple[str, int, int], applied_s: float, reclaim_s: float | None) -> AllocationDecision:
    """A decision that was complete after so many seconds."""
    outcome: Mapping[str, Any] = {"appliedAt": format_timestamp(NOW + timedelta(seconds=applied_s))}
    reclaim = {} if reclaim_s is None else {"reclaimSeconds": reclaim_s}
    return a_decision(*moves, outcome={**outcome, **reclaim})


def test_load_time_is_that_of_the_decisions_and_not_of_pods_that_started_with_others() -> None:
    decisions = [decided(*RAISED, applied_s=total, reclaim_s=3.0) for total in (14, 15, 40)]
    assert measure_loads([a_pod("ctr", 60), a_pod("log", 5)], decisions) == {CTR: 12.0, LOG: 5.0}
    assert measure_loads([], [decided(("ctr", 1, 2), applied_s=9, reclaim_s=None)]) == {CTR: 9.0}


@pytest.mark.parametrize(
    "decision",
    [
        a_decision(*RAISED),
        a_decision(*RAISED, outcome={"error": "superseded by cpu-a-2 before it was complete"}),
        # It has one time for all that it raised.
        decided(*RAISED, ("feed", 1, 2), applied_s=30, reclaim_s=3.0),
        # When the slices were free is unknown.
        decided(*RAISED, applied_s=30, reclaim_s=None),
    ],
)
def test_other_decisions_say_nothing_about_load_times(decision: AllocationDecision) -> None:
    assert measure_loads([a_pod("ctr", 60)], [decision]) == {CTR: 60.0}


def test_drain_time_is_that_of_decisions_that_took_slices_from_one_inference() -> None:
    alone = [decided(*RAISED, applied_s=30, reclaim_s=seconds) for seconds in (3.0, 5.0)]
    both = decided(("log", 2, 1), ("feed", 2, 1), ("ctr", 1, 3), applied_s=90, reclaim_s=60.0)
    assert measure_drains([*alone, both]) == {LOG: 4.0}
