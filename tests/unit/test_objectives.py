"""Objectives as shares of buckets: the same as a quantile between bounds, whatever the bound."""

from __future__ import annotations

import pytest

from tidegate.telemetry.objectives import BOUNDS_MS, compute_bucket_shares


@pytest.mark.parametrize(
    ("seconds", "shares"),
    [
        (0.025, {"25": 1.0}),
        (0.030, {"50": 0.2, "25": 0.8}),
        (0.0002, {"0.5": 0.4}),
        (0.00075, {"1": 0.5, "0.5": 0.5}),
        (3600, {"3600000": 1.0}),
        (3601, {"+Inf": 1.0}),
    ],
    ids=["on-a-bound", "between", "below-the-first", "small", "the-last", "beyond"],
)
def test_shares(seconds: float, shares: dict[str, float]) -> None:
    assert compute_bucket_shares(seconds) == pytest.approx(shares)


def test_requests_spread_evenly_are_within_in_proportion() -> None:
    counts = {f"{bound:.32g}": float(bound) for bound in BOUNDS_MS}  # one request for each millisecond
    within = sum(share * counts[bound] for bound, share in compute_bucket_shares(0.040).items())
    assert within == pytest.approx(40)
