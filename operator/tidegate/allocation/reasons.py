"""Sentences that explain each move, the same for status, Events, CLI and dashboard.

A move is explained by the rule or the demand that asks for it, and by what its slices earn on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tidegate.allocation.component import Component, Counts, PlacedShare
from tidegate.allocation.node_loss import NodeSpread
from tidegate.allocation.snapshot import AllocationSnapshot, DemandInput, PoolInput
from tidegate.allocation.utility import ModelUtility, PoolOption

_MINUTE_S = 60.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class _OptionChange:
    """Change of an option from `before` to `after` replicas; `value_per_slice` is what it brings per slice-minute."""

    utility: ModelUtility
    option: PoolOption
    before: int
    after: int
    value_per_slice: float

    @property
    def replica_change(self) -> int:
        return self.after - self.before

    @property
    def moved_slices(self) -> int:
        return abs(self.replica_change) * self.option.slices

    @property
    def promoted_replicas(self) -> int:
        """Return how many of the added replicas are warm spares of the model."""
        return min(max(self.replica_change, 0), self.option.placement.replicas.spare)

    @property
    def full_name(self) -> str:
        return f"{self.utility.model.tier} {self.utility.model.key}"


class MoveReasons:
    """Sentences of one component's decision, by Inference and pool."""

    def __init__(self, snapshot: AllocationSnapshot, component: Component, target: Counts) -> None:
        self._starts_s = [0.0, *accumulate(step.seconds for step in snapshot.steps)]
        self._component = component
        self._target = dict(zip((utility.model.key for utility in component.utilities), target, strict=True))
        self._sentences: dict[tuple[str, str], str] = {}
        changes = _find_changes(component, target)
        for pool in component.pools:
            self._explain_pool(pool, [change for change in changes if change.option.pool == pool.name])

    def get_reason(self, inference: str, pool: str) -> str:
        """Return why the replicas of an Inference in a pool change."""
        return self._sentences[inference, pool]

    def _explain_pool(self, pool: PoolInput, changes: Sequence[_OptionChange]) -> None:
        ups = sorted(
            (change for change in changes if change.replica_change > 0),
            key=lambda change: (-change.value_per_slice, change.full_name),
        )
        downs = sorted(
            (change for change in changes if change.replica_change < 0),
            key=lambda change: (change.value_per_slice, change.full_name),
        )
        use = PlacedShare(pool)
        for utility in self._component.utilities:
            for option in utility.options:
                if option.pool == pool.name:
                    use.add_replicas(utility.model.tier, option, option.current)
        givers, takers = _pair_changes(ups, downs, max(pool.slices - use.assigned, 0))
        for change, change_givers in zip(ups, givers, strict=True):
            sources = _describe_sources(change, change_givers)
            self._add_reason(change, f"{self._explain_gain(pool, use, change)}; {sources}")
        for change, change_takers in zip(downs, takers, strict=True):
            self._add_reason(change, self._explain_loss(pool, use, change, change_takers))

    def _add_reason(self, change: _OptionChange, reason: str) -> None:
        self._sentences[change.utility.model.key, change.option.pool] = (
            f"{change.full_name} {change.replica_change:+d} in {change.option.pool}: {reason}"
        )

    def _explain_gain(self, pool: PoolInput, use: PlacedShare, change: _OptionChange) -> str:
        """Return why an option scales up: the rule or the demand that asks for it, else its value."""
        utility, current = change.utility, change.utility.model.current_replicas
        model = utility.model
        if current < model.bounds.floor:
            return f"{_format_replicas(current)} {_choose_verb(current)} below {model.bounds.floor_source} of {model.bounds.floor}"
        shortage, spare = self._explain_shortage(utility), _explain_spare(pool, change)
        if shortage or spare:
            return ", and ".join(part for part in (shortage, spare) if part)
        if current < utility.reserve_replicas:
            rate = max(demand_step.rate for demand_step in utility.demand)
            expected = "" if model.load is None else _format_expectation(model.load)
            lost = f"with one of {pool.nodes} nodes lost {_format_replicas(current)} cannot serve {rate:,.0f}/s{expected}"
            return lost + _explain_uneven_spread(utility)
        for rule in pool.tiers:
            if rule.tier is model.tier and use.tiers[rule.tier] < rule.floor:
                return f"{use.tiers[rule.tier]} slices are below the floor of {rule.tier}, {rule.floor}"
        return f"worth {_format_amount(change.value_per_slice)} per slice-minute"

    def _explain_shortage(self, utility: ModelUtility) -> str:
        """Return the deadline, or the first step of demand, that exceeds what the current replicas serve, as text; or empty."""
        model = utility.model
        if model.load is None:
            return ""
        capacity = sum(utility.rates_at([option.current for option in utility.options]))
        deadline = model.load.deadline
        if deadline is not None and deadline.rate > capacity * (1 + 1e-9):
            return (
                f"messages wait at most {deadline.max_delay_s:g} s if {deadline.rate:,.0f}/s are answered, "
                f"and {capacity:,.0f}/s are"
            )
        if not model.tier.traits.has_slo:
            return ""
        for number, rate in enumerate(model.load.rates):
            if rate > capacity * (1 + 1e-9):
                delay = f" in {self._starts_s[number] / _MINUTE_S:.0f} min" if number else ""
                return (
                    f"demand {rate:,.0f}/s{_format_expectation(model.load)}{delay} exceeds {capacity:,.0f}/s"
                )
        return ""

    def _explain_loss(
        self, pool: PoolInput, use: PlacedShare, change: _OptionChange, takers: Sequence[_OptionChange]
    ) -> str:
        """Return why an option scales down."""
        model = change.utility.model
        if model.bounds.ceiling is not None and model.current_replicas > model.bounds.ceiling:
            return f"{_format_replicas(model.current_replicas)} {_choose_verb(model.current_replicas)} above {model.bounds.ceiling_source} of {model.bounds.ceiling}"
        if use.assigned > pool.slices:
            return f"{pool.name} has {pool.slices} slices in good health, and {use.assigned} were held"
        for rule in pool.tiers:
            if rule.tier is model.tier and rule.ceiling is not None and use.tiers[rule.tier] > rule.ceiling:
                return f"{use.tiers[rule.tier]} slices are above the ceiling of {rule.tier}, {rule.ceiling}"
        if takers:
            listed = ", ".join(
                f"{taker.full_name} at {_format_amount(taker.value_per_slice)}" for taker in takers
            )
            worth = f"worth {_format_amount(change.value_per_slice)} per slice-minute"
            return f"{worth}{_format_elsewhere(model.load)}, given to {listed}"
        if use.assigned + pool.spares > pool.slices:
            return f"{pool.spares} slices stay free as warm spares"
        if sum(self._target[model.key]) >= model.current_replicas:
            return "served from another pool instead"
        return f"nothing is gained by keeping it{_format_elsewhere(model.load)}"


