"""The clock of bounds: what it counts of time that passes, and of time in which the machine stood still."""

from __future__ import annotations

import time

import pytest

from fixtures import stopwatch
from fixtures.stopwatch import Stopwatch


def test_it_counts_what_passes() -> None:
    with Stopwatch() as watch:
        time.sleep(0.5)
    assert 0.4 < watch.seconds < 5


def test_of_a_standstill_it_counts_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    jumped = 0.0
    monkeypatch.setattr(stopwatch, "_now", lambda: time.monotonic() + jumped)
    with Stopwatch() as watch:
        time.sleep(0.1)
        jumped = 100.0
        time.sleep(0.1)
    assert 0.2 < watch.seconds < 5
