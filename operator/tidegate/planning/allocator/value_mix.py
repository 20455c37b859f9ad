"""The mix of values in the demand of each Inference, and the value that is offered, served, refused and lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from math import exp, sqrt
from typing import Final

from tidegate.allocation.snapshot import MIN_VALUE, ValueClass
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.access.value_classes import add_rest, average_value
from tidegate.planning.allocator.signals import ClassRates, Signal, Signals

_HELD_CHANGE: Final = 0.05
"""A mix keeps its figures until it moves by more than this part of its mean, so that no replica moves for less."""
_CHANCE: Final = 2.0
"""And by more than this many standard errors of the mean."""
_MEMORY_S: Final = 300.0
"""Time in which requests lose all but 1/e of their weight in the mix."""
_LEAST_REQUESTS: Final = 100.0
"""Requests that the mix is made from at least, however old."""
_LEAST_SHARE: Final = 1e-4
"""A class of a smaller share of the requests is dropped."""
_FIRST_S: Final = 15.0
"""Interval that is assumed before the first scrape."""
_MAX_CLASSES: Final = 6
"""Classes per Inference in the solver's input; those of the closest values are merged."""


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """Requests until the scrape of `read_at`, weighted by age.

    `by_class`: those of routes by value and `sheds`. `unrouted`: the others; may be negative, as answers come after requests.
    """

    read_at: datetime
    by_class: Mapping[tuple[float | None, bool], float]
    unrouted: float

    @property
    def request_count(self) -> float:
        """Return how many there are."""
        return sum(self.by_class.values()) + max(self.unrouted, 0.0)

    @property
    def class_rates(self) -> Sequence[ClassRates]:
        """Return them as classes, without those of next to no requests."""
        threshold = _LEAST_SHARE * self.request_count
        return (
            *(
                ClassRates(value, sheds, count if count >= threshold else 0.0)
                for (value, sheds), count in self.by_class.items()
            ),
            ClassRates(offered_per_s=max(self.unrouted, 0.0)),
        )


@dataclass(frozen=True, slots=True)
class ValueMix:
    """What a request of an Inference is worth on average.

    `classes`: the values and their shares, the highest first, where the gateways reject those of low value first; else empty.
    `stated`: the values in the specs that it is made from. `recent`: the requests that the next mix starts from.
    """

    mean: float
    classes: tuple[ValueClass, ...] = ()
    stated: frozenset[float] = frozenset()
    recent: RecentRequests | None = field(default=None, compare=False, repr=False)


ValueMixes = Mapping[ObjectKey, ValueMix]


@dataclass(frozen=True, slots=True)
class ValueRates:
    """Value per second of the requests that clients sent.

    `served`: a model answered them. `refused`: a limit or admission control refused them. `lost`: failed or unanswered.
    """

    offered: float
    served: float
    refused: float
    lost: float

    @property
    def by_outcome(self) -> Mapping[str, float]:
        """Return what became of the offered value."""
        return {"served": self.served, "refused": self.refused, "lost": self.lost}


def update_mixes(before: ValueMixes, inferences: Iterable[Inference], signals: Signals) -> ValueMixes:
    """Return the mixes of the last minutes after one more scrape; without any request of an Inference there is none."""
    after: dict[ObjectKey, ValueMix] = {}
    for inference in inferences:
        last, signal = before.get(inference.key), signals.by_key.get(inference.key)
        if signal is None or signal.held_reason:
            if last is not None and signal is not None:
                after[inference.key] = last
            continue
        recent = _add_scrape(last.recent if last is not None else None, signal)
        if recent.request_count > 0:
            mix = compute_mix(_own_value(inference), recent.class_rates)
            next_mix = (
                last if last is not None and _is_near(last, mix, _own_value(inference), recent) else mix
            )
            after[inference.key] = replace(next_mix, recent=recent)
    return after


def compute_mix(own_value: float, rates: Sequence[ClassRates]) -> ValueMix:
    """Return the mix of what clients sent; `own_value` is that of requests whose route has none.

    Requests that are not rejected by value make one class of their mean value: it is chance which of them are served.
    """
    offered = [
        (route_rates.value_or(own_value), route_rates.sheds, route_rates.offered_per_s)
        for route_rates in rates
    ]
    stated = frozenset(value for value, _, _ in offered)
    total = sum(rate for _, _, rate in offered)
    if total <= 0:
        return ValueMix(max(own_value, MIN_VALUE))
    classes = _merge_values(
        [(value, rate) for value, sheds, rate in offered if sheds]
        + _merge_into_one([(value, rate) for value, sheds, rate in offered if not sheds])
    )
    mean = max(average_value(classes, own_value), MIN_VALUE)
    if len(classes) == 1:
        return ValueMix(mean, stated=stated)
    return ValueMix(mean, tuple(ValueClass(value, rate / total) for value, rate in classes), stated)


