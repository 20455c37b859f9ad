"""Capacity curves: the requests per second that n replicas serve within the SLO.

Curves are fitted from calibration and corrected online. They are concave and never fall: replicas share memory
bandwidth, so each one adds at most what the one before it added.
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
_MAX_REPLICAS: Final = 1e9
"""Limit beyond which a number of replicas counts as infinite."""
MIN_FACTOR: Final = 0.5
MAX_FACTOR: Final = 1.5
_STEP: Final = 0.2
_HALF_LIFE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class CapacityCurve:
    """Points (replicas, requests per second), concave from (0, 0), extended by the slope of the last segment.

    Raise InvalidInputError for points that fall, or whose slope rises.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidInputError("curve.points", "is empty; give at least one measured point")
        previous, slope = (0, 0.0), float("inf")
        for number, point in enumerate(self.points):
            path = f"curve.points[{number}]"
            check_count(f"{path}.replicas", point[0], minimum=previous[0] + 1)
            check_amount(f"{path}.perSecond", point[1], minimum=previous[1])
            rise = (point[1] - previous[1]) / (point[0] - previous[0])
            if rise > slope and not isclose(rise, slope, rel_tol=1e-6):
                raise InvalidInputError(
                    path, f"rises by {rise:g} per replica after {slope:g}; fit the points first"
                )
            previous, slope = point, rise

    def rate_at(self, replicas: float) -> float:
        """Return the requests per second that `replicas` serve; a fraction serves its share of the next one's."""
        low, rate_low = 0, 0.0
        for high, rate_high in self.points:
            if replicas <= high:
                return rate_low + (rate_high - rate_low) * (replicas - low) / (high - low)
            low, rate_low = high, rate_high
        return rate_low + self.last_slope * (replicas - low)

    def work_of(self, per_second: float) -> float | None:
        """Return how many replicas, as a fraction, `per_second` requests per second keep busy; None when no number serves them."""
        start, rate_start = 0, 0.0
        for end, rate_end in self.points:
            if per_second <= rate_end:
                rise = rate_end - rate_start
                return start + (max(per_second - rate_start, 0.0) * (end - start) / rise if rise > 0 else 0.0)
            start, rate_start = end, rate_end
        slope, remaining = self.last_slope, per_second - rate_start
        return start + remaining / slope if slope > 0 and remaining <= slope * _MAX_REPLICAS else None

    def replicas_for(self, per_second: float) -> int | None:
        """Return the fewest replicas that serve `per_second` requests per second, or None when no number does."""
        work = self.work_of(per_second)
        return None if work is None else _round_up(work)

    def useful_work_of(self, per_second: float) -> float:
        """Return how many replicas, as a fraction, serve `per_second` requests per second, or as many of them as any number does."""
        work = self.work_of(per_second)
        if work is not None:
            return work
        return next(float(replicas) for replicas, rate in self.points if rate == self.points[-1][1])

    def useful_replicas_for(self, per_second: float) -> int:
        """Return the fewest replicas that serve `per_second` requests per second, or as many of them as any number does."""
        return _round_up(self.useful_work_of(per_second))

    @property
    def last_slope(self) -> float:
        """Return the requests per second that each replica beyond the last point adds."""
        before, last = ((0, 0.0), *self.points)[-2:]
        return _slope_between(before, last)

    def scale_by(self, factor: float) -> CapacityCurve:
        """Return the curve with all rates multiplied by `factor`."""
        return CapacityCurve(tuple((replicas, rate * factor) for replicas, rate in self.points))

    def to_json(self) -> list[dict[str, float]]:
        """Return the points as the API's objects have them: `[{replicas, perSecond}]`."""
        return [{"replicas": replicas, "perSecond": rate} for replicas, rate in self.points]

    @classmethod
    def from_json(cls, points: Iterable[Mapping[str, float]]) -> CapacityCurve:
        """Parse points of the API; raise InvalidInputError for anything else."""
        try:
            pairs = tuple((int(point["replicas"]), float(point["perSecond"])) for point in points)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidInputError(
                "curve.points", f"each point needs replicas and perSecond: {error!r}"
            ) from error
        return cls(pairs)


