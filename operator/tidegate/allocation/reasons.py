"""Why each replica moves, in one sentence: the same for status, events, command line and dashboard.

A move is explained by the rule or the demand that asks for it, and by what its slices earn here against there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tidegate.allocation.component import Component, Counts, PoolUse
from tidegate.allocation.snapshot import Pool, Snapshot
from tidegate.allocation.worth import Spot, Worth
from tidegate.api.inference import Tier

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Changed:
    """A spot that goes from `before` to `after` replicas; `worth_per_slice`: value per slice-minute that this brings."""

    worth: Worth
    spot: Spot
    before: int
    after: int
    worth_per_slice: float

    @property
    def by(self) -> int:
        return self.after - self.before

    @property
    def slices(self) -> int:
        return abs(self.by) * self.spot.slices

    @property
    def promoted(self) -> int:
        """How many of those that it gets are its warm spares."""
        return min(max(self.by, 0), self.spot.placement.replicas.spare)

    @property
    def name(self) -> str:
        return f"{self.worth.inference.tier} {self.worth.inference.key}"


class Reasons:
    """The sentences of one component's decision, by Inference and pool."""

    def __init__(self, snapshot: Snapshot, component: Component, target: Counts) -> None:
        self._starts_s = [0.0, *accumulate(step.seconds for step in snapshot.steps)]
        self._component = component
        self._target = dict(zip((worth.inference.key for worth in component.worths), target, strict=True))
        self._sentences: dict[tuple[str, str], str] = {}
        changed = _changed(component, target)
        for pool in component.pools:
            self._explain(pool, [each for each in changed if each.spot.pool == pool.name])

    def of(self, inference: str, pool: str) -> str:
        """Why the replicas of an Inference in a pool change."""
        return self._sentences[inference, pool]

    def _explain(self, pool: Pool, changed: Sequence[_Changed]) -> None:
        ups = sorted(
            (each for each in changed if each.by > 0), key=lambda each: (-each.worth_per_slice, each.name)
        )
        downs = sorted(
            (each for each in changed if each.by < 0), key=lambda each: (each.worth_per_slice, each.name)
        )
        use = PoolUse(pool)
        for worth in self._component.worths:
            for spot in worth.spots:
                if spot.pool == pool.name:
                    use.add(worth.inference.tier, spot, spot.held)
        pairs = _pairs(ups, downs, max(pool.slices - use.given, 0))
        for each in ups:
            givers = [down for up, down in pairs if up is each]
            self._say(each, f"{self._need(pool, use, each)}; {_sources(each, givers)}")
        for each in downs:
            takers = [up for up, down in pairs if down is each]
            self._say(each, self._loss(pool, use, each, takers))

    def _say(self, each: _Changed, why: str) -> None:
        self._sentences[each.worth.inference.key, each.spot.pool] = (
            f"{each.name} {each.by:+d} in {each.spot.pool}: {why}"
        )

    def _need(self, pool: Pool, use: PoolUse, each: _Changed) -> str:
        worth, held = each.worth, each.worth.inference.held
        inference = worth.inference
        if held < inference.bounds.least:
            return f"{_replicas(held)} {_are(held)} below {inference.bounds.least_by} of {inference.bounds.least}"
        short = self._short(worth)
        if short:
            return short
        if held < worth.spare_node:
            rate = max(asked.rate for asked in worth.asked)
            return f"with one of {pool.nodes} nodes lost {_replicas(held)} cannot serve {rate:,.0f}/s"
        for rule in pool.tiers:
            if rule.tier is inference.tier and use.tiers[rule.tier] < rule.floor:
                return f"{use.tiers[rule.tier]} slices are below the floor of {rule.tier}, {rule.floor}"
        return f"worth {_amount(each.worth_per_slice)} per slice-minute"

    def _short(self, worth: Worth) -> str:
        """The first step in which more is asked than what is held can serve."""
        inference = worth.inference
        if inference.load is None or inference.tier is not Tier.REALTIME:
            return ""
        capacity = sum(worth.rates([spot.held for spot in worth.spots]))
        for number, rate in enumerate(inference.load.rates):
            if rate > capacity * (1 + 1e-9):
                when = f" in {self._starts_s[number] / _MINUTE_S:.0f} min" if number else ""
                return f"demand {rate:,.0f}/s{when} exceeds {capacity:,.0f}/s"
        return ""

    def _loss(self, pool: Pool, use: PoolUse, each: _Changed, takers: Sequence[_Changed]) -> str:
        inference = each.worth.inference
        if inference.bounds.most is not None and inference.held > inference.bounds.most:
            return f"{_replicas(inference.held)} {_are(inference.held)} above {inference.bounds.most_by} of {inference.bounds.most}"
        if use.given > pool.slices:
            return f"{pool.name} has {pool.slices} slices in good health, and {use.given} were held"
        for rule in pool.tiers:
            if (
                rule.tier is inference.tier
                and rule.ceiling is not None
                and use.tiers[rule.tier] > rule.ceiling
            ):
                return f"{use.tiers[rule.tier]} slices are above the ceiling of {rule.tier}, {rule.ceiling}"
        if takers:
            listed = ", ".join(f"{taker.name} at {_amount(taker.worth_per_slice)}" for taker in takers)
            return f"worth {_amount(each.worth_per_slice)} per slice-minute, given to {listed}"
        if use.given + pool.spares > pool.slices:
            return f"{pool.spares} slices stay free as warm spares"
        if sum(self._target[inference.key]) >= inference.held:
            return "served from another pool instead"
        return "nothing is gained by keeping it"


