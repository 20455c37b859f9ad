"""A number of replicas for every Inference of a component that changes one replica at a time, and knows what each change brings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.allocation.component import Component, Counts, PoolUse
from tidegate.allocation.snapshot import Pool
from tidegate.allocation.worth import Level, Spot, Worth

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Place:
    """One spot among all of the component, with its Inference and its pool by number."""

    number: int
    worth: int
    spot: int
    pool: int


Change = tuple[float, ...]
"""What each level misses more (negative: less), and last the value that is lost (negative: gained): smaller is better."""


class Standing:
    """Replicas by Inference and pool, changed in place."""

    def __init__(self, component: Component, counts: Counts) -> None:
        self.component = component
        self._counts = [list(replicas) for replicas in counts]
        self.places: list[Place] = []
        self.use = [PoolUse(pool) for pool in component.pools]
        for index, worth in enumerate(component.worths):
            for number, spot in enumerate(worth.spots):
                pool = component.pool_index[spot.pool]
                self.places.append(Place(len(self.places), index, number, pool))
                self.use[pool].add(worth.inference.tier, spot, self._counts[index][number])

    @property
    def counts(self) -> Counts:
        """What stands now."""
        return tuple(tuple(replicas) for replicas in self._counts)

    def worth(self, place: Place) -> Worth:
        """The Inference."""
        return self.component.worths[place.worth]

    def spot(self, place: Place) -> Spot:
        """The Inference in the pool."""
        return self.component.worths[place.worth].spots[place.spot]

    def pool(self, place: Place) -> Pool:
        """The pool."""
        return self.component.pools[place.pool]

    def count(self, place: Place) -> int:
        """Replicas there."""
        return self._counts[place.worth][place.spot]

    def may_grow(self, place: Place) -> bool:
        """Whether one more replica is within what the Inference may ever hold; not whether it fits."""
        worth, spot = self.worth(place), self.spot(place)
        return (
            self.count(place) < max(spot.beyond, spot.held) and sum(self._counts[place.worth]) < worth.highest
        )

    def free(self, pool: int) -> int:
        """Slices that nobody holds; negative when more are given than there are."""
        return self.component.pools[pool].slices - self.use[pool].given

    def brings(self, place: Place, by: int) -> Change:
        """What `by` more replicas there bring, the pool's own rules included."""
        own = self.brings_alone(place, by)
        before = self.use[place.pool].missed()
        self._use(place, by)
        after = self.use[place.pool].missed()
        self._use(place, -by)
        shared = [late - early for late, early in zip(after, before, strict=True)]
        return (*(a + b for a, b in zip(own, shared, strict=False)), own[-1])

    def brings_alone(self, place: Place, by: int) -> Change:
        """What it brings but for the pool's own rules: depends on nobody else."""
        worth = self.worth(place)
        before = tuple(self._counts[place.worth])
        after = (*before[: place.spot], before[place.spot] + by, *before[place.spot + 1 :])
        missed = [late - early for late, early in zip(worth.levels(after), worth.levels(before), strict=True)]
        lost = worth.value(before) - worth.value(after) + worth.move_cost(after) - worth.move_cost(before)
        return (*missed, lost)

    def change(self, place: Place, by: int) -> None:
        """Puts `by` more replicas there."""
        self._use(place, by)

    def _use(self, place: Place, by: int) -> None:
        worth, spot = self.worth(place), self.spot(place)
        use, count = self.use[place.pool], self.count(place)
        use.remove(worth.inference.tier, spot, count)
        self._counts[place.worth][place.spot] = count + by
        use.add(worth.inference.tier, spot, count + by)


def better(change: Change) -> bool:
    """Whether a change improves on nothing, in the order of the levels; rounding errors decide nothing."""
    for amount in change:
        if abs(amount) > _SAME:
            return amount < 0
    return False


def per_slice(change: Change, slices: int) -> Change:
    """To compare changes of different sizes. Rounding errors are cut off, so that they decide nothing either."""
    return tuple(round(amount / slices, 9) for amount in change)


def added(one: Change, other: Change) -> Change:
    """Both changes."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


LEVELS = len(Level)


def siblings(standing: Standing, place: Place) -> Iterator[Place]:
    """All pools of the same Inference: their changes bring something else now."""
    first = place.number - place.spot
    for number in range(first, first + len(standing.worth(place).spots)):
        yield standing.places[number]