def linear_curve(per_replica: float) -> CapacityCurve:
    """Return the curve on which each replica serves `per_replica` requests per second."""
    return CapacityCurve(((1, per_replica),))


def fit_curve(measured: Iterable[tuple[int, float]]) -> CapacityCurve:
    """Fit a curve to calibration points: the concave hull of the medians, made monotone.

    A point below the line between its neighbours is a bad measurement or a warm-up, and the hull leaves it out.
    Raise InvalidInputError when there is no measurement, or one is not a finite amount.
    """
    by_replicas: dict[int, list[float]] = {}
    for number, (replicas, rate) in enumerate(measured):
        check_count(f"measured[{number}].replicas", replicas, minimum=1)
        check_amount(f"measured[{number}].perSecond", rate)
        by_replicas.setdefault(replicas, []).append(rate)
    hull: list[tuple[int, float]] = [(0, 0.0)]
    highest = 0.0
    for replicas in sorted(by_replicas):
        highest = max(highest, median(by_replicas[replicas]))
        while len(hull) > 1 and _slope_between(hull[-1], (replicas, highest)) >= _slope_between(
            hull[-2], hull[-1]
        ):
            hull.pop()
        hull.append((replicas, highest))
    return CapacityCurve(tuple(hull[1:]))


def fit_joint_curve(alone: float, together: Iterable[tuple[int, float]]) -> CapacityCurve:
    """Fit a curve to what one replica serves and to what several serve `together`, as (replicas, requests per second).

    n replicas count for no more than n times `alone`: a load test of several may be luckier than that of one, and one replica
    would not keep what a line between both promises. Raise as `fit_curve` does.
    """
    return fit_curve([(1, alone), *((replicas, min(rate, replicas * alone)) for replicas, rate in together)])


@dataclass(frozen=True, slots=True)
class CapacityObservation:
    """Rate that `replicas` ready replicas served within the SLO; `saturated`: more was offered."""

    replicas: int
    per_second: float
    saturated: bool


@dataclass(frozen=True, slots=True)
class CapacityCorrection:
    """Ratio of production to calibration, from MIN_FACTOR to MAX_FACTOR; without evidence it decays to 1."""

    factor: float = 1.0

    def update_from(self, curve: CapacityCurve, observation: CapacityObservation) -> CapacityCorrection:
        """Return the correction moved by a fifth of the way towards an observation.

        An unsaturated pool proves only that it can serve at least this much, so it never lowers the factor.
        Raise InvalidInputError when the observation is not a finite amount.
        """
        check_count("observation.replicas", observation.replicas)
        check_amount("observation.perSecond", observation.per_second)
        expected = curve.rate_at(observation.replicas)
        if expected <= 0:
            return self
        ratio = min(max(observation.per_second / expected, MIN_FACTOR), MAX_FACTOR)
        if not observation.saturated and ratio <= self.factor:
            return self
        return replace(self, factor=self.factor + _STEP * (ratio - self.factor))

    def decay_for(self, elapsed_s: float) -> CapacityCorrection:
        """Return the correction after `elapsed_s` without evidence; half of it is left after each hour."""
        check_amount("elapsed_s", elapsed_s)
        return replace(self, factor=1.0 + (self.factor - 1.0) * 0.5 ** (elapsed_s / _HALF_LIFE_S))

    def apply_to(self, curve: CapacityCurve) -> CapacityCurve:
        """Return the corrected curve."""
        return curve.scale_by(self.factor)


def find_bends(curve: CapacityCurve, limit: int) -> Sequence[int]:
    """Return the numbers of replicas below `limit` at which the slope changes."""
    inner = [replicas for replicas, _ in curve.points[:-1]]
    return inner[: bisect_left(inner, limit)]


def _slope_between(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def _round_up(work: float) -> int:
    """Return the whole replicas for this work; a rounding error does not add one."""
    return ceil(work * (1 - _ROUNDING))
