"""How a ramp goes on, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.planning.diagnosis.calibration import (
    ConcurrencyResult,
    choose_concurrency,
    choose_joint_concurrency,
    explain_end,
    find_best_result,
    list_replica_counts,
)


def a_replica(limit_per_s: float, each_s: float) -> Callable[[int], ConcurrencyResult]:
    """One that answers alone in `each_s`, and never more than `limit_per_s`: what is more waits."""

    def at(concurrency: int) -> ConcurrencyResult:
        rate = min(concurrency / each_s, limit_per_s)
        return ConcurrencyResult(concurrency, rate, concurrency / rate, concurrency / rate)

    return at


def ramp(
    replica: Callable[[int], ConcurrencyResult], slo_s: float | None, most: int = 64
) -> list[ConcurrencyResult]:
    return follow(lambda measured: choose_concurrency(measured, slo_s, most), replica)


def follow(
    choose: Callable[[Sequence[ConcurrencyResult]], int | None],
    replica: Callable[[int], ConcurrencyResult],
) -> list[ConcurrencyResult]:
    """Measure what `choose` asks for, until it has enough."""
    measured: list[ConcurrencyResult] = []
    while (concurrency := choose(measured)) is not None:
        assert len(measured) < 20
        measured.append(replica(concurrency))
    return measured


def test_it_goes_up_until_the_slo_is_missed_and_looks_once_in_between() -> None:
    measured = ramp(a_replica(1_000, 0.004), slo_s=0.012)
    assert [one.concurrency for one in measured] == [1, 2, 4, 8, 16, 12]
    best = find_best_result(measured, 0.012)
    assert best is not None
    assert (best.requests_per_s, best.latency_p99_s <= 0.012) == (1_000, True)
    assert explain_end(measured, 0.012, 64) == "p99 was 16.0 ms at concurrency 16, above 12 ms"


def test_without_an_slo_it_ends_when_nothing_is_gained() -> None:
    measured = ramp(a_replica(1_000, 0.004), slo_s=None)
    assert [one.concurrency for one in measured] == [1, 2, 4, 8, 16]
    assert explain_end(measured, None, 64) == "throughput rose no more up to concurrency 16"


def test_it_stops_at_the_most_that_is_allowed() -> None:
    measured = ramp(a_replica(1e9, 0.004), slo_s=1.0, most=6)
    assert [one.concurrency for one in measured] == [1, 2, 4, 6]
    assert explain_end(measured, 1.0, 6) == "concurrency 6 is the most that was allowed"


def test_one_that_is_too_slow_alone_has_no_throughput() -> None:
    measured = ramp(a_replica(10, 0.1), slo_s=0.030)
    assert [one.concurrency for one in measured] == [1]
    assert find_best_result(measured, 0.030) is None


def test_errors_end_it_and_count_for_nothing() -> None:
    def failing(concurrency: int) -> ConcurrencyResult:
        return ConcurrencyResult(
            concurrency, 1_000.0 * concurrency, 0.001, 0.001, errors=20 if concurrency > 2 else 0
        )

    measured = ramp(failing, slo_s=0.030)
    assert [one.concurrency for one in measured] == [1, 2, 4, 3]
    best = find_best_result(measured, 0.030)
    assert best is not None
    assert best.concurrency == 2
    assert explain_end(measured, 0.030, 64) == "20 requests failed at concurrency 4"


def joint_ramp(
    replica: Callable[[int], ConcurrencyResult], slo_s: float | None, alone: int
) -> list[ConcurrencyResult]:
    return follow(lambda measured: choose_joint_concurrency(measured, slo_s, alone), replica)


def test_several_replicas_get_less_at_once_until_they_keep_the_slo() -> None:
    assert [one.concurrency for one in joint_ramp(a_replica(1_000, 0.004), 0.012, 12)] == [12]
    assert [one.concurrency for one in joint_ramp(a_replica(500, 0.004), 0.012, 12)] == [12, 6, 9]
    assert [one.concurrency for one in joint_ramp(a_replica(100, 0.004), 0.012, 12)] == [12, 6, 3, 1, 2]
    assert [one.concurrency for one in joint_ramp(a_replica(10, 0.1), 0.030, 2)] == [2, 1]
    assert [one.concurrency for one in joint_ramp(a_replica(10, 0.1), None, 8)] == [8]


@pytest.mark.parametrize(
    ("ready", "counts"), [(2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (1000, [2, 4, 8, 16, 32, 64, 128, 1000])]
)
def test_replicas_are_measured_in_steps_up_to_all_of_them(ready: int, counts: list[int]) -> None:
    assert list_replica_counts(ready) == counts


@given(st.floats(1, 1e5), st.floats(1e-4, 1), st.floats(1e-3, 1), st.integers(1, 1_024))
def test_it_ends_soon_within_its_bounds_and_finds_what_keeps_the_slo(
    limit_per_s: float, each_s: float, slo_s: float, most: int
) -> None:
    measured = ramp(a_replica(limit_per_s, each_s), slo_s, most)
    assert len(measured) <= 13
    assert max(one.concurrency for one in measured) <= most
    best = find_best_result(measured, slo_s)
    assert best is None or best.latency_p99_s <= slo_s
