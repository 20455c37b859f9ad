"""Counters of gateways as one sample: whatever restarts, comes late or is away."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.release import GatewayCounts
from tidegate.planning.access.release_sample import GatewayReading, RequestTally, make_bases, sum_counts_since
from tidegate.planning.access.sequential_test import compute_share_bounds

LONG = timedelta(hours=1)


def a_tally(answered: int, failures: int, times: dict[int, int], unanswered: int) -> RequestTally:
    """Never more failures than requests."""
    return RequestTally(answered + failures, failures, times, unanswered)


counts = st.integers(0, 10**9)
tallies = st.builds(
    a_tally,
    counts,
    counts,
    st.dictionaries(st.integers(0, 60_000), st.integers(1, 10**9), max_size=40),
    counts,
)


def a_base(target: RequestTally, gateway: str = "a") -> GatewayCounts:
    return GatewayCounts(gateway=gateway, uptime=3_540, target=target.render(), stable="")


def since(target: RequestTally, base: RequestTally, age: timedelta = LONG) -> RequestTally:
    return sum_counts_since([GatewayReading("a", age, target, RequestTally())], [a_base(base)]).target


def test_what_was_there_before_is_taken_off() -> None:
    assert since(RequestTally(150, 3, {4: 100, 9: 50}), RequestTally(100, 3, {4: 90})) == RequestTally(
        50, 0, {4: 10, 9: 50}
    )


@pytest.mark.parametrize(
    "now",
    [
        RequestTally(50, 1),
        RequestTally(500, 1),
        RequestTally(500, 50, {4: 1}),
        RequestTally(105, 105, {4: 95}),
    ],
)
def test_lower_counters_mean_a_restart_and_all_that_they_say_is_new(now: RequestTally) -> None:
    assert since(now, RequestTally(100, 20, {4: 90})) == now


def test_a_restart_is_seen_even_when_the_counters_have_overtaken_what_they_were() -> None:
    now = RequestTally(900, 90, {4: 900})
    assert since(now, RequestTally(100, 20, {4: 90}), age=timedelta(seconds=30)) == now


def test_counters_that_are_not_read_at_one_instant_are_no_restart() -> None:
    assert since(RequestTally(110, 19, {}, 18), RequestTally(100, 20, {}, 20)) == RequestTally(10, 0)


def test_a_gateway_without_a_base_counts_from_now_on() -> None:
    reading = GatewayReading("new", LONG, RequestTally(100, 100), RequestTally())
    assert sum_counts_since([reading], []).target == RequestTally()
    later = GatewayReading("new", LONG, RequestTally(103, 101), RequestTally())
    assert sum_counts_since([later], make_bases([reading])).target == RequestTally(3, 1)


def test_a_silent_gateway_keeps_its_base() -> None:
    bases = make_bases(
        [GatewayReading("b", LONG, RequestTally(5, 0), RequestTally())], [a_base(RequestTally(7, 1))]
    )
    assert [(base.gateway, base.target) for base in bases] == [("a", "7 1"), ("b", "5 0")]


@given(tallies)
def test_a_tally_survives_the_status(tally: RequestTally) -> None:
    assert RequestTally.parse(tally.render()) == tally


@given(tallies, tallies)
def test_what_came_after_is_what_was_added(before: RequestTally, more: RequestTally) -> None:
    assert (before + more).count_since(before) == more


@pytest.mark.parametrize("text", ["", "1", "a b", "1 2 3", "1 2 3:x", "1 2 3:4,", "1 2 - x"])
def test_a_forged_text_counts_as_nothing(text: str) -> None:
    assert RequestTally.parse(text) == RequestTally()


def test_more_failures_than_requests_raise_nothing() -> None:
    assert compute_share_bounds(7, 5, 0.01).high == 1.0