def compute_value_rates(inference: Inference, signal: Signal) -> ValueRates | None:
    """Return the value of the last scrape's requests.

    None if what was offered or served is unknown or not confirmed yet, or if the Inference is near-line.
    """
    is_confirmed = signal.fresh and not signal.held_reason
    if signal.served_per_s is None or not is_confirmed or inference.spec.nearline is not None:
        return None
    own_value = _own_value(inference)
    rates = add_rest(signal.classes, signal.offered_per_s, signal.served_per_s)

    def mean_of(amounts: Iterable[float], otherwise: float) -> float:
        values = (route_rates.value_or(own_value) for route_rates in rates)
        return average_value(zip(values, amounts, strict=True), otherwise)

    mean = mean_of((route_rates.offered_per_s for route_rates in rates), own_value)
    shed = sum(route_rates.refused_per_s for route_rates in rates)
    shed_value = sum(route_rates.value_or(own_value) * route_rates.refused_per_s for route_rates in rates)
    admitted = mean_of(
        (max(route_rates.offered_per_s - route_rates.refused_per_s, 0.0) for route_rates in rates), mean
    )
    offered = signal.offered_per_s * mean
    served = signal.served_per_s * mean_of((route_rates.served_per_s for route_rates in rates), mean)
    refused = shed_value + max((signal.refused_per_s or 0.0) - shed, 0.0) * admitted
    return ValueRates(offered, served, refused, max(offered - served - refused, 0.0))


def measure_values(inferences: Iterable[Inference], signals: Signals) -> Mapping[str, ValueRates]:
    """Return the value per second of each Inference whose requests were measured, by namespace/name."""
    measured: dict[str, ValueRates] = {}
    for inference in inferences:
        signal = signals.by_key.get(inference.key)
        rates = None if signal is None else compute_value_rates(inference, signal)
        if rates is not None:
            measured[str(inference.key)] = rates
    return measured


def sum_value_rates(rates: Iterable[ValueRates]) -> ValueRates:
    """Return the sums."""
    listed = tuple(rates)
    return ValueRates(
        sum(value_rates.offered for value_rates in listed),
        sum(value_rates.served for value_rates in listed),
        sum(value_rates.refused for value_rates in listed),
        sum(value_rates.lost for value_rates in listed),
    )


def _own_value(inference: Inference) -> float:
    return float(inference.spec.value.per_request)


def _add_scrape(last: RecentRequests | None, signal: Signal) -> RecentRequests:
    """Return the requests with those of a scrape; a class that it does not have is of no route any more."""
    seconds = _FIRST_S if last is None else max((signal.read_at - last.read_at).total_seconds(), 0.0)
    decay = exp(-seconds / _MEMORY_S)
    weight = _MEMORY_S * (1 - decay)
    by_class: dict[tuple[float | None, bool], float] = {}
    for rates in signal.classes:
        kind = rates.value, rates.sheds
        by_class[kind] = by_class.get(kind, 0.0) + rates.offered_per_s * weight
    unrouted = signal.offered_per_s * weight - sum(by_class.values())
    if last is None:
        return RecentRequests(signal.read_at, by_class, unrouted)
    if last.request_count > 0:
        decay = max(decay, min((_LEAST_REQUESTS - signal.offered_per_s * weight) / last.request_count, 1.0))
    return RecentRequests(
        signal.read_at,
        {kind: count + decay * last.by_class.get(kind, 0.0) for kind, count in by_class.items()},
        unrouted + decay * last.unrouted,
    )


def _merge_into_one(classes: list[tuple[float, float]]) -> list[tuple[float, float]]:
    total = sum(rate for _, rate in classes)
    return [(average_value(classes, 0.0), total)] if total > 0 else []


def _merge_values(classes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return (value, rate) pairs with distinct values, the highest first, at most _MAX_CLASSES."""
    rates: dict[float, float] = {}
    for value, rate in classes:
        rates[value] = rates.get(value, 0.0) + rate
    merged = sorted(((value, rate) for value, rate in rates.items() if rate > 0), reverse=True)
    while len(merged) > _MAX_CLASSES:
        gaps = [high[0] - low[0] for high, low in pairwise(merged)]
        closest = gaps.index(min(gaps))
        merged[closest : closest + 2] = _merge_into_one(merged[closest : closest + 2])
    return merged


def _is_near(last: ValueMix, mix: ValueMix, own_value: float, recent: RecentRequests) -> bool:
    """Return whether two mixes of the same stated values differ by next to nothing, or by what chance explains."""
    if last.stated != mix.stated:
        return False
    values = [(rates.value_or(own_value), rates.offered_per_s) for rates in recent.class_rates]
    total = sum(count for _, count in values)
    error = sqrt(sum(count * (value - mix.mean) ** 2 for value, count in values)) / total
    return _measure_change(last, mix) <= max(_HELD_CHANGE * last.mean, _CHANCE * error)


def _measure_change(last: ValueMix, mix: ValueMix) -> float:
    """Return how far a request's value moves on average from one mix to the other."""
    steps = sorted(
        (value, sign * share)
        for sign, each_mix in ((1.0, last), (-1.0, mix))
        for value, share in (
            [(step.value, step.share) for step in each_mix.classes] or [(each_mix.mean, 1.0)]
        )
    )
    moved = change = 0.0
    for (value, share), (following, _) in pairwise(steps):
        moved += share
        change += abs(moved) * (following - value)
    return change
