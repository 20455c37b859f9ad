"""Estimate the demand of each Inference from late, partial or wrong scrapes; missing data never becomes zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from tidegate.allocation.errors import MAX_AMOUNT
from tidegate.api.meta import ObjectKey

CONFIRM_FACTOR: Final = 3.0
"""A rate that rises or falls by more than this factor between two scrapes needs a confirmation by another scrape."""
MIN_COMPARED_PER_S: Final = 1.0
"""Lower rates count as this much when they are compared: three requests a minute after one are no surge."""
MAX_RATE_PER_S: Final = 1e9
"""A higher rate counts as missing."""
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ClassRates:
    """Requests per second of one value, as counted by routes: offered, served by a model, refused by admission control.

    `value` None: the value in the Inference's spec. `sheds`: gateways reject requests of low value first.
    """

    value: float | None = None
    sheds: bool = False
    offered_per_s: float = 0.0
    served_per_s: float = 0.0
    refused_per_s: float = 0.0

    def value_or(self, own_value: float) -> float:
        """Return the value of a request; `own_value` is that of the Inference."""
        return own_value if self.value is None else self.value


@dataclass(frozen=True, slots=True)
class InferenceMetrics:
    """The metrics of one Inference in one scrape, unchecked: a value may be NaN, negative or missing (None).

    `offered_per_s`: requests that clients sent, including refused ones, without retries. `served_per_s`: requests that a
    model answered. `latency_p99_s`: at the gateway. `queue_s`: mean time in Triton's queue. `busy`: share of the time in
    which its replicas computed, 0 to 1. `refused_per_s`: requests that a limit or admission control refused.
    `classes`: the rates by value of the requests, if known. `backlog`: messages of a stream that are pending or in flight.
    """

    offered_per_s: float | None = None
    served_per_s: float | None = None
    latency_p99_s: float | None = None
    queue_s: float | None = None
    busy: float | None = None
    refused_per_s: float | None = None
    classes: tuple[ClassRates, ...] = ()
    backlog: float | None = None


@dataclass(frozen=True, slots=True)
class MetricsScrape:
    """One scrape of one source, named `source` in messages.

    `age`: how old the figures are by the source's own clock. `window`: the time over which rates are computed.
    `silent_gateways`: gateways without a response; without them, sums are lower bounds. `failure`: why there is no data at all.
    """

    source: str
    by_key: Mapping[ObjectKey, InferenceMetrics]
    window: timedelta
    age: timedelta = timedelta()
    silent_gateways: tuple[str, ...] = ()
    failure: str = ""
    missing: str = "no gateway counts its requests"
    """Why an Inference may be missing, for messages."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The checked metrics of one Inference. `read_at`: when its offered load was read.

    `fresh`: the last scrape confirms this load or more. `held_reason`: why the load differs from the scrape, or empty.
    `peak_per_s`: the highest recent rate. The other figures are from the last scrape alone; None if it has no such figure.
    """

    offered_per_s: float
    read_at: datetime
    fresh: bool = True
    held_reason: str = ""
    peak_per_s: float = 0.0
    served_per_s: float | None = None
    latency_p99_s: float | None = None
    queue_s: float | None = None
    busy: float | None = None
    refused_per_s: float | None = None
    classes: tuple[ClassRates, ...] = ()
    backlog: float | None = None

    @property
    def demand_per_s(self) -> float:
        """Return the rate to plan replicas for: it rises at once, and falls once the peak is older than the stabilization window."""
        return max(self.offered_per_s, self.peak_per_s)


_NONE: Final[Mapping[ObjectKey, Signal]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Signals:
    """The state after a scrape. An Inference that is missing was never measured: it keeps its replicas.

    `problem`: why no figure of the scrape can be used, or empty.
    """

    by_key: Mapping[ObjectKey, Signal] = field(default_factory=lambda: _NONE)
    problem: str = "nothing was read yet"
    window: timedelta = timedelta()
    """The time before a scrape over which rates and latencies are computed."""

    @property
    def all_fresh(self) -> bool:
        """Return whether the last scrape confirms every signal."""
        return not self.problem and all(signal.fresh for signal in self.by_key.values())

    @property
    def message(self) -> str:
        """Return the message of a condition: without times and rates, so that it changes only with the state."""
        stale = [key for key, signal in sorted(self.by_key.items()) if not signal.fresh]
        if self.problem or not stale:
            return self.problem or "the figures of all gateways are fresh"
        return f"{_join_names(map(str, stale))}: {self.by_key[stale[0]].held_reason}"

    def select_inferences(self, keys: Iterable[ObjectKey]) -> Signals:
        """Return the signals of some Inferences alone, so that stale signals of other Inferences have no effect."""
        return Signals(
            {key: self.by_key[key] for key in sorted(set(keys)) if key in self.by_key},
            self.problem,
            self.window,
        )


@dataclass(frozen=True, slots=True)
class UnconfirmedRate:
    """A rate that was read at `read_at` and is not confirmed yet."""

    offered_per_s: float
    read_at: datetime


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """The last confirmed rate of one Inference, when it was read, and a later rate that needs confirmation."""

    offered_per_s: float
    read_at: datetime
    unconfirmed: UnconfirmedRate | None = None


RateEstimates = Mapping[ObjectKey, RateEstimate]


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """How old figures may be to count as fresh, and how long the last confirmed rate is held.

    After that the Inference counts as never measured.
    """

    stale_after: timedelta = timedelta(seconds=90)
    forget_after: timedelta = timedelta(hours=1)


_DEFAULT_POLICY: Final = StalenessPolicy()


def estimate_signals(
    estimates: RateEstimates, scrape: MetricsScrape, now: datetime, policy: StalenessPolicy = _DEFAULT_POLICY
) -> tuple[Signals, RateEstimates]:
    """Return the signals after `scrape`, and the estimates to remember for the next one.

    - Missing, NaN, negative or stale: the last confirmed rate stays, and is not fresh. Never measured: there is no signal.
    - Gateways are silent: the larger of the last confirmed rate and the sum of the others, since the missing part may be
      demand.
    - A rise beyond CONFIRM_FACTOR is followed up to that factor, and fully once a scrape whose window does not overlap
      the first confirms it; a fall beyond CONFIRM_FACTOR is followed when it was read twice.
    - An Inference that is missing in a complete scrape (no route leads to it any more) is forgotten, not assumed to be idle.
    """
    blind = _explain_unusable(scrape, policy)
    signals: dict[ObjectKey, Signal] = {}
    after: dict[ObjectKey, RateEstimate] = {}
    for key in sorted(estimates.keys() | scrape.by_key.keys()):
        reading = None if blind else scrape.by_key.get(key)
        rate, problem = _check_rate(reading, scrape.missing)
        last = estimates.get(key)
        if rate is None:
            complete = reading is None and not blind and not scrape.silent_gateways
            limit = policy.stale_after if complete else policy.forget_after
            if last is not None and now - last.read_at <= limit:
                after[key] = RateEstimate(last.offered_per_s, last.read_at)
                signals[key] = _hold_rate(last, blind or problem)
            continue
        updated = (
            _start_estimate(rate, scrape, now) if last is None else _update_estimate(last, rate, scrape, now)
        )
        if updated is not None and reading is not None:
            after[key], signals[key] = updated[0], _add_details(updated[1], reading)
    return Signals(signals, blind or _explain_silence(scrape), scrape.window), after


def _start_estimate(rate: float, scrape: MetricsScrape, now: datetime) -> tuple[RateEstimate, Signal] | None:
    """Return the first estimate of an Inference; None for a partial rate, which proves nothing."""
    return None if scrape.silent_gateways else (RateEstimate(rate, now), Signal(rate, now))


def _update_estimate(
    last: RateEstimate, rate: float, scrape: MetricsScrape, now: datetime
) -> tuple[RateEstimate, Signal]:
    if scrape.silent_gateways and rate <= last.offered_per_s:
        return RateEstimate(last.offered_per_s, last.read_at), _hold_rate(last, _explain_silence(scrape))
    confirmed, unconfirmed = _confirm_rate(last, rate, scrape.window, now)
    held_reason = ""
    shown = confirmed
    if unconfirmed is not None and rate > confirmed:
        shown = CONFIRM_FACTOR * max(confirmed, MIN_COMPARED_PER_S)
        held_reason = (
            f"rose to {rate:.4g}/s at once, and is followed to {shown:.4g}/s until another look sees it too"
        )
    elif unconfirmed is not None:
        held_reason = f"fell to {rate:.4g}/s at once, and is followed when another look sees it too"
    signal = Signal(
        shown, now, fresh=not scrape.silent_gateways, held_reason=_explain_silence(scrape) or held_reason
    )
    return RateEstimate(confirmed, now, unconfirmed), signal


def _confirm_rate(
    last: RateEstimate, rate: float, window: timedelta, now: datetime
) -> tuple[float, UnconfirmedRate | None]:
    """Return the confirmed rate after one more scrape, and the rate that is not confirmed yet."""
    before = last.offered_per_s
    if _is_near(rate, before):
        return rate, None
    rises = rate > before
    earlier = last.unconfirmed
    if earlier is None or (earlier.offered_per_s > before) is not rises:
        return before, UnconfirmedRate(rate, now)
    # Only as far as all scrapes since then agree.
    agreed = min(earlier.offered_per_s, rate) if rises else max(earlier.offered_per_s, rate)
    if now - earlier.read_at < window:
        return before, UnconfirmedRate(agreed, earlier.read_at)
    return (rate, None) if _is_near(rate, agreed) else (agreed, UnconfirmedRate(rate, now))


def _is_near(rate: float, other: float) -> bool:
    low, high = sorted((max(rate, MIN_COMPARED_PER_S), max(other, MIN_COMPARED_PER_S)))
    return high <= CONFIRM_FACTOR * low


def _check_rate(reading: InferenceMetrics | None, missing: str) -> tuple[float | None, str]:
    """Return the offered rate, or why there is none."""
    if reading is None or reading.offered_per_s is None:
        return None, missing
    rate = reading.offered_per_s
    if not 0 <= rate <= MAX_RATE_PER_S:
        return None, "what was read is no number of requests per second (NaN, negative or beyond all measure)"
    return rate, ""


def _hold_rate(last: RateEstimate, reason: str) -> Signal:
    return Signal(last.offered_per_s, last.read_at, fresh=False, held_reason=reason)


def _add_details(signal: Signal, reading: InferenceMetrics) -> Signal:
    return Signal(
        signal.offered_per_s,
        signal.read_at,
        fresh=signal.fresh,
        held_reason=signal.held_reason,
        served_per_s=_check_amount(reading.served_per_s),
        latency_p99_s=_check_amount(reading.latency_p99_s),
        queue_s=_check_amount(reading.queue_s),
        busy=None if (busy := _check_amount(reading.busy)) is None else min(busy, 1.0),
        refused_per_s=_check_amount(reading.refused_per_s),
        classes=tuple(rates for rates in reading.classes if _is_measured(rates)),
        backlog=_check_amount(reading.backlog),
    )


def _is_measured(rates: ClassRates) -> bool:
    amounts = rates.offered_per_s, rates.served_per_s, rates.refused_per_s
    return all(0 <= amount <= MAX_RATE_PER_S for amount in amounts)


def _check_amount(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_AMOUNT else None


def _explain_unusable(scrape: MetricsScrape, policy: StalenessPolicy) -> str:
    """Explain why no figure of the scrape can be used; empty if they can."""
    if scrape.failure:
        return f"{scrape.source}: {scrape.failure}; demand is held at what was known last"
    if scrape.age > policy.stale_after:
        limit_s = policy.stale_after.total_seconds()
        return f"{scrape.source}: its figures are more than {limit_s:g} s old; demand is held at what was known last"
    return ""


def _explain_silence(scrape: MetricsScrape) -> str:
    if not scrape.silent_gateways:
        return ""
    return f"{scrape.source}: {_join_names(scrape.silent_gateways)} says nothing; demand is held at what was known last, or more"


def _join_names(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + rest
