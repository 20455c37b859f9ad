"""Rules that a decision does not keep: whose they are, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.allocation.assignment import Relaxation
from tidegate.allocation.component import Component, Counts, PoolUse
from tidegate.allocation.worth import FLOOR_LEVELS, Level, Worth
from tidegate.api.inference import Tier

_TOLERANCE = 1e-6


def shortfalls(component: Component, target: Counts) -> tuple[Relaxation, ...]:
    """Return the relaxed rules in the order of their priorities, the highest first."""
    relaxations: list[tuple[Level, Relaxation]] = []
    uses = {pool.name: PoolUse(pool) for pool in component.pools}
    for utility, counts in zip(component.worths, target, strict=True):
        relaxations += _of_inference(utility, counts)
        for option, count in zip(utility.spots, counts, strict=True):
            uses[option.pool].add(utility.inference.tier, option, count)
    for use in uses.values():
        relaxations += _of_pool(use)
    return tuple(
        relaxation
        for _, relaxation in sorted(relaxations, key=lambda pair: (pair[0], pair[1].subject, pair[1].rule))
    )


def _of_inference(utility: Worth, counts: Sequence[int]) -> Iterator[tuple[Level, Relaxation]]:
    model, total = utility.inference, sum(counts)
    key, bounds = model.key, model.bounds
    pools = ", ".join(option.pool for option in utility.spots)
    if total < utility.floor:
        source = (
            bounds.least_by
            if utility.floor == bounds.least
            else "what it holds, since its signals are missing"
        )
        yield (
            utility.floor_level,
            Relaxation(
                f"{model.tier} floor",
                key,
                f"{total} of {utility.floor} replicas ({source}): {pools} has no room; add slices or lower the floor",
            ),
        )
    if total > utility.most:
        yield (
            Level.CEILING,
            Relaxation(
                "ceiling",
                key,
                f"{total} replicas are above {bounds.most_by} of {utility.most:.0f} until the budget lets them go",
            ),
        )
    violations = utility.levels(tuple(counts))
    if violations[Level.SPARE_NODE] > _TOLERANCE:
        yield (
            Level.SPARE_NODE,
            Relaxation(
                "node to spare",
                key,
                f"{total} replicas do not serve its demand when a node of {pools} is lost; add slices",
            ),
        )
    if model.tier is Tier.REALTIME and utility.asked:
        # Report the whole shortage: the violation leaves out what no number of replicas could serve, users do not.
        shortage = max(
            demand_step.rate - rate
            for demand_step, rate in zip(utility.asked, utility.served(counts), strict=True)
        )
        if shortage > _TOLERANCE:
            remedy = "raise its maximum or add slices" if total >= utility.most else "add slices"
            yield (
                Level.SLO,
                Relaxation("SLO", key, f"{shortage:,.0f}/s are more than {total} replicas serve; {remedy}"),
            )


def _of_pool(use: PoolUse) -> Iterator[tuple[Level, Relaxation]]:
    pool = use.pool
    violations = use.missed()
    for rule in pool.tiers:
        assigned = use.tiers[rule.tier]
        if assigned < rule.floor:
            yield (
                FLOOR_LEVELS[rule.tier],
                Relaxation(
                    f"{rule.tier} floor",
                    pool.name,
                    f"{assigned} of {rule.floor} slices: {pool.slices} are in good health",
                ),
            )
        if rule.ceiling is not None and assigned > rule.ceiling:
            yield (
                Level.CEILING,
                Relaxation(
                    "ceiling", pool.name, f"{rule.tier} holds {assigned} of at most {rule.ceiling} slices"
                ),
            )
    if violations[Level.WARM_SPARES]:
        free = pool.spares - int(violations[Level.WARM_SPARES])
        yield (
            Level.WARM_SPARES,
            Relaxation("warm spares", pool.name, f"{free} of {pool.spares} slices stay free"),
        )
    if violations[Level.BUDGET]:
        excess = int(violations[Level.BUDGET])
        limit = "the pool is held" if pool.hold else f"budget {pool.budget}, dwell times included"
        yield (
            Level.BUDGET,
            Relaxation("budget", pool.name, f"{excess} slices move for safety beyond it ({limit})"),
        )
