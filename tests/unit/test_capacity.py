"""What production says of a measured capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.allocation.curves import MAX_FACTOR, MIN_FACTOR, CapacityCorrection, linear_curve
from tidegate.planning.allocator.corrections import update_correction
from tidegate.planning.allocator.signals import Signal

CURVE = linear_curve(100.0)
SLO_S = 0.030
AT = datetime(2026, 11, 1, tzinfo=UTC)
FAST, SLOW = 0.010, 0.090


def a_signal(offered: float, p99_s: float | None, served: float | None = None) -> Signal:
    return Signal(offered, AT, served_per_s=offered if served is None else served, latency_p99_s=p99_s)


def after(
    signal: Signal | None, before: float = 1.0, *, slo_s: float | None = SLO_S, elapsed_s: float = 30.0
) -> float:
    """The factor after one look at two ready replicas, which promise 200/s."""
    return update_correction(CapacityCorrection(before), CURVE, signal, 2, slo_s, elapsed_s).factor


def test_more_served_within_the_slo_raises_it_by_a_step() -> None:
    assert after(a_signal(240.0, FAST)) == pytest.approx(1.04)


def test_the_slo_missed_below_what_is_promised_lowers_it_by_a_step() -> None:
    assert after(a_signal(150.0, SLOW)) == pytest.approx(0.95)
    assert after(a_signal(150.0, inf, served=80.0)) < after(a_signal(150.0, SLOW))


@pytest.mark.parametrize(
    "signal",
    [
        a_signal(20.0, FAST),
        a_signal(500.0, SLOW, served=200.0),
        a_signal(150.0, None),
        a_signal(0.0, SLOW),
        replace(a_signal(150.0, SLOW), fresh=False),
        replace(a_signal(150.0, SLOW), held_reason="rose at once"),
        None,
    ],
    ids=["low load", "more load than promised", "no latency", "no load", "stale", "held", "no signal"],
)
def test_what_says_nothing_only_lets_it_fade(signal: Signal | None) -> None:
    assert after(signal) == 1.0
    assert after(signal, before=0.8, elapsed_s=3_600.0) == pytest.approx(0.9)
    assert after(signal, before=1.2, elapsed_s=3_600.0) == pytest.approx(1.1)


def test_without_an_slo_nothing_is_learned() -> None:
    assert after(a_signal(400.0, FAST), slo_s=None) == 1.0


SIGNALS = st.builds(
    a_signal,
    st.floats(0, 1e4),
    st.sampled_from([FAST, SLOW, inf, None]),
    st.one_of(st.none(), st.floats(0, 1e4)),
)


@given(st.lists(SIGNALS, max_size=30))
def test_it_stays_within_its_bounds_and_moves_by_bounded_steps(signals: list[Signal]) -> None:
    correction = CapacityCorrection()
    for signal in signals:
        before = correction.factor
        correction = update_correction(correction, CURVE, signal, 2, SLO_S, 30.0)
        assert MIN_FACTOR <= correction.factor <= MAX_FACTOR
        assert abs(correction.factor - before) <= 0.2 * (MAX_FACTOR - MIN_FACTOR) + 1e-9
        if correction.factor > max(before, 1.0):
            assert signal.latency_p99_s == FAST
        if correction.factor < min(before, 1.0):
            assert signal.latency_p99_s in (SLOW, inf)