def _changed(component: Component, target: Counts) -> list[_Changed]:
    found: list[_Changed] = []
    for worth, counts in zip(component.worths, target, strict=True):
        held = tuple(spot.held for spot in worth.spots)
        for place, (spot, count) in enumerate(zip(worth.spots, counts, strict=True)):
            if count == spot.held:
                continue
            alone = (*held[:place], count, *held[place + 1 :])
            per_slice = (worth.value(alone) - worth.value(held)) / ((count - spot.held) * spot.slices)
            found.append(_Changed(worth, spot, spot.held, count, per_slice * _MINUTE_S))
    return found


def _pairs(ups: Sequence[_Changed], downs: Sequence[_Changed], free: int) -> list[tuple[_Changed, _Changed]]:
    """Who gets whose slices: those of its own warm spares, then free ones, then those that are worth least."""
    pairs: list[tuple[_Changed, _Changed]] = []
    left = [down.slices for down in downs]
    free = max(free - sum(up.promoted * up.spot.slices for up in ups), 0)
    for up in ups:
        lacks = up.slices - up.promoted * up.spot.slices
        wanted = lacks - min(free, lacks)
        free -= lacks - wanted
        for number, down in enumerate(downs):
            used = min(left[number], wanted)
            if used:
                pairs.append((up, down))
                left[number] -= used
                wanted -= used
    return pairs


def _sources(taker: _Changed, givers: Sequence[_Changed]) -> str:
    """Where its replicas come from."""
    said: list[str] = []
    if taker.promoted:
        said.append("from a warm spare" if taker.promoted == 1 else f"{taker.promoted} from warm spares")
    if givers:
        said.append(f"taken from {_listed(givers, taker)}")
    elif taker.promoted < taker.by:
        said.append("from free slices")
    return ", ".join(said)


def _listed(givers: Sequence[_Changed], taker: _Changed) -> str:
    listed = ", ".join(f"{giver.name}, worth {_amount(giver.worth_per_slice)}" for giver in givers)
    return f"{listed} per slice-minute against {_amount(taker.worth_per_slice)}"


def _amount(value: float) -> str:
    """Three digits, or all before the point; never a minus before nothing."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 9) + 0.0:.3g}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
