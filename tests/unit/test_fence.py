"""The right to write ends by the monotonic clock alone."""

from __future__ import annotations

import pytest

from tidegate.errors import LeadershipLostError
from tidegate.kube.fence import Fence


def test_a_fence_ends_at_its_deadline() -> None:
    now = 0.0
    fence = Fence(7, deadline=lambda: 10.0, monotonic=lambda: now)
    assert fence.is_valid()
    assert fence.remaining_s() == 10
    now = 10.0
    assert not fence.is_valid()
    with pytest.raises(LeadershipLostError, match="epoch 7 has ended"):
        fence.check()


def test_a_renewal_moves_the_deadline() -> None:
    deadline = 1.0
    fence = Fence(7, deadline=lambda: deadline, monotonic=lambda: 5.0)
    assert not fence.is_valid()
    deadline = 9.0
    assert fence.is_valid()


def test_an_unlimited_fence_never_ends() -> None:
    fence = Fence.unlimited(3)
    fence.check()
    assert fence.epoch == 3
