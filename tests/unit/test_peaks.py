"""What is asked for rises at once and falls slowly."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from builders.allocator import a_member, observed
from builders.fake_clock import FakeClock
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.planning.allocator.peaks import MIN_PEAK_WINDOW, Peaks, apply_peaks
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate_controllers.allocator.events import AllocationEvents
from tidegate_controllers.allocator.forecasts import AllocationForecasts
from tidegate_controllers.allocator.solver import PoolSolver

CTR, CVR = ObjectKey("ads", "ctr"), ObjectKey("ads", "cvr")
START = datetime(2026, 11, 1, 20, tzinfo=UTC)
STEP = timedelta(seconds=10)


class Watcher:
    """Signals every ten seconds, and what is remembered of them."""

    def __init__(self, window: timedelta = MIN_PEAK_WINDOW) -> None:
        self.window = window
        self.peaks: Peaks = {}
        self.now = START

    def sees(self, signal: Signal | None) -> float | None:
        """What ads/ctr is said to ask for."""
        self.now += STEP
        found = Signals({} if signal is None else {CTR: signal}, "")
        signals, self.peaks = apply_peaks(self.peaks, found, self.now, {CTR: self.window})
        return signals.by_key[CTR].demand_per_s if CTR in signals.by_key else None

    def rates(self, rates: Sequence[float]) -> list[float | None]:
        return [self.sees(Signal(rate, self.now)) for rate in rates]


def test_a_rise_counts_at_once_and_a_fall_when_nothing_as_high_was_seen_for_a_minute() -> None:
    assert Watcher().rates([10, 42, 13, 38, 13, 13, 13, 13, 13, 13]) == [
        10,
        42,
        42,
        42,
        42,
        42,
        42,
        38,
        38,
        13,
    ]


def test_a_peak_counts_as_long_as_the_pool_says_and_never_less_than_a_minute() -> None:
    assert Watcher(4 * STEP).rates([42, *[10] * 6]) == [42, 42, 42, 42, 42, 42, 10]
    assert Watcher(9 * STEP).rates([42, *[10] * 9]) == [42, *[42] * 8, 10]


def test_a_clock_that_is_set_back_keeps_no_peak() -> None:
    watcher = Watcher()
    watcher.rates([42])
    watcher.now -= timedelta(hours=6)
    assert watcher.rates([10]) == [10]


def test_a_rate_that_was_not_believed_is_no_peak() -> None:
    watcher = Watcher()
    watcher.rates([10])
    assert watcher.sees(Signal(30.0, START, held_reason="rose to 500/s at once")) == 30
    assert watcher.rates([10]) == [10]


def test_what_is_stale_counts_no_longer_than_it_would_and_at_least_as_much_as_is_held() -> None:
    watcher = Watcher()
    watcher.rates([42, 10])
    stale = Signal(10.0, START, fresh=False, held_reason="gateways: none of 2 answers")
    assert [watcher.sees(stale) for _ in range(6)] == [42, 42, 42, 42, 10, 10]


def test_what_is_not_heard_of_any_more_is_forgotten() -> None:
    watcher = Watcher()
    watcher.rates([42])
    assert watcher.sees(None) is None
    assert watcher.rates([10]) == [10]


def test_each_inference_has_peaks_of_its_own() -> None:
    _, peaks = apply_peaks({}, Signals({CTR: Signal(42.0, START), CVR: Signal(5.0, START)}, ""), START, {})
    signals, _ = apply_peaks(
        peaks, Signals({CTR: Signal(1.0, START), CVR: Signal(1.0, START)}, "late"), START, {}
    )
    assert {key: signal.demand_per_s for key, signal in signals.by_key.items()} == {CTR: 42, CVR: 5}
    assert signals.problem == "late"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_it_is_the_highest_rate_of_the_last_minute(rates: list[float]) -> None:
    looks = int(MIN_PEAK_WINDOW / STEP)
    wanted = [max(rates[max(0, at + 1 - looks) : at + 1]) for at in range(len(rates))]
    assert Watcher().rates(rates) == wanted


def test_a_pool_counts_peaks_of_realtime_demand_for_its_dwell_and_of_streams_for_a_minute() -> None:
    clock = FakeClock()
    solver = PoolSolver(
        solver=None,
        demand=None,
        forecasts=AllocationForecasts(None, clock),
        events=AllocationEvents(None, clock),
        inputs=SolverInputs(),
        metrics=AllocatorMetrics(CollectorRegistry()),
        clock=clock,
    )
    members = (a_member(), a_member("log", tier=Tier.NEARLINE))
    log = ObjectKey("ads", "log")

    def see(rate: float, seconds: int) -> dict[ObjectKey, float]:
        now = START + timedelta(seconds=seconds)
        pool = observed(*members, policy={"dwell": "2m"}, now=now)
        found = Signals({key: Signal(rate, now) for key in (CTR, CVR, log)}, "")
        return {key: signal.demand_per_s for key, signal in solver.hold_peaks(pool, found).by_key.items()}

    assert see(50.0, 0) == {CTR: 50.0, log: 50.0}
    assert see(10.0, 59) == {CTR: 50.0, log: 50.0}
    assert see(10.0, 61) == {CTR: 50.0, log: 10.0}
    assert see(10.0, 121) == {CTR: 10.0, log: 10.0}
    see(50.0, 122)
    solver.forget_pool(observed(*members).pool.key)
    assert see(10.0, 123) == {CTR: 10.0, log: 10.0}
