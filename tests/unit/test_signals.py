"""What is relied on after looks that are late, partial or wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import (
    CONFIRM_FACTOR,
    MIN_COMPARED_PER_S,
    InferenceMetrics,
    MetricsScrape,
    RateEstimates,
    Signal,
    Signals,
    StalenessPolicy,
    estimate_signals,
)

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
START = datetime(2026, 11, 1, 20, tzinfo=UTC)
INTERVAL = timedelta(seconds=30)
WINDOW = timedelta(seconds=30)
PATIENCE = StalenessPolicy()


def a_look(
    ctr: float | None = None,
    *,
    silent: tuple[str, ...] = (),
    failure: str = "",
    age_s: float = 0,
    **rest: float,
) -> MetricsScrape:
    by_key = {} if ctr is None else {CTR: InferenceMetrics(ctr, **rest)}
    return MetricsScrape("the gateways", by_key, WINDOW, timedelta(seconds=age_s), silent, failure)


class Watcher:
    """Looks every 30 s, and remembers."""

    def __init__(self) -> None:
        self.beliefs: RateEstimates = {}
        self.now = START

    def sees(self, look: MetricsScrape) -> Signals:
        self.now += INTERVAL
        signals, self.beliefs = estimate_signals(self.beliefs, look, self.now, PATIENCE)
        return signals

    def offered(self, look: MetricsScrape) -> Signal:
        return self.sees(look).by_key[CTR]


@pytest.fixture
def watcher() -> Watcher:
    """One that knows 100 requests per second of ads/ctr."""
    watcher = Watcher()
    watcher.sees(a_look(100.0))
    return watcher


def test_what_is_read_is_what_is_relied_on(watcher: Watcher) -> None:
    signals = watcher.sees(a_look(140.0, served_per_s=120.0, latency_p99_s=0.03, queue_s=0.002, busy=0.7))
    assert signals.by_key == {
        CTR: Signal(140.0, watcher.now, served_per_s=120.0, latency_p99_s=0.03, queue_s=0.002, busy=0.7)
    }
    assert signals.all_fresh
    assert signals.message == "the figures of all gateways are fresh"


@pytest.mark.parametrize("wrong", [nan, inf, -inf, -3.0, 1e308])
def test_what_cannot_be_true_is_not_believed(watcher: Watcher, wrong: float) -> None:
    signals = watcher.sees(a_look(wrong))
    assert signals.by_key[CTR].offered_per_s == 100.0
    assert not signals.all_fresh
    assert signals.message.startswith("ads/ctr: what was read is no number of requests per second")


def test_details_that_cannot_be_true_are_left_out(watcher: Watcher) -> None:
    signal = watcher.offered(a_look(100.0, served_per_s=-1.0, latency_p99_s=nan, queue_s=inf, busy=1.02))
    assert (signal.served_per_s, signal.latency_p99_s, signal.queue_s, signal.busy) == (None, None, None, 1.0)
    assert signal.fresh
    assert watcher.offered(a_look(100.0, served_per_s=1e13)).served_per_s is None


def test_a_failure_holds_all_and_says_why(watcher: Watcher) -> None:
    known_at = watcher.now
    signals = watcher.sees(MetricsScrape("Prometheus", {}, WINDOW, failure="connection refused"))
    assert signals.by_key[CTR] == Signal(100.0, known_at, fresh=False, held_reason=signals.problem)
    assert signals.message == "Prometheus: connection refused; demand is held at what was known last"
    assert watcher.sees(a_look(90.0)).all_fresh


def test_figures_that_are_too_old_say_nothing(watcher: Watcher) -> None:
    assert watcher.offered(a_look(0.0, age_s=90)).fresh
    watcher = Watcher()
    watcher.sees(a_look(100.0))
    signals = watcher.sees(a_look(0.0, age_s=91))
    assert signals.by_key[CTR].offered_per_s == 100.0
    assert "more than 90 s old" in signals.message


def test_zero_is_believed_when_complete_looks_saw_it_twice(watcher: Watcher) -> None:
    first = watcher.offered(a_look(0.0))
    assert (first.offered_per_s, first.fresh) == (100.0, True)
    assert first.held_reason.startswith("fell to 0/s at once")
    assert watcher.offered(a_look(0.0)) == Signal(0.0, watcher.now)


def test_zero_is_not_believed_while_a_gateway_is_silent(watcher: Watcher) -> None:
    for _ in range(5):
        signals = watcher.sees(a_look(0.0, silent=("gateway-1",)))
        assert signals.by_key[CTR].offered_per_s == 100.0
        assert "gateway-1 says nothing" in signals.message
    assert not signals.all_fresh


def test_more_is_believed_while_a_gateway_is_silent(watcher: Watcher) -> None:
    signal = watcher.offered(a_look(150.0, silent=("gateway-1",)))
    assert (signal.offered_per_s, signal.fresh) == (150.0, False)


def test_part_of_a_first_look_is_no_signal() -> None:
    watcher = Watcher()
    assert not watcher.sees(a_look(50.0, silent=("gateway-1",))).by_key
    assert watcher.offered(a_look(100.0)).offered_per_s == 100.0


def test_a_lying_spike_is_followed_only_part_of_the_way_and_forgotten(watcher: Watcher) -> None:
    spike = watcher.offered(a_look(1_000.0))
    assert (spike.offered_per_s, spike.fresh) == (300.0, True)
    assert spike.held_reason.startswith("rose to 1000/s at once")
    assert watcher.offered(a_look(110.0)) == Signal(110.0, watcher.now)
    assert watcher.offered(a_look(1_000.0)).offered_per_s == 330.0


def test_a_flash_crowd_gets_through_at_the_second_look(watcher: Watcher) -> None:
    watcher.sees(a_look(2_000.0))
    assert watcher.offered(a_look(2_400.0)) == Signal(2_400.0, watcher.now)


def test_two_spikes_that_disagree_count_as_far_as_they_agree(watcher: Watcher) -> None:
    watcher.sees(a_look(500.0))
    assert watcher.offered(a_look(9_000.0)).offered_per_s == 1_500.0
    assert watcher.offered(a_look(8_000.0)).offered_per_s == 8_000.0


def test_a_look_that_shares_time_with_the_first_confirms_nothing(watcher: Watcher) -> None:
    def minute(rate: float) -> MetricsScrape:
        return MetricsScrape("Prometheus", {CTR: InferenceMetrics(rate)}, timedelta(minutes=1))

    assert watcher.offered(minute(1_000.0)).offered_per_s == 300.0
    assert watcher.offered(minute(1_000.0)).offered_per_s == 300.0
    assert watcher.offered(minute(1_000.0)).offered_per_s == 1_000.0


def test_a_fall_after_a_rise_that_was_not_believed_needs_its_own_second_look(watcher: Watcher) -> None:
    watcher.sees(a_look(1_000.0))
    assert watcher.offered(a_look(5.0)).offered_per_s == 100.0
    assert watcher.offered(a_look(6.0)).offered_per_s == 6.0


def test_little_traffic_is_no_spike() -> None:
    watcher = Watcher()
    watcher.sees(a_look(0.0))
    assert watcher.offered(a_look(2.9)) == Signal(2.9, watcher.now)
    assert watcher.offered(a_look(0.0)) == Signal(0.0, watcher.now)


def test_an_inference_without_a_route_is_forgotten_and_not_idle(watcher: Watcher) -> None:
    held = [watcher.sees(a_look()) for _ in range(3)]
    assert [signals.by_key[CTR].offered_per_s for signals in held] == [100.0] * 3
    assert held[0].message == "ads/ctr: no gateway counts its requests"
    after = watcher.sees(a_look())
    assert not after.by_key
    assert after.all_fresh


def test_a_long_failure_ends_in_no_signal_at_all(watcher: Watcher) -> None:
    looks = int(PATIENCE.forget_after / INTERVAL)
    for _ in range(looks):
        assert watcher.offered(a_look(failure="gone")).offered_per_s == 100.0
    after = watcher.sees(a_look(failure="gone"))
    assert not after.by_key
    assert not after.all_fresh


def test_what_is_stale_elsewhere_is_not_ones_own_matter() -> None:
    watcher = Watcher()
    both = MetricsScrape("the gateways", {CTR: InferenceMetrics(5.0), CVR: InferenceMetrics(5.0)}, WINDOW)
    watcher.sees(both)
    signals = watcher.sees(
        MetricsScrape("the gateways", {CTR: InferenceMetrics(5.0), CVR: InferenceMetrics(nan)}, WINDOW)
    )
    assert not signals.all_fresh
    assert signals.select_inferences([CTR]).all_fresh
    assert signals.select_inferences([CVR, ObjectKey("ads", "unknown")]).message.startswith("ads/cvr: ")
    assert not watcher.sees(a_look(failure="gone")).select_inferences([CTR]).all_fresh


# Properties

RATES = st.one_of(st.none(), st.floats(), st.floats(0, 1e5), st.just(0.0))
LOOKS = st.builds(
    a_look,
    RATES,
    silent=st.sampled_from([(), ("gateway-1",)]),
    failure=st.sampled_from(["", "", "gone"]),
    age_s=st.sampled_from([0.0, 30.0, 120.0]),
)
HISTORIES = st.lists(LOOKS, max_size=12)


def watched(history: list[MetricsScrape]) -> Watcher:
    watcher = Watcher()
    for look in history:
        watcher.sees(look)
    return watcher


@given(HISTORIES)
def test_a_signal_is_always_an_amount(history: list[MetricsScrape]) -> None:
    watcher = Watcher()
    for look in history:
        for signal in watcher.sees(look).by_key.values():
            assert isfinite(signal.offered_per_s)
            assert signal.offered_per_s >= 0


@given(HISTORIES, LOOKS)
def test_a_look_that_is_not_whole_lowers_nothing(history: list[MetricsScrape], look: MetricsScrape) -> None:
    watcher = watched(history)
    before = watcher.beliefs.get(CTR)
    said = look.by_key.get(CTR, InferenceMetrics()).offered_per_s
    whole = not (look.silent_gateways or look.failure) and look.age <= PATIENCE.stale_after
    believable = said is not None and isfinite(said) and 0 <= said <= 1e9
    signals = watcher.sees(look)
    if before is not None and not (whole and believable):
        assert CTR not in signals.by_key or signals.by_key[CTR].offered_per_s >= before.offered_per_s
        assert CTR not in signals.by_key or not signals.by_key[CTR].fresh


@given(HISTORIES)
def test_zero_is_relied_on_only_when_a_look_said_nearly_nothing(history: list[MetricsScrape]) -> None:
    said = [look.by_key[CTR].offered_per_s for look in history if look.by_key]
    watcher = Watcher()
    for look in history:
        signal = watcher.sees(look).by_key.get(CTR)
        if signal is not None and signal.offered_per_s == 0:
            assert 0.0 in said


@given(HISTORIES, st.floats(0, 1e5))
def test_one_look_moves_a_signal_by_no_more_than_the_factor(
    history: list[MetricsScrape], rate: float
) -> None:
    watcher = watched(history)
    before = watcher.beliefs.get(CTR)
    if before is None or before.unconfirmed is not None:
        return
    after = watcher.offered(a_look(rate)).offered_per_s
    base = max(before.offered_per_s, MIN_COMPARED_PER_S)
    assert (
        base / CONFIRM_FACTOR * (1 - 1e-9)
        <= max(after, MIN_COMPARED_PER_S)
        <= base * CONFIRM_FACTOR * (1 + 1e-9)
    )


@given(HISTORIES, st.floats(0, 1e5))
def test_what_three_whole_looks_say_is_believed(history: list[MetricsScrape], rate: float) -> None:
    watcher = watched(history)
    for _ in range(2):
        watcher.sees(a_look(rate))
    assert watcher.offered(a_look(rate)) == Signal(rate, watcher.now)


@given(HISTORIES)
def test_the_same_looks_say_the_same(history: list[MetricsScrape]) -> None:
    assert watched(history).beliefs == watched(history).beliefs
