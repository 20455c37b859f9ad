"""Estimate the demand of each Inference from late, partial or wrong scrapes; missing data never becomes zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Final

from tidegate.api.meta import ObjectKey

FACTOR: Final = 3.0
"""A rate that rises or falls by more than this factor between two scrapes needs a confirmation by another scrape."""
LEAST_PER_S: Final = 1.0
"""Lower rates count as this much when they are compared: three requests a minute after one are no surge."""
_MOST_PER_S: Final = 1e9
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of one Inference in one scrape, unchecked: a value may be NaN, negative or missing (None).

    `offered_per_s`: requests that clients sent, including refused ones, without retries. `served_per_s`: those that a
    model answered. `latency_p99_s`: at the gateway. `queue_s`: mean time in Triton's queue. `busy`: share of the time in
    which its replicas computed, 0 to 1.
    """

    offered_per_s: float | None = None
    served_per_s: float | None = None
    latency_p99_s: float | None = None
    queue_s: float | None = None
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One scrape of one source, named `source` in messages.

    `age`: how old the figures are by the source's own clock. `window`: the time that rates are taken over.
    `silent`: gateways that are missing from it, so that its sums are lower bounds. `failure`: why there is no data at all.
    """

    source: str
    by_key: Mapping[ObjectKey, Reading]
    window: timedelta
    age: timedelta = timedelta()
    silent: tuple[str, ...] = ()
    failure: str = ""
    missing: str = "no gateway counts its requests"
    """What it means that an Inference is missing."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The checked metrics of one Inference. `at`: when its offered load was read.

    `fresh`: the last scrape confirms the load, or at least that much. `held`: why it differs from the scrape, or empty.
    `peak_per_s`: the highest recent rate. The other figures are those of the last scrape alone; None if it had none.
    """

    offered_per_s: float
    at: datetime
    fresh: bool = True
    held: str = ""
    peak_per_s: float = 0.0
    served_per_s: float | None = None
    latency_p99_s: float | None = None
    queue_s: float | None = None
    busy: float | None = None

    @property
    def demand_per_s(self) -> float:
        """Return the rate to plan replicas for: it rises at once, and falls after a while without a higher rate."""
        return max(self.offered_per_s, self.peak_per_s)


_NONE: Final[Mapping[ObjectKey, Signal]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Signals:
    """The state after a scrape. An Inference that is missing was never measured: it keeps its replicas.

    `problem`: what is wrong with the scrape as a whole, or empty.
    """

    by_key: Mapping[ObjectKey, Signal] = field(default_factory=lambda: _NONE)
    problem: str = "nothing was read yet"
    window: timedelta = timedelta()
    """The time before a scrape over which rates and latencies are taken."""

    @property
    def fresh(self) -> bool:
        """Return whether the last scrape confirms all of it."""
        return not self.problem and all(signal.fresh for signal in self.by_key.values())

    @property
    def message(self) -> str:
        """Return the message of a condition: without times and rates, so that it changes only with the state."""
        stale = [key for key, signal in sorted(self.by_key.items()) if not signal.fresh]
        if self.problem or not stale:
            return self.problem or "the figures of all gateways are fresh"
        return f"{_some(map(str, stale))}: {self.by_key[stale[0]].held}"

    def about(self, keys: Iterable[ObjectKey]) -> Signals:
        """Return the signals of some Inferences alone, so that stale signals of others do not count."""
        return Signals(
            {key: self.by_key[key] for key in sorted(set(keys)) if key in self.by_key},
            self.problem,
            self.window,
        )


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A rate that was read at `at` and is not confirmed yet."""

    offered_per_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Belief:
    """The last confirmed rate of one Inference, when it was read, and a later rate that differs too much."""

    offered_per_s: float
    at: datetime
    suspicion: Suspicion | None = None


Beliefs = Mapping[ObjectKey, Belief]


@dataclass(frozen=True, slots=True)
class Patience:
    """How old figures may be to count as fresh, and how long the last confirmed rate is held.

    After that the Inference is as one without signals.
    """

    stale_after: timedelta = timedelta(seconds=90)
    forget_after: timedelta = timedelta(hours=1)


_PATIENCE: Final = Patience()


