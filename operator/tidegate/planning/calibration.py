"""How many requests at once to try next on one replica, and what was found: its throughput within the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_GAIN: Final = 1.05
"""Twice as many at once that bring less than this are one try in vain; two of them, and the replica has no more to give."""
_IN_VAIN: Final = 2


@dataclass(frozen=True, slots=True)
class Inputs:
    """What random requests look like: rows, the length of every other dimension that is free, and the largest whole number."""

    rows: int = 1
    length: int = 1
    largest: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one replica did with `concurrency` requests at once, for a while."""

    concurrency: int
    requests_per_s: float
    latency_p50_s: float
    latency_p99_s: float
    errors: int = 0

    def within(self, slo_s: float | None) -> bool:
        """Whether it answered all, and 99 of 100 within the SLO."""
        return not self.errors and (slo_s is None or self.latency_p99_s <= slo_s)


def next_concurrency(measured: Sequence[Measured], slo_s: float | None, most: int) -> int | None:
    """What to try next: twice as many until the SLO is missed or nothing is gained, then once between the last two; None: done.

    `most` bounds it. The numbers are few on purpose, since each takes seconds of a replica that may serve others.
    """
    if not measured:
        return 1
    tried = {one.concurrency for one in measured}
    good = [one.concurrency for one in measured if one.within(slo_s)]
    bad = [one.concurrency for one in measured if not one.within(slo_s)]
    if bad:
        stepped_back = measured[-1].concurrency < max(tried)
        between = (max(good, default=0) + min(bad)) // 2
        return between if good and not stepped_back and between not in tried else None
    if max(tried) >= most or _flat(measured):
        return None
    return min(max(tried) * 2, most)


def throughput(measured: Sequence[Measured], slo_s: float | None) -> Measured | None:
    """The most that was answered within the SLO; None when even one request at a time was not."""
    return max(
        (one for one in measured if one.within(slo_s)), key=lambda one: one.requests_per_s, default=None
    )


def ended_by(measured: Sequence[Measured], slo_s: float | None, most: int) -> str:
    """Why there was no next one, for a person to read."""
    last = max(measured, key=lambda one: one.concurrency)
    if last.errors:
        return f"{last.errors} requests failed at concurrency {last.concurrency}"
    if slo_s is not None and not last.within(slo_s):
        p99, limit = last.latency_p99_s * 1_000, slo_s * 1_000
        return f"p99 was {p99:.1f} ms at concurrency {last.concurrency}, above {limit:g} ms"
    if _flat(measured):
        return f"throughput rose no more up to concurrency {last.concurrency}"
    return f"concurrency {most} is the most that was allowed" if last.concurrency >= most else "time was up"


def _flat(measured: Sequence[Measured]) -> bool:
    rates = [one.requests_per_s for one in sorted(measured, key=lambda one: one.concurrency)]
    if len(rates) <= _IN_VAIN:
        return False
    return max(rates[-_IN_VAIN:]) < _GAIN * max(rates[:-_IN_VAIN])