def _explain_spare(pool: PoolInput, change: _OptionChange) -> str:
    """Return what replicas beyond the demand save when a node is lost, as text; empty if none are added."""
    utility, price = change.utility, change.utility.loss_price
    count = change.after - utility.slo_replicas
    if pool.node_loss is None or price is None or count <= 0:
        return ""
    every_h = pool.node_loss.expected_every_s / _HOUR_S
    every = f"{every_h / 24:,.0f} days" if every_h >= 48 else f"{every_h:,.3g} h"
    factor = pool.node_loss.lost_factor
    counted = "" if factor == 1 else f", which count {factor:g} times"
    return (
        f"{_format_replicas(count)} more than {utility.promised_rate:,.0f}/s needs: each of "
        f"{pool.nodes} nodes is lost every {every}, and the {price.outage_s:,.0f} s until replacements serve would lose "
        f"{price.lost_requests:,.0f} requests worth {_format_amount(price.lost_requests * utility.model.value)}{counted}"
        f"{_explain_uneven_spread(utility)}"
    )


def _explain_uneven_spread(utility: ModelUtility) -> str:
    """Return which node has too many of the ready replicas, as text; empty unless an even spread would take fewer replicas."""
    spread, needed = utility.spread, utility.slo_replicas
    if spread is None or not spread.placed:
        return ""
    even = NodeSpread(spread.nodes).count_covering(needed)
    if spread.count_covering(needed) <= even:
        return ""
    by_node = utility.options[0].placement.ready_by_node
    return (
        f"; {by_node[0].replicas} of {_format_replicas(sum(item.replicas for item in by_node))} "
        f"{_choose_verb(by_node[0].replicas)} on node {by_node[0].node}, and spread evenly {even} would be enough"
    )


