"""What is asked of each Inference, from looks that may be late, partial or wrong: what is missing is held, and never becomes zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Final

from tidegate.api.meta import ObjectKey

FACTOR: Final = 3.0
"""A rate that rises or falls further than this between two looks has to be seen again before it is believed."""
LEAST_PER_S: Final = 1.0
"""Rates below this count as this much when they are compared: three requests a minute after one are no flood."""
_MOST_PER_S: Final = 1e9
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look said of one Inference, as it was said: it may be NaN, negative or missing (None).

    `offered_per_s`: requests that clients sent, refused ones included and retries not. `served_per_s`: those that a model
    answered. `latency_p99_s`: at the gateway. `queue_s`: mean time in Triton's queue. `busy`: share of the time in which its
    replicas computed, 0 to 1.
    """

    offered_per_s: float | None = None
    served_per_s: float | None = None
    latency_p99_s: float | None = None
    queue_s: float | None = None
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one source of figures, which calls itself `source` in messages.

    `age`: how old the figures are by the source's own clock. `window`: the time that rates are taken over.
    `silent`: gateways of which nothing is in it, so that sums are at least what is said. `failure`: why there is nothing at all.
    """

    source: str
    by_key: Mapping[ObjectKey, Reading]
    window: timedelta
    age: timedelta = timedelta()
    silent: tuple[str, ...] = ()
    failure: str = ""
    missing: str = "no gateway counts its requests"
    """What it means that an Inference is not in it."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What may be relied on for one Inference. `at`: when its offered load was read.

    `fresh`: the last look said this, or at least this. `held`: why it is not what was read, or empty.
    `peak_per_s`: the highest rate of late. The other figures are those of the last look alone; None: it did not say.
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
        """What replicas are to be there for: it rises at once, and falls when nothing as high was asked for a while."""
        return max(self.offered_per_s, self.peak_per_s)


