"""Compare what a cluster did with its simulation: the trace that both get, and figures by tier with a limit on their difference."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.api.inference import Tier

TOLERANCE: Final = 0.15
"""Of the cluster's figure."""
PERCENTILE: Final = 0.99
"""The share of the requests that the SLO is about."""


@dataclass(frozen=True, slots=True)
class DemandWave:
    """A rise of the rate around a share of the time, `width` shares to both sides; a step begins and ends at once."""

    at: float
    width: float
    height: float
    is_step: bool = False

    def rate_at(self, share: float) -> float:
        """Return what it adds to the rate, in requests per second."""
        distance = (share - self.at) / self.width
        return self.height * (abs(distance) <= 1 if self.is_step else math.exp(-(distance**2)))


@dataclass(frozen=True, slots=True)
class DemandCourse:
    """A rate of requests per second, what waves add to it, and the share of it that is left in the lull at the end."""

    base: float
    waves: Sequence[DemandWave]
    lull: float = 1.0

    def rate_at(self, share: float) -> float:
        """Return the rate at a share of the time from 0 to 1; before and after, that of the begin and of the end."""
        share = min(max(share, 0.0), 1.0)
        base = self.base * (self.lull if share >= _LULL_AT else 1.0)
        return base + sum(wave.rate_at(share) for wave in self.waves)


_LULL_AT: Final = 0.85


def make_courses(seed: int) -> Mapping[str, DemandCourse]:
    """Return two real-time models with three steps each, and a stream that rises slowly; the seed moves them by up to 2 %.

    The rate of a step is between what two numbers of replicas serve. Near such a boundary the noise of single requests would
    decide; and replicas that get a little more than their capacity miss the SLO only once requests have queued for a while.
    """
    choice = random.Random(seed)

    def vary(number: float) -> float:
        return number * choice.uniform(0.98, 1.02)

    def make_steps(height: float, *shares: float) -> Sequence[DemandWave]:
        return [DemandWave(vary(share), 0.06, vary(height), is_step=True) for share in shares]

    return {
        "home": DemandCourse(3.5, make_steps(7.7, 0.15, 0.45, 0.75), 0.6),
        "feed": DemandCourse(3.0, make_steps(5.0, 0.28, 0.52, 0.76), 0.6),
        "rank": DemandCourse(2.5, [DemandWave(vary(0.55), 0.15, vary(2.5))]),
    }


def sample_course(course: DemandCourse, ticks: int, lead: int) -> Sequence[float]:
    """Return the rate of each tick, `lead` ticks before the time included."""
    return [course.rate_at((number + 0.5) / ticks) for number in range(-lead, ticks)]


def plan_arrivals(rates: Sequence[float], tick_s: float, seed: int) -> Iterator[float]:
    """Yield the seconds at which requests are due: at the rate of each tick, evenly but for a fifth of the distance.

    After the last tick its rate goes on without an end.
    """
    choice, due_s, debt = random.Random(seed), 0.0, 1.0
    while True:
        tick = int(due_s / tick_s + 1e-9)
        rate = rates[min(tick, len(rates) - 1)]
        end_s = (tick + 1) * tick_s if tick < len(rates) else math.inf
        # A distance may reach into the next tick, whose rate is another.
        if due_s + debt / rate < end_s:
            due_s += debt / rate
            debt = 1.0
            yield max(due_s + choice.uniform(-0.2, 0.2) / rate, 0.0)
        else:
            debt -= (end_s - due_s) * rate
            due_s = end_s


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of one real-time Inference in one tick: answered, and arrived, which includes the refused ones."""

    answered: float
    arrived: float


class MissedSeconds:
    """Finds the seconds in which more than one in a hundred of the requests due was late, refused or failed."""

    def __init__(self) -> None:
        self._due: Counter[int] = Counter()
        self._missed: Counter[int] = Counter()

    def count_request(self, due_s: float, *, is_missed: bool) -> None:
        """Count a request that was due so many seconds after the begin."""
        self._due[int(due_s)] += 1
        self._missed[int(due_s)] += is_missed

    def list_missed(self) -> Sequence[int]:
        """Return the seconds after the begin, sorted."""
        return sorted(
            second for second, missed in self._missed.items() if missed > (1 - PERCENTILE) * self._due[second]
        )


def measure_shortage(rate: float, replica_rate: float, ready: float) -> float:
    """Return the share of a tick without enough replicas; `ready` is the mean of those that answered in it."""
    return min(max(math.ceil(rate / replica_rate - 1e-9) - ready, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What came of one run: slice-minutes and value by tier, and slices moved.

    `short_minutes`: those in which a real-time Inference had fewer replicas that answer than its demand needs.
    `missed_minutes`: those in which requests were late or refused, for this or another reason.
    """

    slice_minutes: Mapping[Tier, float]
    value: Mapping[Tier, float]
    short_minutes: float
    missed_minutes: float
    moved_slices: float


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of the cluster and of the simulator; they may differ by TOLERANCE, or by `slack` where both are tiny."""

    name: str
    cluster: float
    simulated: float
    slack: float

    @property
    def ratio(self) -> float | None:
        """Return the simulator's figure over the cluster's; None where that is 0."""
        return self.simulated / self.cluster if self.cluster else None

    @property
    def is_near(self) -> bool:
        """Return whether they differ by no more than they may."""
        difference = abs(self.simulated - self.cluster)
        return difference <= max(TOLERANCE * abs(self.cluster), self.slack) + 1e-9


def compare_figures(
    cluster: RunFigures, simulated: RunFigures, tick_s: float, moved_slack: float
) -> Sequence[ComparedFigure]:
    """Return the figures side by side.

    Slice-minutes and minutes may differ by one slice or one Inference in one tick, moves by `moved_slack` slices.
    """
    tick_min = tick_s / 60
    return [
        *(
            ComparedFigure(
                f"slice-minutes {tier.value}",
                cluster.slice_minutes[tier],
                simulated.slice_minutes[tier],
                tick_min,
            )
            for tier in Tier
        ),
        *(
            ComparedFigure(f"value {tier.value}", cluster.value[tier], simulated.value[tier], 0.0)
            for tier in Tier
        ),
        ComparedFigure("short minutes", cluster.short_minutes, simulated.short_minutes, tick_min),
        ComparedFigure("SLO-miss minutes", cluster.missed_minutes, simulated.missed_minutes, tick_min),
        ComparedFigure("moved slices", cluster.moved_slices, simulated.moved_slices, moved_slack),
    ]
