"""Capacity curves: how many requests per second n replicas serve at the SLO; concave, fitted from calibration, corrected online.

More replicas never serve less, and each serves no more than the one before it, since co-runners share memory bandwidth.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isclose
from statistics import median
from typing import Final

from tidegate.allocation.errors import InvalidInputError, check_amount, check_count

_ROUNDING: Final = 1e-9
_MOST_REPLICAS: Final = 1e9
"""Beyond that no number of replicas is one."""
LEAST_FACTOR: Final = 0.5
MOST_FACTOR: Final = 1.5
_STEP: Final = 0.2
_HALF_LIFE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Points (replicas, requests per second), concave from (0, 0); beyond the last the last slope goes on.

    Raises InvalidInputError for points that do not rise, or that rise faster later on.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidInputError("curve.points", "is empty; give at least one measured point")
        before, slope = (0, 0.0), float("inf")
        for number, point in enumerate(self.points):
            path = f"curve.points[{number}]"
            check_count(f"{path}.replicas", point[0], least=before[0] + 1)
            check_amount(f"{path}.perSecond", point[1], least=before[1])
            rise = (point[1] - before[1]) / (point[0] - before[0])
            if rise > slope and not isclose(rise, slope, rel_tol=1e-6):
                raise InvalidInputError(
                    path, f"rises by {rise:g} per replica after {slope:g}; fit the points first"
                )
            before, slope = point, rise

    def at(self, replicas: int) -> float:
        """Requests per second with so many replicas."""
        low, below = 0, 0.0
        for high, above in self.points:
            if replicas <= high:
                return below + (above - below) * (replicas - low) / (high - low)
            low, below = high, above
        return below + self.last_slope * (replicas - low)

    def needed(self, per_second: float) -> int | None:
        """The fewest replicas that serve so many requests per second; None when no number does."""
        low, below = 0, 0.0
        for high, above in self.points:
            if per_second <= above:
                return low + _whole((per_second - below) * (high - low), above - below)
            low, below = high, above
        slope, left = self.last_slope, per_second - below
        return low + _whole(left, slope) if slope > 0 and left <= slope * _MOST_REPLICAS else None

    @property
    def last_slope(self) -> float:
        """Requests per second that each replica beyond the last point adds."""
        before, last = ((0, 0.0), *self.points)[-2:]
        return _slope(before, last)

    def scaled(self, factor: float) -> CapacityCurve:
        """The same curve, `factor` times as high."""
        return CapacityCurve(tuple((replicas, rate * factor) for replicas, rate in self.points))

    def serialised(self) -> list[dict[str, float]]:
        """As objects of the API carry it: `[{replicas, perSecond}]`."""
        return [{"replicas": replicas, "perSecond": rate} for replicas, rate in self.points]

    @classmethod
    def parse(cls, points: Iterable[Mapping[str, float]]) -> CapacityCurve:
        """What `serialised` gave. Raises InvalidInputError."""
        try:
            pairs = tuple((int(point["replicas"]), float(point["perSecond"])) for point in points)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                "curve.points", f"want replicas and perSecond in each: {error!r}"
            ) from error
        return cls(pairs)


def linear(per_replica: float) -> CapacityCurve:
    """Each replica serves as much as every other."""
    return CapacityCurve(((1, per_replica),))


def fit(measured: Iterable[tuple[int, float]]) -> CapacityCurve:
    """The curve through calibration points: the median of each number of replicas, made monotone, under its concave hull.

    A point below the line between its neighbours is a bad measurement or a warm-up: the hull leaves it out.
    Raises InvalidInputError when nothing was measured, or a measurement is no amount.
    """
    by_replicas: dict[int, list[float]] = {}
    for number, (replicas, rate) in enumerate(measured):
        check_count(f"measured[{number}].replicas", replicas, least=1)
        check_amount(f"measured[{number}].perSecond", rate)
        by_replicas.setdefault(replicas, []).append(rate)
    hull: list[tuple[int, float]] = [(0, 0.0)]
    highest = 0.0
    for replicas in sorted(by_replicas):
        highest = max(highest, median(by_replicas[replicas]))
        while len(hull) > 1 and _slope(hull[-1], (replicas, highest)) >= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append((replicas, highest))
    return CapacityCurve(tuple(hull[1:]))


@dataclass(frozen=True, slots=True)
class Observation:
    """What was served within the SLO by `replicas` ready ones; `saturated`: more was offered than that."""

    replicas: int
    per_second: float
    saturated: bool


@dataclass(frozen=True, slots=True)
class Correction:
    """How far production is from calibration: a factor from LEAST_FACTOR to MOST_FACTOR, which fades to 1 without evidence."""

    factor: float = 1.0

    def observed(self, curve: CapacityCurve, seen: Observation) -> Correction:
        """A fifth of the way to what was seen.

        An unsaturated pool says only that it can do at least this: it never lowers the factor.
        Raises InvalidInputError when what was seen is no amount.
        """
        check_count("observation.replicas", seen.replicas)
        check_amount("observation.perSecond", seen.per_second)
        promised = curve.at(seen.replicas)
        if promised <= 0:
            return self
        ratio = min(max(seen.per_second / promised, LEAST_FACTOR), MOST_FACTOR)
        if not seen.saturated and ratio <= self.factor:
            return self
        return replace(self, factor=self.factor + _STEP * (ratio - self.factor))

    def faded(self, elapsed_s: float) -> Correction:
        """Half the way back to 1 in each hour without evidence."""
        check_amount("elapsed_s", elapsed_s)
        return replace(self, factor=1.0 + (self.factor - 1.0) * 0.5 ** (elapsed_s / _HALF_LIFE_S))

    def applied(self, curve: CapacityCurve) -> CapacityCurve:
        """The curve to plan with."""
        return curve.scaled(self.factor)


def bends(curve: CapacityCurve, most: int) -> Sequence[int]:
    """The numbers of replicas below `most` at which the slope changes."""
    inner = [replicas for replicas, _ in curve.points[:-1]]
    return inner[: bisect_left(inner, most)]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def _whole(amount: float, each: float) -> int:
    """How many of `each` make `amount`; a rounding error does not ask for one more."""
    if amount <= 0:
        return 0
    return ceil(amount / each * (1 - _ROUNDING))