def _find_changes(component: Component, target: Counts) -> list[_OptionChange]:
    changes: list[_OptionChange] = []
    for utility, counts in zip(component.utilities, target, strict=True):
        current = tuple(option.current for option in utility.options)
        for position, (option, count) in enumerate(zip(utility.options, counts, strict=True)):
            if count == option.current:
                continue
            alone = (*current[:position], count, *current[position + 1 :])
            per_slice = (utility.value_at(alone) - utility.value_at(current)) / (
                (count - option.current) * option.slices
            )
            changes.append(_OptionChange(utility, option, option.current, count, per_slice * _MINUTE_S))
    return changes


def _pair_changes(
    ups: Sequence[_OptionChange], downs: Sequence[_OptionChange], free: int
) -> tuple[list[list[_OptionChange]], list[list[_OptionChange]]]:
    """Return from which options each of `ups` gets slices, and to which each of `downs` gives some.

    An option first uses its warm spares, then free slices, then those that are worth least.
    """
    givers: list[list[_OptionChange]] = [[] for _ in ups]
    takers: list[list[_OptionChange]] = [[] for _ in downs]
    available = [down.moved_slices for down in downs]
    first = 0
    free = max(free - sum(up.promoted_replicas * up.option.slices for up in ups), 0)
    for up, up_givers in zip(ups, givers, strict=True):
        needed = up.moved_slices - up.promoted_replicas * up.option.slices
        missing = needed - min(free, needed)
        free -= needed - missing
        while missing and first < len(downs):
            used = min(available[first], missing)
            up_givers.append(downs[first])
            takers[first].append(up)
            available[first] -= used
            missing -= used
            if not available[first]:
                first += 1
    return givers, takers


def _describe_sources(taker: _OptionChange, givers: Sequence[_OptionChange]) -> str:
    """Return where the added replicas come from, as text."""
    sources: list[str] = []
    if taker.promoted_replicas:
        sources.append(
            "from a warm spare"
            if taker.promoted_replicas == 1
            else f"{taker.promoted_replicas} from warm spares"
        )
    if givers:
        sources.append(f"taken from {_list_givers(givers, taker)}")
    elif taker.promoted_replicas < taker.replica_change:
        sources.append("from free slices")
    return ", ".join(sources)


def _list_givers(givers: Sequence[_OptionChange], taker: _OptionChange) -> str:
    listed = ", ".join(
        f"{giver.full_name}, worth {_format_amount(giver.value_per_slice)}" for giver in givers
    )
    return f"{listed} per slice-minute against {_format_amount(taker.value_per_slice)}"


def _format_amount(value: float) -> str:
    """Format three digits, or all before the point; never write a minus before zero."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{round(value, 9) + 0.0:.3g}"


def _choose_verb(count: int) -> str:
    return "is" if count == 1 else "are"


def _format_replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _format_expectation(load: DemandInput) -> str:
    return (f" {load.expectation}" if load.expectation else "") + _format_elsewhere(load)


def _format_elsewhere(load: DemandInput | None) -> str:
    return f" beside {load.elsewhere}" if load is not None and load.elsewhere else ""
