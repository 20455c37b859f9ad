"""What makes the allocator decide at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_member, observed
from builders.compute_override import a_compute_override
from tidegate.api.allocation_decision import Trigger
from tidegate.planning.allocation_view import AllocationObserved, Member
from tidegate.planning.triggers import Circumstances, trigger

CTR = a_member("ctr")
OVERRIDE = a_compute_override(
    metadata={"creationTimestamp": "2026-01-01T11:00:00Z", "uid": "u-1"},
    expiresAt="2026-01-01T18:00:00Z",
    floor={"replicas": 2},
)


def seen(*members: Member, slices: Sequence[int] = (8, 8), **more: Any) -> AllocationObserved:
    """A pool of two nodes that decides about ctr."""
    return observed(*(members or (CTR,)), slices=slices, **more)


@pytest.mark.parametrize(
    ("later", "wanted"),
    [
        (seen(), None),
        (seen(now=NOW + timedelta(minutes=5)), None),
        (seen(slices=(8, 8, 8)), None),
        (seen(slices=(8, 4)), None),
        (seen(slices=(8,)), Trigger.NODE_LOST),
        (seen(overrides=(OVERRIDE,)), Trigger.OVERRIDE_CHANGED),
        (seen(policy={"mode": "Hold"}), Trigger.POOL_CHANGED),
        (seen(CTR, a_member("cvr")), Trigger.INFERENCE_CHANGED),
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
def test_it_is_decided_at_once_for(later: AllocationObserved, wanted: Trigger | None) -> None:
    assert trigger(Circumstances.of(seen()), Circumstances.of(later)) is wanted
