"""Counters of gateways as one sample: whatever restarts, comes late or is away."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.release import GatewayCounts
from tidegate.planning.sample import GatewayReading, Tally, bases_of, counted_since
from tidegate.planning.sequential import share_bounds

LONG = timedelta(hours=1)


def a_tally(answered: int, failures: int, times: dict[int, int], unanswered: int) -> Tally:
    """Never more failures than requests."""
    return Tally(answered + failures, failures, times, unanswered)


counts = st.integers(0, 10**9)
tallies = st.builds(
    a_tally,
    counts,
    counts,
    st.dictionaries(st.integers(0, 60_000), st.integers(1, 10**9), max_size=40),
    counts,
)


def a_base(target: Tally, gateway: str = "a") -> GatewayCounts:
    return GatewayCounts(gateway=gateway, uptime=3_540, target=target.render(), stable="")


def since(target: Tally, base: Tally, age: timedelta = LONG) -> Tally:
    return counted_since([GatewayReading("a", age, target, Tally())], [a_base(base)]).target


def test_what_was_there_before_is_taken_off() -> None:
    assert since(Tally(150, 3, {4: 100, 9: 50}), Tally(100, 3, {4: 90})) == Tally(50, 0, {4: 10, 9: 50})


@pytest.mark.parametrize(
    "now", [Tally(50, 1), Tally(500, 1), Tally(500, 50, {4: 1}), Tally(105, 105, {4: 95})]
)
def test_lower_counters_mean_a_restart_and_all_that_they_say_is_new(now: Tally) -> None:
    assert since(now, Tally(100, 20, {4: 90})) == now


def test_a_restart_is_seen_even_when_the_counters_have_overtaken_what_they_were() -> None:
    now = Tally(900, 90, {4: 900})
    assert since(now, Tally(100, 20, {4: 90}), age=timedelta(seconds=30)) == now


def test_counters_that_are_not_read_at_one_instant_are_no_restart() -> None:
    assert since(Tally(110, 19, {}, 18), Tally(100, 20, {}, 20)) == Tally(10, 0)


def test_a_gateway_without_a_base_counts_from_now_on() -> None:
    reading = GatewayReading("new", LONG, Tally(100, 100), Tally())
    assert counted_since([reading], []).target == Tally()
    later = GatewayReading("new", LONG, Tally(103, 101), Tally())
    assert counted_since([later], bases_of([reading])).target == Tally(3, 1)


def test_a_silent_gateway_keeps_its_base() -> None:
    bases = bases_of([GatewayReading("b", LONG, Tally(5, 0), Tally())], [a_base(Tally(7, 1))])
    assert [(base.gateway, base.target) for base in bases] == [("a", "7 1"), ("b", "5 0")]


@given(tallies)
def test_a_tally_survives_the_status(tally: Tally) -> None:
    assert Tally.parse(tally.render()) == tally


@given(tallies, tallies)
def test_what_came_after_is_what_was_added(before: Tally, more: Tally) -> None:
    assert (before + more).since(before) == more


@pytest.mark.parametrize("text", ["", "1", "a b", "1 2 3", "1 2 3:x", "1 2 3:4,", "1 2 - x"])
def test_a_forged_text_counts_as_nothing(text: str) -> None:
    assert Tally.parse(text) == Tally()


def test_more_failures_than_requests_raise_nothing() -> None:
    assert share_bounds(7, 5, 0.01).high == 1.0
