"""Rules that a decision does not keep: whose they are, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.allocation.assignment import RelaxedRule
from tidegate.allocation.component import Component, Counts, PlacedShare
from tidegate.allocation.utility import FLOOR_PRIORITIES, ModelUtility, RulePriority

_TOLERANCE = 1e-6


def find_shortfalls(component: Component, target: Counts) -> tuple[RelaxedRule, ...]:
    """Return the relaxed rules in the order of their priorities, the highest first."""
    relaxations: list[tuple[RulePriority, RelaxedRule]] = []
    uses = {pool.name: PlacedShare(pool) for pool in component.pools}
    for utility, counts in zip(component.utilities, target, strict=True):
        relaxations += _find_model_shortfalls(utility, counts)
        for option, count in zip(utility.options, counts, strict=True):
            uses[option.pool].add_replicas(utility.model.tier, option, count)
    for use in uses.values():
        relaxations += _find_pool_shortfalls(use)
    return tuple(
        relaxation
        for _, relaxation in sorted(relaxations, key=lambda pair: (pair[0], pair[1].subject, pair[1].rule))
    )


def _find_model_shortfalls(
    utility: ModelUtility, counts: Sequence[int]
) -> Iterator[tuple[RulePriority, RelaxedRule]]:
    model, total = utility.model, sum(counts)
    key, bounds = model.key, model.bounds
    pools = ", ".join(option.pool for option in utility.options)
    if total < utility.floor:
        source = (
            bounds.floor_source
            if utility.floor == bounds.floor
            else "what it holds, since its signals are missing"
        )
        yield (
            utility.floor_priority,
            RelaxedRule(
                f"{model.tier} floor",
                key,
                f"{total} of {utility.floor} replicas ({source}): {pools} has no room; add slices or lower the floor",
            ),
        )
    if total > utility.ceiling:
        yield (
            RulePriority.CEILING,
            RelaxedRule(
                "ceiling",
                key,
                f"{total} replicas are above {bounds.ceiling_source} of {utility.ceiling:.0f} until the budget lets them go",
            ),
        )
    violations = utility.violations_at(tuple(counts))
    if violations[RulePriority.SPARE_NODE] > _TOLERANCE:
        yield (
            RulePriority.SPARE_NODE,
            RelaxedRule(
                "node to spare",
                key,
                f"{total} replicas do not serve its demand when a node of {pools} is lost; add slices",
            ),
        )
    yield from _find_missed_deadline(utility, counts)
    if model.tier.traits.has_slo and utility.demand:
        # Report the whole shortage: the violation leaves out what no number of replicas could serve, users do not.
        shortage = max(
            demand_step.rate - rate
            for demand_step, rate in zip(utility.demand, utility.served_rates(counts), strict=True)
        )
        if shortage > _TOLERANCE:
            remedy = "raise its maximum or add slices" if total >= utility.ceiling else "add slices"
            yield (
                RulePriority.SLO,
                RelaxedRule("SLO", key, f"{shortage:,.0f}/s are more than {total} replicas serve; {remedy}"),
            )


def _find_missed_deadline(
    utility: ModelUtility, counts: Sequence[int]
) -> Iterator[tuple[RulePriority, RelaxedRule]]:
    """Yield the deadline of near-line work whose messages wait longer, with the rate that they get."""
    deadline = None if utility.model.load is None else utility.model.load.deadline
    served, total = sum(utility.rates_at(counts)), sum(counts)
    if deadline is None or deadline.rate - served <= _TOLERANCE:
        return
    remedy = "raise its maximum or add slices" if total >= utility.ceiling else "add slices"
    yield (
        RulePriority.DEADLINE,
        RelaxedRule(
            "deadline",
            utility.model.key,
            f"{total} replicas answer {served:,.0f}/s of the {deadline.rate:,.0f}/s that keep messages within "
            f"{deadline.max_delay_s:g} s; {remedy}",
        ),
    )


def _find_pool_shortfalls(use: PlacedShare) -> Iterator[tuple[RulePriority, RelaxedRule]]:
    pool = use.pool
    violations = use.get_violations()
    for rule in pool.tiers:
        assigned = use.tiers[rule.tier]
        if assigned < rule.floor:
            yield (
                FLOOR_PRIORITIES[rule.tier],
                RelaxedRule(
                    f"{rule.tier} floor",
                    pool.name,
                    f"{assigned} of {rule.floor} slices: {pool.slices} are in good health",
                ),
            )
        if rule.ceiling is not None and assigned > rule.ceiling:
            yield (
                RulePriority.CEILING,
                RelaxedRule(
                    "ceiling", pool.name, f"{rule.tier} holds {assigned} of at most {rule.ceiling} slices"
                ),
            )
    if violations[RulePriority.WARM_SPARES]:
        free = pool.spares - int(violations[RulePriority.WARM_SPARES])
        yield (
            RulePriority.WARM_SPARES,
            RelaxedRule("warm spares", pool.name, f"{free} of {pool.spares} slices stay free"),
        )
    if violations[RulePriority.BUDGET]:
        excess = int(violations[RulePriority.BUDGET])
        limit = "the pool is held" if pool.hold else f"budget {pool.budget}, with the stabilization window"
        yield (
            RulePriority.BUDGET,
            RelaxedRule("budget", pool.name, f"{excess} slices move for safety beyond it ({limit})"),
        )
