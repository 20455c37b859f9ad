"""The planner of admitted shares: lowest value first, no more than needed, and neutral where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.admitted_shares import ReducedAnswer, RouteLoad, plan_shares
from tidegate.routing import protos
from tidegate.routing.envoy.prices import encode_layer

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")


def a_load(
    route: str,
    value: float,
    offered: float,
    *,
    priced: bool = True,
    costs: dict[ObjectKey, float] | None = None,
) -> RouteLoad:
    return RouteLoad(f"access/ads/ctr/{route}", offered, costs or {CTR: 1.0}, value, priced)


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
    split = a_load("split", 1, 100, costs={CTR: 0.5, CVR: 0.5})
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


REST, REST_REDUCED = "access/ads/ctr/rest", "access/ads/ctr/rest/reduced"
GOLD, GOLD_REDUCED = "access/ads/ctr/gold", "access/ads/ctr/gold/reduced"


def with_fallback(load: RouteLoad, percent: float = 80) -> RouteLoad:
    return replace(load, reduced=(ReducedAnswer({CVR: 1.0}, load.value * percent / 100),))


def with_candidates(load: RouteLoad, cost: float, percent: float) -> RouteLoad:
    return replace(load, reduced=(ReducedAnswer({CTR: cost}, load.value * percent / 100),))


def test_a_fallback_answers_what_was_not_admitted_as_far_as_it_has_capacity() -> None:
    loads = [a_load("gold", 5, 60), with_fallback(a_load("rest", 1, 60))]
    # 80 for CTR: all of gold, and a third of the rest. 20 of its other 40 fit into CVR.
    assert plan_shares(loads, {CTR: 80, CVR: 20}) == {
        REST: pytest.approx(1 / 3),
        REST_REDUCED: pytest.approx(2 / 3),
    }
    assert plan_shares(loads, {CTR: 80, CVR: 1000}) == {REST: pytest.approx(1 / 3)}
    assert plan_shares(loads, {CTR: 80}) == {REST: pytest.approx(1 / 3)}
    assert plan_shares(loads, {CTR: 200, CVR: 20}) == {}


def test_a_fallback_answers_the_highest_value_first_and_its_own_requests_before() -> None:
    loads = [with_fallback(a_load("gold", 5, 60)), with_fallback(a_load("rest", 1, 60))]
    own = a_load("own", 1, 40, priced=False, costs={CVR: 1.0})
    assert plan_shares([*loads, own], {CTR: 30, CVR: 90}) == {
        GOLD: 0.5,
        REST: 0.0,
        REST_REDUCED: pytest.approx(20 / 60),
    }
    assert plan_shares([*loads, own], {CTR: 30, CVR: 40}) == {
        GOLD: 0.5,
        GOLD_REDUCED: 0.5,
        REST: 0.0,
        REST_REDUCED: 0.0,
    }


def test_fewer_candidates_come_before_refusals_and_the_highest_value_stays_full() -> None:
    loads = [
        with_candidates(a_load("gold", 5, 50), 0.25, 90),
        with_candidates(a_load("rest", 1, 50), 0.25, 90),
    ]
    # All with few candidates take 25 of 62.5, and the other 37.5 are gold's in full.
    assert plan_shares(loads, {CTR: 62.5}) == {REST: 0.0}
    assert plan_shares(loads, {CTR: 43.75}) == {GOLD: pytest.approx(0.5), REST: 0.0}
    # Not even all of these fit: gold's do, and none is answered in full.
    assert plan_shares(loads, {CTR: 18.75}) == {
        GOLD: 0.0,
        REST: 0.0,
        REST_REDUCED: pytest.approx(0.5),
    }
    assert plan_shares(loads, {CTR: 100}) == {}


def test_at_high_overload_shares_follow_small_changes_that_are_much_of_a_capacity() -> None:
    """10,000 requests per second: a hundredth of them is more than the fallback answers."""
    load = with_fallback(a_load("rest", 1, 10_000))
    capacities = {CTR: 970.0, CVR: 97.0}
    right = {REST: pytest.approx(0.097), REST_REDUCED: pytest.approx(0.1067)}
    assert plan_shares([load], capacities) == right
    # 290 per second for a fallback that answers 97; and one that idles.
    assert plan_shares([load], capacities, {REST: 0.097, REST_REDUCED: 0.126}) == right
    assert plan_shares([load], capacities, {REST: 0.097, REST_REDUCED: 0.097}) == right
    noise = {REST: 0.0961, REST_REDUCED: 0.1059}
    assert plan_shares([load], capacities, noise) == noise


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=10))
def test_what_is_held_moves_no_more_than_two_percent_of_a_capacity(changes: list[float]) -> None:
    """Also if many routes are held."""
    fair = [a_load(f"r{number}", 1, 100) for number in range(5)]
    before = plan_shares(fair, {CTR: 200})
    for change in changes:
        loads = [with_fallback(replace(load, offered_per_s=100 * change)) for load in fair]
        before = plan_shares(loads, {CTR: 200, CVR: 20}, before)
        full = sum(load.offered_per_s * before.get(load.route, 1.0) for load in loads)
        answered = sum(load.offered_per_s * before.get(f"{load.route}/reduced", 1.0) for load in loads)
        assert 200 * 0.98 - 1e-6 <= full <= 200 * 1.02 + 1e-6
        assert 20 * 0.98 - 1e-6 <= answered - full <= 20 * 1.02 + 1e-6


def test_a_reduced_answer_that_gains_as_much_as_the_rest_is_the_full_answer() -> None:
    """Value 5 by 36 percent, and 72 of 200 candidates: the same gain for every part of the capacity."""
    load = with_candidates(a_load("gold", 5, 100), 72 / 200, 36)
    assert plan_shares([load], {CTR: 50}) == {GOLD: 0.5, GOLD_REDUCED: 0.5}


@example(5, 36, (200, 72))
@given(
    st.integers(1, 9),
    st.integers(1, 99),
    st.integers(2, 500).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most - 1))),
)
def test_any_whole_numbers_of_candidates_and_percent_give_shares(
    value: int, percent: int, limits: tuple[int, int]
) -> None:
    most, fewest = limits
    reduced = ReducedAnswer({CTR: fewest / most, CVR: 1.0}, value * percent / 100)
    load = replace(a_load("gold", value, 100, costs={CTR: 1.0, CVR: 1.0}), reduced=(reduced,))
    shares = plan_shares([load], {CTR: 50, CVR: 80})
    assert 0 <= shares[GOLD] <= shares.get(GOLD_REDUCED, 1.0) <= 1


def test_a_request_that_a_model_answers_twice_gains_half_as_much_from_its_capacity() -> None:
    twice = a_load("twice", 3, 50, costs={CTR: 2.0})
    assert plan_shares([twice, a_load("once", 2, 50)], {CTR: 100}) == {
        "access/ads/ctr/twice": pytest.approx(0.5)
    }


def test_a_request_that_targets_share_is_worth_no_more_than_a_whole_one() -> None:
    split = a_load("split", 3, 50, costs={CTR: 0.5, CVR: 0.5})
    assert plan_shares([split, a_load("once", 4, 50)], {CTR: 50, CVR: 50}) == {"access/ads/ctr/split": 0.0}


def test_fewer_candidates_that_lose_more_value_than_they_save_are_not_used() -> None:
    loads = [with_candidates(a_load("gold", 5, 50), 0.5, 40), with_candidates(a_load("rest", 1, 50), 0.5, 40)]
    assert plan_shares(loads, {CTR: 75}) == {
        REST: pytest.approx(0.5),
        REST_REDUCED: pytest.approx(0.5),
    }


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),
            st.floats(1, 100),
            st.floats(0.05, 0.95),
            st.integers(1, 100),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=5,
    ),
    st.floats(1, 300),
)
def test_the_value_of_full_and_reduced_answers_is_the_optimum(
    routes: list[tuple[int, float, float, int, int]], capacity: float
) -> None:
    loads = [
        with_candidates(a_load(f"r{number}", value, rate, costs={CTR: float(calls)}), calls * part, percent)
        for number, (value, rate, part, percent, calls) in enumerate(routes)
    ]
    shares = plan_shares(loads, {CTR: capacity})
    gained = taken = 0.0
    for load in loads:
        (answer,) = load.reduced
        full = shares.get(load.route, 1.0)
        reduced = shares.get(f"{load.route}/reduced", 1.0) - full
        assert reduced >= -1e-9
        gained += load.offered_per_s * (full * load.value + reduced * answer.value)
        taken += load.offered_per_s * (full * load.costs[CTR] + reduced * answer.costs[CTR])
    assert taken <= capacity * (1 + 1e-9)
    assert gained == pytest.approx(optimal_value(loads, capacity))


def optimal_value(loads: list[RouteLoad], capacity: float) -> float:
    """Solve the same as a linear program: full and reduced answers per second of each route."""
    from scipy.optimize import linprog  # half a second in each process that collects tests

    full = [(load.offered_per_s * load.value, load.offered_per_s * load.costs[CTR]) for load in loads]
    reduced = [
        (load.offered_per_s * answer.value, load.offered_per_s * answer.costs[CTR])
        for load in loads
        for answer in load.reduced
    ]
    values, costs = zip(*full, *reduced, strict=True)
    count = len(loads)
    together = [
        [1.0 if column % count == row else 0.0 for column in range(2 * count)] for row in range(count)
    ]
    result = linprog(
        [-value for value in values], [list(costs), *together], [capacity, *[1.0] * count], bounds=(0, 1)
    )
    return -float(result.fun)


@pytest.mark.parametrize("share", [nan, -0.1, 1.1])
def test_a_share_outside_0_to_1_never_reaches_a_gateway(share: float) -> None:
    with pytest.raises(ValueError, match=f"access/ads/ctr/rest: the admitted share is {share}; it must be"):
        encode_layer({"access/ads/ctr/gold": 1.0, "access/ads/ctr/rest": share})


@pytest.mark.parametrize(("share", "numerator"), [(0.0, 0), (0.4, 400_000), (1.0, 1_000_000)])
def test_a_share_reaches_a_gateway_in_millionths(share: float, numerator: int) -> None:
    layer = protos.to_redacted_json(encode_layer({"access/ads/ctr/rest": share}))["layer"]
    assert layer == {
        "tidegate.admitted.access/ads/ctr/rest": {"numerator": numerator, "denominator": "MILLION"}
    }