def estimate(
    estimates: Beliefs, scrape: Look, now: datetime, policy: Patience = _PATIENCE
) -> tuple[Signals, Beliefs]:
    """Return the signals after `scrape`, and the estimates to remember for the next one.

    - Missing, NaN, negative or stale: the last confirmed rate stays, and is not fresh. Never measured: there is no signal.
    - Gateways are silent: the larger of the last confirmed rate and the sum of the others, since the missing part may be
      demand.
    - A rise beyond FACTOR is followed as far as FACTOR, and fully once a scrape whose window does not overlap the first
      confirms it; a fall beyond FACTOR is followed when it was read twice.
    - An Inference that complete scrapes do not have any more (no route leads to it) is forgotten, not taken for idle.
    """
    blind = _blind(scrape, policy)
    signals: dict[ObjectKey, Signal] = {}
    after: dict[ObjectKey, Belief] = {}
    for key in sorted(estimates.keys() | scrape.by_key.keys()):
        reading = None if blind else scrape.by_key.get(key)
        rate, problem = _rate(reading, scrape.missing)
        last = estimates.get(key)
        if rate is None:
            complete = reading is None and not blind and not scrape.silent
            limit = policy.stale_after if complete else policy.forget_after
            if last is not None and now - last.at <= limit:
                after[key] = Belief(last.offered_per_s, last.at)
                signals[key] = _held(last, blind or problem)
            continue
        updated = _first(rate, scrape, now) if last is None else _next(last, rate, scrape, now)
        if updated is not None and reading is not None:
            after[key], signals[key] = updated[0], _with_details(updated[1], reading)
    return Signals(signals, blind or _silence(scrape), scrape.window), after


def _first(rate: float, scrape: Look, now: datetime) -> tuple[Belief, Signal] | None:
    """Return the first estimate of an Inference; None for a partial rate, which proves nothing."""
    return None if scrape.silent else (Belief(rate, now), Signal(rate, now))


def _next(last: Belief, rate: float, scrape: Look, now: datetime) -> tuple[Belief, Signal]:
    if scrape.silent and rate <= last.offered_per_s:
        return Belief(last.offered_per_s, last.at), _held(last, _silence(scrape))
    confirmed, unconfirmed = _weigh(last, rate, scrape.window, now)
    held_reason = ""
    shown = confirmed
    if unconfirmed is not None and rate > confirmed:
        shown = FACTOR * max(confirmed, LEAST_PER_S)
        held_reason = (
            f"rose to {rate:.4g}/s at once, and is followed to {shown:.4g}/s until another look sees it too"
        )
    elif unconfirmed is not None:
        held_reason = f"fell to {rate:.4g}/s at once, and is followed when another look sees it too"
    signal = Signal(shown, now, fresh=not scrape.silent, held=_silence(scrape) or held_reason)
    return Belief(confirmed, now, unconfirmed), signal


def _weigh(last: Belief, rate: float, window: timedelta, now: datetime) -> tuple[float, Suspicion | None]:
    """Return the confirmed rate after one more scrape, and the rate that is not confirmed yet."""
    before = last.offered_per_s
    if _near(rate, before):
        return rate, None
    rises = rate > before
    earlier = last.suspicion
    if earlier is None or (earlier.offered_per_s > before) is not rises:
        return before, Suspicion(rate, now)
    # Only as far as all scrapes since then agree.
    agreed = min(earlier.offered_per_s, rate) if rises else max(earlier.offered_per_s, rate)
    if now - earlier.at < window:
        return before, Suspicion(agreed, earlier.at)
    return (rate, None) if _near(rate, agreed) else (agreed, Suspicion(rate, now))


def _near(rate: float, other: float) -> bool:
    low, high = sorted((max(rate, LEAST_PER_S), max(other, LEAST_PER_S)))
    return high <= FACTOR * low


def _rate(reading: Reading | None, missing: str) -> tuple[float | None, str]:
    """Return the offered rate, or why there is none."""
    if reading is None or reading.offered_per_s is None:
        return None, missing
    rate = reading.offered_per_s
    if not 0 <= rate <= _MOST_PER_S:
        return None, "what was read is no number of requests per second (NaN, negative or beyond all measure)"
    return rate, ""


def _held(last: Belief, reason: str) -> Signal:
    return Signal(last.offered_per_s, last.at, fresh=False, held=reason)


def _with_details(signal: Signal, reading: Reading) -> Signal:
    return Signal(
        signal.offered_per_s,
        signal.at,
        fresh=signal.fresh,
        held=signal.held,
        served_per_s=_amount(reading.served_per_s),
        latency_p99_s=_amount(reading.latency_p99_s),
        queue_s=_amount(reading.queue_s),
        busy=None if (busy := _amount(reading.busy)) is None else min(busy, 1.0),
    )


def _amount(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) and value >= 0 else None


def _blind(scrape: Look, policy: Patience) -> str:
    """Explain why nothing of the scrape can be used; empty if it can."""
    if scrape.failure:
        return f"{scrape.source}: {scrape.failure}; demand is held at what was known last"
    if scrape.age > policy.stale_after:
        limit_s = policy.stale_after.total_seconds()
        return f"{scrape.source}: its figures are more than {limit_s:g} s old; demand is held at what was known last"
    return ""


def _silence(scrape: Look) -> str:
    if not scrape.silent:
        return ""
    return f"{scrape.source}: {_some(scrape.silent)} says nothing; demand is held at what was known last, or more"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + rest
