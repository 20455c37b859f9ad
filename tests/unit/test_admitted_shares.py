"""The planner of admitted shares: lowest value first, no more than needed, and neutral where nothing is known."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.admitted_shares import RouteLoad, plan_shares

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")


def a_load(
    route: str,
    value: float,
    offered: float,
    *,
    priced: bool = True,
    by_inference: dict[ObjectKey, float] | None = None,
) -> RouteLoad:
    return RouteLoad(f"access/ads/ctr/{route}", offered, by_inference or {CTR: 1.0}, value, priced)


def gold_silver_rest(offered: float) -> list[RouteLoad]:
    """A third of the requests each, worth 5, 2 and 1."""
    return [a_load(route, value, offered / 3) for route, value in (("gold", 5), ("silver", 2), ("rest", 1))]


def test_the_lowest_value_is_refused_first_and_the_marginal_one_in_part() -> None:
    assert plan_shares(gold_silver_rest(150), {CTR: 120}) == {"access/ads/ctr/rest": pytest.approx(0.4)}
    assert plan_shares(gold_silver_rest(150), {CTR: 75}) == {
        "access/ads/ctr/silver": pytest.approx(0.5),
        "access/ads/ctr/rest": 0.0,
    }


def test_nothing_is_refused_while_the_capacity_is_enough() -> None:
    assert plan_shares(gold_silver_rest(120), {CTR: 120.0001}) == {}


@pytest.mark.parametrize("capacity", [0.0, -1.0, nan, inf])
def test_a_capacity_that_is_none_refuses_nothing(capacity: float) -> None:
    assert plan_shares(gold_silver_rest(150), {CTR: capacity}) == {}
    assert plan_shares(gold_silver_rest(150), {}) == {}
    assert plan_shares(gold_silver_rest(150), {CVR: 1}) == {}


@pytest.mark.parametrize("rate", [nan, inf, -5.0, 0.0])
def test_a_rate_that_is_none_counts_as_no_load(rate: float) -> None:
    loads = [a_load("gold", 5, rate), a_load("rest", 1, 100)]
    assert plan_shares(loads, {CTR: 50}) == {"access/ads/ctr/rest": 0.5}


def test_requests_that_are_not_priced_are_served_before_all_others() -> None:
    loads = [a_load("gold", 5, 100), a_load("open", 1, 60, priced=False)]
    assert plan_shares(loads, {CTR: 100}) == {"access/ads/ctr/gold": pytest.approx(0.4)}


def test_equal_values_get_equal_shares() -> None:
    loads = [a_load("web", 1, 90), a_load("app", 1, 10)]
    assert plan_shares(loads, {CTR: 50}) == {"access/ads/ctr/app": 0.5, "access/ads/ctr/web": 0.5}


def test_a_route_of_two_inferences_gets_the_share_that_the_fuller_allows() -> None:
    split = a_load("split", 1, 100, by_inference={CTR: 0.5, CVR: 0.5})
    assert plan_shares([split], {CTR: 100, CVR: 20}) == {"access/ads/ctr/split": pytest.approx(0.4)}


def test_noise_changes_no_share_and_a_real_change_does() -> None:
    before = plan_shares(gold_silver_rest(150), {CTR: 120})
    assert plan_shares(gold_silver_rest(151), {CTR: 120}, before) == before
    assert plan_shares(gold_silver_rest(180), {CTR: 120}, before) == {"access/ads/ctr/rest": 0.0}
    assert plan_shares(gold_silver_rest(110), {CTR: 120}, before) == {}


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0.1, 1e4), st.booleans()), min_size=1, max_size=8),
    st.floats(0.1, 1e4),
)
def test_admitted_requests_fill_the_capacity_and_never_exceed_it(
    routes: list[tuple[int, float, bool]], capacity: float
) -> None:
    loads = [
        a_load(f"r{number}", value, rate, priced=priced)
        for number, (value, rate, priced) in enumerate(routes)
    ]
    shares = plan_shares(loads, {CTR: capacity})
    offered = sum(load.offered_per_s for load in loads)
    fixed = sum(load.offered_per_s for load in loads if not load.priced)
    admitted = sum(load.offered_per_s * shares.get(load.route, 1.0) for load in loads)
    assert admitted == pytest.approx(min(offered, max(capacity, fixed)))
    # Whoever is refused is worth no more than anybody who is admitted.
    refused = [load.value for load in loads if load.priced and shares.get(load.route, 1.0) < 1]
    served = [load.value for load in loads if load.priced and shares.get(load.route, 1.0) > 1e-9]
    assert not refused or not served or max(refused) <= min(served)
