"""Sentences that explain each move, the same for status, Events, CLI and dashboard.

A move is explained by the rule or the demand that asks for it, and by what its slices earn on either side.
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
    """Change of an option from `before` to `after` replicas; `value_per_slice` is what it brings per slice-minute."""

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
        """Return how many of the added replicas are warm spares of the model."""
        return min(max(self.by, 0), self.spot.placement.replicas.spare)

    @property
    def name(self) -> str:
        return f"{self.worth.inference.tier} {self.worth.inference.key}"


class Reasons:
    """Sentences of one component's decision, by Inference and pool."""

    def __init__(self, snapshot: Snapshot, component: Component, target: Counts) -> None:
        self._starts_s = [0.0, *accumulate(step.seconds for step in snapshot.steps)]
        self._component = component
        self._target = dict(zip((utility.inference.key for utility in component.worths), target, strict=True))
        self._sentences: dict[tuple[str, str], str] = {}
        changes = _changed(component, target)
        for pool in component.pools:
            self._explain(pool, [change for change in changes if change.spot.pool == pool.name])

    def of(self, inference: str, pool: str) -> str:
        """Return why the replicas of an Inference in a pool change."""
        return self._sentences[inference, pool]

    def _explain(self, pool: Pool, changes: Sequence[_Changed]) -> None:
        ups = sorted(
            (change for change in changes if change.by > 0),
            key=lambda change: (-change.worth_per_slice, change.name),
        )
        downs = sorted(
            (change for change in changes if change.by < 0),
            key=lambda change: (change.worth_per_slice, change.name),
        )
        use = PoolUse(pool)
        for utility in self._component.worths:
            for option in utility.spots:
                if option.pool == pool.name:
                    use.add(utility.inference.tier, option, option.held)
        pairs = _pairs(ups, downs, max(pool.slices - use.given, 0))
        for change in ups:
            givers = [down for up, down in pairs if up is change]
            self._say(change, f"{self._need(pool, use, change)}; {_sources(change, givers)}")
        for change in downs:
            takers = [up for up, down in pairs if down is change]
            self._say(change, self._loss(pool, use, change, takers))

    def _say(self, change: _Changed, reason: str) -> None:
        self._sentences[change.worth.inference.key, change.spot.pool] = (
            f"{change.name} {change.by:+d} in {change.spot.pool}: {reason}"
        )

    def _need(self, pool: Pool, use: PoolUse, change: _Changed) -> str:
        """Return why an option scales up: the rule or the demand that asks for it, else its value."""
        utility, current = change.worth, change.worth.inference.held
        model = utility.inference
        if current < model.bounds.least:
            return (
                f"{_replicas(current)} {_are(current)} below {model.bounds.least_by} of {model.bounds.least}"
            )
        shortage = self._short(utility)
        if shortage:
            return shortage
        if current < utility.spare_node:
            rate = max(demand_step.rate for demand_step in utility.asked)
            return f"with one of {pool.nodes} nodes lost {_replicas(current)} cannot serve {rate:,.0f}/s"
        for rule in pool.tiers:
            if rule.tier is model.tier and use.tiers[rule.tier] < rule.floor:
                return f"{use.tiers[rule.tier]} slices are below the floor of {rule.tier}, {rule.floor}"
        return f"worth {_amount(change.worth_per_slice)} per slice-minute"

    def _short(self, utility: Worth) -> str:
        """Return the first step whose demand exceeds what the current replicas serve, as text; empty if none does."""
        model = utility.inference
        if model.load is None or model.tier is not Tier.REALTIME:
            return ""
        capacity = sum(utility.rates([option.held for option in utility.spots]))
        for number, rate in enumerate(model.load.rates):
            if rate > capacity * (1 + 1e-9):
                delay = f" in {self._starts_s[number] / _MINUTE_S:.0f} min" if number else ""
                return f"demand {rate:,.0f}/s{delay} exceeds {capacity:,.0f}/s"
        return ""

    def _loss(self, pool: Pool, use: PoolUse, change: _Changed, takers: Sequence[_Changed]) -> str:
        """Return why an option scales down."""
        model = change.worth.inference
        if model.bounds.most is not None and model.held > model.bounds.most:
            return f"{_replicas(model.held)} {_are(model.held)} above {model.bounds.most_by} of {model.bounds.most}"
        if use.given > pool.slices:
            return f"{pool.name} has {pool.slices} slices in good health, and {use.given} were held"
        for rule in pool.tiers:
            if rule.tier is model.tier and rule.ceiling is not None and use.tiers[rule.tier] > rule.ceiling:
                return f"{use.tiers[rule.tier]} slices are above the ceiling of {rule.tier}, {rule.ceiling}"
        if takers:
            listed = ", ".join(f"{taker.name} at {_amount(taker.worth_per_slice)}" for taker in takers)
            return f"worth {_amount(change.worth_per_slice)} per slice-minute, given to {listed}"
        if use.given + pool.spares > pool.slices:
            return f"{pool.spares} slices stay free as warm spares"
        if sum(self._target[model.key]) >= model.held:
            return "served from another pool instead"
        return "nothing is gained by keeping it"


def _changed(component: Component, target: Counts) -> list[_Changed]:
    changes: list[_Changed] = []
    for utility, counts in zip(component.worths, target, strict=True):
        current = tuple(option.held for option in utility.spots)
        for position, (option, count) in enumerate(zip(utility.spots, counts, strict=True)):
            if count == option.held:
                continue
            alone = (*current[:position], count, *current[position + 1 :])
            per_slice = (utility.value(alone) - utility.value(current)) / (
                (count - option.held) * option.slices
            )
            changes.append(_Changed(utility, option, option.held, count, per_slice * _MINUTE_S))
    return changes


def _pairs(ups: Sequence[_Changed], downs: Sequence[_Changed], free: int) -> list[tuple[_Changed, _Changed]]:
    """Return which option gets slices from which.

    An option first uses its warm spares, then free slices, then those that are worth least.
    """
    pairs: list[tuple[_Changed, _Changed]] = []
    available = [down.slices for down in downs]
    free = max(free - sum(up.promoted * up.spot.slices for up in ups), 0)
    for up in ups:
        needed = up.slices - up.promoted * up.spot.slices
        missing = needed - min(free, needed)
        free -= needed - missing
        for number, down in enumerate(downs):
            used = min(available[number], missing)
            if used:
                pairs.append((up, down))
                available[number] -= used
                missing -= used
    return pairs


def _sources(taker: _Changed, givers: Sequence[_Changed]) -> str:
    """Return where the added replicas come from, as text."""
    sources: list[str] = []
    if taker.promoted:
        sources.append("from a warm spare" if taker.promoted == 1 else f"{taker.promoted} from warm spares")
    if givers:
        sources.append(f"taken from {_listed(givers, taker)}")
    elif taker.promoted < taker.by:
        sources.append("from free slices")
    return ", ".join(sources)


def _listed(givers: Sequence[_Changed], taker: _Changed) -> str:
    listed = ", ".join(f"{giver.name}, worth {_amount(giver.worth_per_slice)}" for giver in givers)
    return f"{listed} per slice-minute against {_amount(taker.worth_per_slice)}"


def _amount(value: float) -> str:
    """Format three digits, or all before the point; never write a minus before zero."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 9) + 0.0:.3g}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
