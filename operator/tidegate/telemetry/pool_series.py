"""What Prometheus keeps of a pool: the names of the series, the question for them over a while, and how its answer is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class PoolSeries(StrEnum):
    """Gauges of the controllers, each with the label `pool`."""

    COUNTED = "tidegate_pool_slices"
    """With the label `state`: healthy and free, among others."""
    SLICES = "tidegate_pool_tier_slices"
    """With the label `tier`; so WANTED, DEMAND, SERVABLE and UNKNOWN."""
    PRICE = "tidegate_pool_slice_price"
    WANTED = "tidegate_pool_wanted_slices"
    SHARED_OUT = "tidegate_pool_shared_out_slices"
    DEMAND = "tidegate_pool_demand_requests_per_second"
    SERVABLE = "tidegate_pool_servable_requests_per_second"
    UNKNOWN = "tidegate_pool_demand_unknown"


@dataclass(frozen=True, slots=True)
class Moment:
    """What was known of one pool at one time."""

    at: datetime
    values: Mapping[tuple[PoolSeries, str], float]
    """By series, and by tier or state; empty where the series has neither."""

    def of(self, series: PoolSeries, what: str = "") -> float | None:
        """One value, of a tier or a state; None where Prometheus has none."""
        return self.values.get((series, what))


def question(pool: str) -> str:
    """All series of a pool in one answer; of two controllers that both led within a scrape, one counts."""
    names = "|".join(PoolSeries)
    return f'max by (__name__, tier, state) ({{__name__=~"{names}",pool="{pool}"}})'


def moments(answer: Sequence[Mapping[str, Any]]) -> tuple[Moment, ...]:
    """An answer over a range, the oldest first. Raises ValueError, KeyError or TypeError for what is none."""
    found: dict[float, dict[tuple[PoolSeries, str], float]] = {}
    for series in answer:
        labels: Mapping[str, str] = series["metric"]
        key = PoolSeries(labels["__name__"]), labels.get("tier") or labels.get("state", "")
        for at, text in series["values"]:
            value = float(text)
            if math.isfinite(value):
                found.setdefault(float(at), {})[key] = value
    return tuple(Moment(datetime.fromtimestamp(at, UTC), found[at]) for at in sorted(found))
