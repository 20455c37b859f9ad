"""What makes the allocator decide at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_member, observed
from builders.compute_override import a_compute_override
from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.triggers import DecisionInputs, find_trigger, resolve_trigger

CTR = a_member("ctr")
OVERRIDE = a_compute_override(
    metadata={"creationTimestamp": "2026-01-01T11:00:00Z", "uid": "u-1"},
    expiresAt="2026-01-01T18:00:00Z",
    floor={"replicas": 2},
)


def seen(*members: PoolMember, slices: Sequence[int] = (8, 8), **more: Any) -> AllocationObserved:
    """A pool of two nodes that decides about ctr."""
    return observed(*(members or (CTR,)), slices=slices, **more)


@pytest.mark.parametrize(
    ("later", "wanted"),
    [
        (seen(), None),
        (seen(now=NOW + timedelta(minutes=5)), None),
        (seen(slices=(8, 8, 8)), None),
        (seen(slices=(8, 4)), None),
        (seen(slices=(8,)), DecisionTrigger.NODE_LOST),
        (seen(overrides=(OVERRIDE,)), DecisionTrigger.OVERRIDE_CHANGED),
        (seen(policy={"mode": "Hold"}), DecisionTrigger.POOL_CHANGED),
        (seen(CTR, a_member("cvr")), DecisionTrigger.INFERENCE_CHANGED),
        (seen(CTR, a_member("fixed", most=None)), None),
    ],
    ids=[
        "same",
        "later",
        "node came",
        "slices",
        "node lost",
        "override",
        "pool",
        "came",
        "not decided about",
    ],
)
def test_it_is_decided_at_once_for(later: AllocationObserved, wanted: DecisionTrigger | None) -> None:
    assert find_trigger(DecisionInputs.from_observed(seen()), DecisionInputs.from_observed(later)) is wanted


@pytest.mark.parametrize(
    ("due", "first", "wanted"),
    [
        (DecisionTrigger.INTERVAL, False, DecisionTrigger.OVERRIDE_CHANGED),
        (DecisionTrigger.INFERENCE_CHANGED, False, DecisionTrigger.OVERRIDE_CHANGED),
        (DecisionTrigger.STARTED, True, DecisionTrigger.STARTED),
    ],
)
def test_a_decision_is_called_by_what_changed_while_demand_was_read(
    due: DecisionTrigger, first: bool, wanted: DecisionTrigger
) -> None:
    """But a process that knows nothing of demand yet is not to look like one that does."""
    now = DecisionInputs.from_observed(seen(overrides=(OVERRIDE,)))
    assert resolve_trigger(due, None if first else DecisionInputs.from_observed(seen()), now) is wanted


def test_a_decision_that_nothing_led_to_is_called_by_why_it_was_due() -> None:
    same = DecisionInputs.from_observed(seen())
    assert resolve_trigger(DecisionTrigger.INTERVAL, same, same) is DecisionTrigger.INTERVAL
