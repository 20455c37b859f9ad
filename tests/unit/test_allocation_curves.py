"""Capacity curves: fitted from calibration, corrected online, never promising more with fewer replicas."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.allocation.curves import (
    CapacityCorrection,
    CapacityCurve,
    CapacityObservation,
    fit_curve,
    fit_joint_curve,
    linear_curve,
)
from tidegate.allocation.errors import InvalidInputError

MEASURED = st.lists(
    st.tuples(st.integers(1, 20), st.floats(0, 1e6, allow_subnormal=False)), min_size=1, max_size=12
)


def test_it_goes_through_what_was_measured() -> None:
    curve = fit_curve([(1, 100.0), (2, 190.0), (4, 350.0)])
    assert [curve.rate_at(n) for n in (0, 1, 2, 3, 4)] == [0.0, 100.0, 190.0, 270.0, 350.0]


def test_beyond_the_last_point_the_last_slope_goes_on() -> None:
    assert fit_curve([(1, 100.0), (2, 190.0), (4, 350.0)]).rate_at(6) == 510.0


def test_a_noisy_repetition_is_outvoted() -> None:
    assert fit_curve([(1, 100.0), (1, 101.0), (1, 12.0)]).rate_at(1) == 100.0


def test_a_dip_is_left_out() -> None:
    assert fit_curve([(1, 100.0), (2, 90.0), (3, 240.0)]).rate_at(2) == 170.0


@given(MEASURED)
def test_a_fit_never_falls_and_each_replica_adds_no_more_than_the_one_before(measured) -> None:
    curve = fit_curve(measured)
    rates = [curve.rate_at(n) for n in range(25)]
    added = [high - low for low, high in pairwise(rates)]
    assert all(each >= -1e-6 for each in added)
    assert all(late <= early + 1e-6 * max(1.0, early) for early, late in pairwise(added))


@example([(1, 5.7e-306)], 1000.0)
@given(MEASURED, st.floats(0, 2e6, allow_subnormal=False))
def test_needed_is_the_fewest_that_serve_so_much(measured, rate: float) -> None:
    curve = fit_curve(measured)
    needed = curve.replicas_for(rate)
    if needed is None:
        assert curve.rate_at(10_000) < rate
    else:
        assert curve.rate_at(needed) >= rate * (1 - 1e-6)
        assert needed == 0 or curve.rate_at(needed - 1) < rate


@given(MEASURED, st.floats(0, 2e6, allow_subnormal=False))
def test_the_work_of_a_rate_is_what_serves_it(measured, rate: float) -> None:
    curve = fit_curve(measured)
    work = curve.work_of(rate)
    if work is not None:
        assert curve.rate_at(work) == pytest.approx(rate, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("points", "rate", "useful"),
    [
        ([(1, 100.0), (4, 280.0)], 340.0, 5),
        # Beyond four nothing is gained: more replicas would not serve more.
        ([(1, 100.0), (4, 280.0), (8, 280.0)], 340.0, 4),
        ([(1, 100.0), (4, 280.0), (8, 280.0)], 130.0, 2),
        ([(1, 0.0)], 10.0, 1),
    ],
)
def test_no_more_replicas_are_useful_than_serve_more(points, rate: float, useful: int) -> None:
    assert fit_curve(points).useful_replicas_for(rate) == useful


@pytest.mark.parametrize(
    ("together", "rates"),
    [
        ([], [100.0, 200.0, 400.0]),
        ([(4, 280.0)], [100.0, 160.0, 280.0]),
        # More than four times one is luck, or one was measured badly.
        ([(4, 500.0)], [100.0, 200.0, 400.0]),
        # Less than one serves alone is a bad measurement of two.
        ([(2, 90.0), (4, 280.0)], [100.0, 160.0, 280.0]),
    ],
)
def test_several_replicas_count_for_no_more_than_as_many_alone(together, rates) -> None:
    curve = fit_joint_curve(100.0, together)
    assert [curve.rate_at(count) for count in (1, 2, 4)] == pytest.approx(rates)


@given(MEASURED)
def test_it_survives_the_api(measured) -> None:
    curve = fit_curve(measured)
    assert CapacityCurve.from_json(curve.to_json()) == curve


@pytest.mark.parametrize(
    ("points", "field"),
    [
        ((), "curve.points"),
        (((0, 1.0),), "curve.points[0].replicas"),
        (((2, 1.0), (2, 2.0)), "curve.points[1].replicas"),
        (((1, nan),), "curve.points[0].perSecond"),
        (((1, inf),), "curve.points[0].perSecond"),
        (((1, -1.0),), "curve.points[0].perSecond"),
        (((1, 1e308),), "curve.points[0].perSecond"),
        (((1, 5.0), (2, 4.0)), "curve.points[1].perSecond"),
        (((1, 5.0), (2, 20.0)), "curve.points[1]"),
    ],
)
def test_no_curve_from(points: tuple[tuple[int, float], ...], field: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        CapacityCurve(points)
    assert raised.value.path == field


@pytest.mark.parametrize("points", [[{"replicas": 1}], [{"replicas": "x", "perSecond": 1}], [None]])
def test_what_is_no_curve_does_not_parse(points) -> None:
    with pytest.raises(InvalidInputError, match="replicas and perSecond"):
        CapacityCurve.from_json(points)


@pytest.mark.parametrize("measured", [[], [(0, 1.0)], [(1, nan)], [(1, -1.0)]])
def test_nothing_is_fitted_from(measured) -> None:
    with pytest.raises(InvalidInputError):
        fit_curve(measured)


def test_what_is_seen_at_saturation_moves_it_a_fifth_of_the_way() -> None:
    seen = CapacityObservation(replicas=2, per_second=160.0, saturated=True)
    assert CapacityCorrection().update_from(linear_curve(100.0), seen).factor == pytest.approx(0.96)


def test_low_load_says_nothing_about_saturation() -> None:
    seen = CapacityObservation(replicas=2, per_second=20.0, saturated=False)
    assert CapacityCorrection().update_from(linear_curve(100.0), seen).factor == 1.0


def test_more_than_promised_is_believed_at_any_load() -> None:
    seen = CapacityObservation(replicas=1, per_second=120.0, saturated=False)
    assert CapacityCorrection().update_from(linear_curve(100.0), seen).factor > 1.0


@pytest.mark.parametrize(("seen", "limit"), [(0.0, 0.5), (1e9, 1.5)])
def test_however_often_something_absurd_is_seen_it_stays_bounded(seen: float, limit: float) -> None:
    correction = CapacityCorrection()
    for _ in range(200):
        correction = correction.update_from(linear_curve(100.0), CapacityObservation(1, seen, saturated=True))
    assert correction.factor == pytest.approx(limit)


def test_it_fades_by_half_in_an_hour() -> None:
    assert CapacityCorrection(0.6).decay_for(3600.0).factor == pytest.approx(0.8)
    assert CapacityCorrection(0.6).decay_for(0.0).factor == pytest.approx(0.6)


def test_it_scales_the_whole_curve() -> None:
    assert CapacityCorrection(0.5).apply_to(fit_curve([(1, 100.0), (2, 150.0)])).rate_at(2) == 75.0


def test_an_observation_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"observation\.perSecond"):
        CapacityCorrection().update_from(linear_curve(1.0), CapacityObservation(1, nan, saturated=True))
