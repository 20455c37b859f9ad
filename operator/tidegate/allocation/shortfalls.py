"""Which rules a decision could not keep, whose they are and by how much: what is said when the answer is the least bad one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.allocation.assignment import Relaxation
from tidegate.allocation.component import Component, Counts, PoolUse
from tidegate.allocation.worth import Level, Worth
from tidegate.api.inference import Tier

_SAME = 1e-6


def shortfalls(component: Component, target: Counts) -> tuple[Relaxation, ...]:
    """In the order of the levels, the worst first."""
    found: list[tuple[Level, Relaxation]] = []
    uses = {pool.name: PoolUse(pool) for pool in component.pools}
    for worth, counts in zip(component.worths, target, strict=True):
        found += _of_inference(worth, counts)
        for spot, count in zip(worth.spots, counts, strict=True):
            uses[spot.pool].add(worth.inference.tier, spot, count)
    for use in uses.values():
        found += _of_pool(use)
    return tuple(each for _, each in sorted(found, key=lambda each: (each[0], each[1].subject, each[1].rule)))


def _of_inference(worth: Worth, counts: Sequence[int]) -> Iterator[tuple[Level, Relaxation]]:
    inference, total = worth.inference, sum(counts)
    key, bounds = inference.key, inference.bounds
    pools = ", ".join(spot.pool for spot in worth.spots)
    if total < worth.floor:
        whose = (
            bounds.least_by if worth.floor == bounds.least else "what it holds, since its signals are missing"
        )
        yield (
            worth.floor_level,
            Relaxation(
                f"{inference.tier} floor",
                key,
                f"{total} of {worth.floor} replicas ({whose}): {pools} has no room; add slices or lower the floor",
            ),
        )
    if total > worth.most:
        yield (
            Level.CEILING,
            Relaxation(
                "ceiling",
                key,
                f"{total} replicas are above {bounds.most_by} of {worth.most:.0f} until the budget lets them go",
            ),
        )
    missed = worth.levels(tuple(counts))
    if missed[Level.SPARE_NODE] > _SAME:
        yield (
            Level.SPARE_NODE,
            Relaxation(
                "node to spare",
                key,
                f"{total} replicas do not serve its demand when a node of {pools} is lost; add slices",
            ),
        )
    if inference.tier is Tier.REALTIME and worth.asked:
        # Not what the level misses: what no number of replicas could have served is missed by its users all the same.
        short = max(asked.rate - rate for asked, rate in zip(worth.asked, worth.served(counts), strict=True))
        if short > _SAME:
            limit = "raise its maximum or add slices" if total >= worth.most else "add slices"
            yield (
                Level.SLO,
                Relaxation("SLO", key, f"{short:,.0f}/s are more than {total} replicas serve; {limit}"),
            )


def _of_pool(use: PoolUse) -> Iterator[tuple[Level, Relaxation]]:
    pool = use.pool
    missed = use.missed()
    for rule in pool.tiers:
        given = use.tiers[rule.tier]
        if given < rule.floor:
            level = {
                Tier.REALTIME: Level.REALTIME_FLOOR,
                Tier.NEARLINE: Level.NEARLINE_FLOOR,
                Tier.OFFLINE: Level.OFFLINE_FLOOR,
            }[rule.tier]
            yield (
                level,
                Relaxation(
                    f"{rule.tier} floor",
                    pool.name,
                    f"{given} of {rule.floor} slices: {pool.slices} are in good health",
                ),
            )
        if rule.ceiling is not None and given > rule.ceiling:
            yield (
                Level.CEILING,
                Relaxation(
                    "ceiling", pool.name, f"{rule.tier} holds {given} of at most {rule.ceiling} slices"
                ),
            )
    if missed[Level.WARM_SPARES]:
        left = pool.spares - int(missed[Level.WARM_SPARES])
        yield (
            Level.WARM_SPARES,
            Relaxation("warm spares", pool.name, f"{left} of {pool.spares} slices stay free"),
        )
    if missed[Level.BUDGET]:
        over = int(missed[Level.BUDGET])
        allowed = "the pool is held" if pool.hold else f"budget {pool.budget}, dwell times included"
        yield (
            Level.BUDGET,
            Relaxation("budget", pool.name, f"{over} slices move for safety beyond it ({allowed})"),
        )
