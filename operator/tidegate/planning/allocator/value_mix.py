"""The mix of values in the demand of each Inference, and the value that is offered, served, refused and lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidegate.allocation.snapshot import MIN_VALUE, ValueClass
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import ClassRates, Signal, Signals

_HELD_CHANGE: Final = 0.05
"""A mix that changes by less keeps its figures, so that chance in what clients send moves no replica."""
_MAX_CLASSES: Final = 6
"""Classes per Inference in the solver's input; those of the closest values are merged."""


@dataclass(frozen=True, slots=True)
class ValueMix:
    """What a request of an Inference is worth on average.

    `classes`: the values and their shares, the highest first, where the gateways reject those of low value first; else empty.
    `stated`: the values in the specs that it is made from.
    """

    mean: float
    classes: tuple[ValueClass, ...] = ()
    stated: frozenset[float] = frozenset()


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
        """Return the four rates by name."""
        return {
            "offered": self.offered,
            "served": self.served,
            "refused": self.refused,
            "lost": self.lost,
        }


def update_mixes(before: ValueMixes, inferences: Iterable[Inference], signals: Signals) -> ValueMixes:
    """Return the mixes after one more scrape; a scrape without requests of an Inference leaves its mix as it was."""
    after: dict[ObjectKey, ValueMix] = {}
    for inference in inferences:
        last, signal = before.get(inference.key), signals.by_key.get(inference.key)
        if signal is None or signal.held_reason or not sum(rates.offered_per_s for rates in signal.classes):
            if last is not None and signal is not None:
                after[inference.key] = last
            continue
        mix = compute_mix(_own_value(inference), signal.classes)
        after[inference.key] = last if last is not None and _is_near(last, mix) else mix
    return after


def compute_mix(own_value: float, rates: Sequence[ClassRates]) -> ValueMix:
    """Return the mix of what clients sent; `own_value` is that of requests whose route has none.

    Requests that are not rejected by value make one class of their mean value: it is chance which of them are served.
    """
    offered = [
        (_value_of(own_value, route_rates), route_rates.sheds, route_rates.offered_per_s)
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
    mean = max(_mean_value(classes), MIN_VALUE)
    if len(classes) == 1:
        return ValueMix(mean, stated=stated)
    return ValueMix(mean, tuple(ValueClass(value, rate / total) for value, rate in classes), stated)


def compute_value_rates(inference: Inference, signal: Signal) -> ValueRates | None:
    """Return the value of the last scrape's requests; None if what was served is unknown, or messages wait in a stream."""
    if signal.served_per_s is None or not signal.fresh or inference.spec.nearline is not None:
        return None
    own_value, rates = _own_value(inference), signal.classes

    def mean_of(amounts: Iterable[float], otherwise: float) -> float:
        pairs = [
            (_value_of(own_value, route_rates), amount)
            for route_rates, amount in zip(rates, amounts, strict=True)
        ]
        return _mean_value(pairs) if sum(amount for _, amount in pairs) > 0 else otherwise

    mean = mean_of((route_rates.offered_per_s for route_rates in rates), own_value)
    shed = sum(route_rates.refused_per_s for route_rates in rates)
    shed_value = sum(_value_of(own_value, route_rates) * route_rates.refused_per_s for route_rates in rates)
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


def _value_of(own_value: float, rates: ClassRates) -> float:
    return own_value if rates.value is None else rates.value


def _mean_value(classes: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (value, rate) pairs; exactly the value if there is only one."""
    if len({value for value, rate in classes if rate > 0}) == 1:
        return next(value for value, rate in classes if rate > 0)
    return sum(value * rate for value, rate in classes) / sum(rate for _, rate in classes)


def _merge_into_one(classes: list[tuple[float, float]]) -> list[tuple[float, float]]:
    total = sum(rate for _, rate in classes)
    return [(_mean_value(classes), total)] if total > 0 else []


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


def _is_near(last: ValueMix, mix: ValueMix) -> bool:
    """Return whether two mixes of the same stated values differ by less than _HELD_CHANGE in values and in shares."""
    if last.stated != mix.stated or len(last.classes) != len(mix.classes):
        return False
    pairs = [(last.mean, mix.mean)]
    pairs += [(old.value, new.value) for old, new in zip(last.classes, mix.classes, strict=True)]
    return all(abs(new - old) <= _HELD_CHANGE * old for old, new in pairs) and all(
        abs(new.share - old.share) <= _HELD_CHANGE for old, new in zip(last.classes, mix.classes, strict=True)
    )