_NONE: Final[Mapping[ObjectKey, Signal]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known after a look. An Inference that is not in it was never heard of: it keeps what it has.

    `problem`: what is wrong with the look as a whole, or empty.
    """

    by_key: Mapping[ObjectKey, Signal] = field(default_factory=lambda: _NONE)
    problem: str = "nothing was read yet"
    window: timedelta = timedelta()
    """How much longer ago than its look a rate or a latency may have been counted."""

    @property
    def fresh(self) -> bool:
        """Whether all that is in it is what the last look said."""
        return not self.problem and all(signal.fresh for signal in self.by_key.values())

    @property
    def message(self) -> str:
        """For a condition: without times and rates, so that it is written when something changed."""
        stale = [key for key, signal in sorted(self.by_key.items()) if not signal.fresh]
        if self.problem or not stale:
            return self.problem or "the figures of all gateways are fresh"
        return f"{_some(map(str, stale))}: {self.by_key[stale[0]].held}"

    def about(self, keys: Iterable[ObjectKey]) -> Signals:
        """The same of some Inferences alone: what is stale elsewhere is not their matter."""
        return Signals(
            {key: self.by_key[key] for key in sorted(set(keys)) if key in self.by_key},
            self.problem,
            self.window,
        )


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A rate that was read but not believed yet, since `at`."""

    offered_per_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Belief:
    """The last good rate of one Inference, when it was read, and what speaks against it."""

    offered_per_s: float
    at: datetime
    suspicion: Suspicion | None = None


Beliefs = Mapping[ObjectKey, Belief]


@dataclass(frozen=True, slots=True)
class Patience:
    """How old figures may be to count as fresh, and for how long a last good rate is held; then the Inference is as one without signals."""

    stale_after: timedelta = timedelta(seconds=90)
    forget_after: timedelta = timedelta(hours=1)


_PATIENCE: Final = Patience()


def estimate(
    beliefs: Beliefs, look: Look, now: datetime, patience: Patience = _PATIENCE
) -> tuple[Signals, Beliefs]:
    """What to rely on after `look`, and what to remember for the next one.

    - Missing, NaN, negative or stale: the last good rate stays, and is not fresh; never heard of: there is no signal.
    - Gateways are silent: the larger of the last good rate and what the others say, since what is missing may be demand.
    - A rise beyond FACTOR is followed as far as FACTOR, and wholly once a look that shares no time with the first sees it too;
      a fall beyond FACTOR is followed when it was seen twice.
    - An Inference that complete looks do not know any more (no route leads to it) is forgotten, not taken for idle.
    """
    blind = _blind(look, patience)
    signals: dict[ObjectKey, Signal] = {}
    after: dict[ObjectKey, Belief] = {}
    for key in sorted(beliefs.keys() | look.by_key.keys()):
        reading = None if blind else look.by_key.get(key)
        rate, problem = _rate(reading, look.missing)
        belief = beliefs.get(key)
        if rate is None:
            complete = reading is None and not blind and not look.silent
            patient = patience.stale_after if complete else patience.forget_after
            if belief is not None and now - belief.at <= patient:
                after[key] = Belief(belief.offered_per_s, belief.at)
                signals[key] = _held(belief, blind or problem)
            continue
        found = _first(rate, look, now) if belief is None else _next(belief, rate, look, now)
        if found is not None and reading is not None:
            after[key], signals[key] = found[0], _with_details(found[1], reading)
    return Signals(signals, blind or _silence(look), look.window), after


def _first(rate: float, look: Look, now: datetime) -> tuple[Belief, Signal] | None:
    """The first thing heard of an Inference; part of a rate says nothing."""
    return None if look.silent else (Belief(rate, now), Signal(rate, now))


def _next(belief: Belief, rate: float, look: Look, now: datetime) -> tuple[Belief, Signal]:
    if look.silent and rate <= belief.offered_per_s:
        return Belief(belief.offered_per_s, belief.at), _held(belief, _silence(look))
    believed, suspicion = _weigh(belief, rate, look.window, now)
    held = ""
    shown = believed
    if suspicion is not None and rate > believed:
        shown = FACTOR * max(believed, LEAST_PER_S)
        held = (
            f"rose to {rate:.4g}/s at once, and is followed to {shown:.4g}/s until another look sees it too"
        )
    elif suspicion is not None:
        held = f"fell to {rate:.4g}/s at once, and is followed when another look sees it too"
    signal = Signal(shown, now, fresh=not look.silent, held=_silence(look) or held)
    return Belief(believed, now, suspicion), signal


def _weigh(belief: Belief, rate: float, window: timedelta, now: datetime) -> tuple[float, Suspicion | None]:
    """What is believed after one more reading of a known rate, and what is not yet."""
    before = belief.offered_per_s
    if _near(rate, before):
        return rate, None
    rises = rate > before
    earlier = belief.suspicion
    if earlier is None or (earlier.offered_per_s > before) is not rises:
        return before, Suspicion(rate, now)
    # As far as all of the looks since then agree.
    seen = min(earlier.offered_per_s, rate) if rises else max(earlier.offered_per_s, rate)
    if now - earlier.at < window:
        return before, Suspicion(seen, earlier.at)
    return (rate, None) if _near(rate, seen) else (seen, Suspicion(rate, now))


def _near(one: float, other: float) -> bool:
    low, high = sorted((max(one, LEAST_PER_S), max(other, LEAST_PER_S)))
    return high <= FACTOR * low


def _rate(reading: Reading | None, missing: str) -> tuple[float | None, str]:
    """The offered rate, or why there is none."""
    if reading is None or reading.offered_per_s is None:
        return None, missing
    rate = reading.offered_per_s
    if not 0 <= rate <= _MOST_PER_S:
        return None, "what was read is no number of requests per second (NaN, negative or beyond all measure)"
    return rate, ""


def _held(belief: Belief, why: str) -> Signal:
    return Signal(belief.offered_per_s, belief.at, fresh=False, held=why)


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


def _blind(look: Look, patience: Patience) -> str:
    """Why nothing of the look can be used, or empty."""
    if look.failure:
        return f"{look.source}: {look.failure}; demand is held at what was known last"
    if look.age > patience.stale_after:
        limit_s = patience.stale_after.total_seconds()
        return f"{look.source}: its figures are more than {limit_s:g} s old; demand is held at what was known last"
    return ""


def _silence(look: Look) -> str:
    if not look.silent:
        return ""
    return f"{look.source}: {_some(look.silent)} says nothing; demand is held at what was known last, or more"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
