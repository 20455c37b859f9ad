"""The test behind every check: whoever looks all the time is fooled no more often than promised, and bad shares are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.examples import examples
from tidegate.planning.access.sequential_test import compute_share_bounds, spend_alpha

ALPHA = 0.05
RUNS = examples(400)


def first_alarm(
    random: np.random.Generator, share: float, limit: float, alpha: float, looks: int
) -> int | None:
    """After how many requests the lower bound is above the limit, looking after every 20; None: never."""
    failures = np.cumsum(random.random(20 * looks) < share)
    for look in range(1, looks + 1):
        requests = 20 * look
        if compute_share_bounds(int(failures[requests - 1]), requests, alpha).low > limit:
            return requests
    return None


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3])
def test_looking_all_the_time_is_fooled_no_more_often_than_promised(share: float) -> None:
    random = np.random.default_rng(1)
    alarms = sum(first_alarm(random, share, share, ALPHA, looks=100) is not None for _ in range(RUNS))
    # Three standard deviations above what is promised.
    assert alarms <= RUNS * ALPHA + 3 * (RUNS * ALPHA * (1 - ALPHA)) ** 0.5


@pytest.mark.parametrize(
    ("share", "limit", "requests"), [(0.02, 0.001, 600), (0.5, 0.01, 40), (0.02, 0.01, 8000)]
)
def test_a_bad_share_is_found_soon(share: float, limit: float, requests: int) -> None:
    random = np.random.default_rng(2)
    found = [first_alarm(random, share, limit, 0.001, looks=requests // 20) for _ in range(RUNS // 4)]
    assert sum(first is not None for first in found) >= 0.9 * len(found)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(1e-9, 0.5))
def test_bounds_surround_what_was_seen(failures: int, successes: int, alpha: float) -> None:
    requests = failures + successes
    bounds = compute_share_bounds(failures, requests, alpha)
    assert 0 <= bounds.low <= bounds.high <= 1
    if requests:
        assert bounds.low <= failures / requests <= bounds.high


@given(st.integers(0, 500), st.integers(0, 500))
def test_more_doubt_is_wider(failures: int, successes: int) -> None:
    bold, careful = (compute_share_bounds(failures, failures + successes, alpha) for alpha in (0.1, 0.001))
    assert careful.low <= bold.low <= bold.high <= careful.high


def test_a_few_failures_by_luck_prove_nothing() -> None:
    assert compute_share_bounds(3, 100, 0.001).low < 0.001
    assert compute_share_bounds(1, 1, 0.001).low < 0.001


def test_an_endless_row_of_tests_spends_no_more_than_it_has() -> None:
    assert sum(spend_alpha(ALPHA, number) for number in range(1, 10_000)) <= ALPHA
