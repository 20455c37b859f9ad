"""What spec.slo promises, in terms of the gateways' counters: which part of which bucket of latencies is within it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OBJECTIVE: Final = 0.99
"""spec.slo.latencyP99 is the time within which 99 of 100 requests are answered."""

BOUNDS_MS: Final = (
    0.5,
    1,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1000,
    2500,
    5000,
    10000,
    30000,
    60000,
    300000,
    600000,
    1800000,
    3600000,
)
"""Upper bounds of the buckets in which Envoy counts times, unless its bootstrap says otherwise."""


def bucket_shares(seconds: float) -> Mapping[str, float]:
    """What to multiply the cumulative buckets with so that their sum is the number of requests within `seconds`.

    By bound in milliseconds, as Envoy writes it. Between two bounds requests count as spread evenly, as histogram_quantile
    has them: the sum is 99 of 100 exactly when that says that the p99 is `seconds`. Above the last bound, everything counts.
    """
    milliseconds = seconds * 1000
    above = next((bound for bound in BOUNDS_MS if bound >= milliseconds), None)
    if above is None:
        return {"+Inf": 1.0}
    below = max((bound for bound in BOUNDS_MS if bound < milliseconds), default=0.0)
    share = (milliseconds - below) / (above - below)
    shares = {_named(above): share}
    if below and share < 1:
        shares[_named(below)] = 1 - share
    return shares


def _named(bound: float) -> str:
    return f"{bound:.32g}"
