"""Express the latency objective of spec.slo as shares of Envoy's latency buckets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OBJECTIVE: Final = 0.99
"""The share of requests that must be answered within spec.slo.latencyP99."""

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
"""Upper bounds of Envoy's default histogram buckets."""


def compute_bucket_shares(seconds: float) -> Mapping[str, float]:
    """Return factors of the cumulative buckets whose weighted sum is the number of requests within `seconds`.

    Keys are bounds in milliseconds, as Envoy writes them. Requests count as spread evenly between two bounds, like in
    histogram_quantile: the sum is 99 of 100 exactly if histogram_quantile returns a p99 of `seconds`.
    Above the last bound, all requests count.
    """
    milliseconds = seconds * 1000
    above = next((bound for bound in BOUNDS_MS if bound >= milliseconds), None)
    if above is None:
        return {"+Inf": 1.0}
    below = max((bound for bound in BOUNDS_MS if bound < milliseconds), default=0.0)
    share = (milliseconds - below) / (above - below)
    shares = {_format_bound(above): share}
    if below and share < 1:
        shares[_format_bound(below)] = 1 - share
    return shares


def _format_bound(bound: float) -> str:
    return f"{bound:.32g}"
