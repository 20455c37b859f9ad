"""Decide about one of several pools of an Inference: what the others serve, and what is left for this one.

Each pool's allocator writes its part of the allocation. Where one solve over all these pools has divided the replicas
(pool_group.py), a pool serves what that leaves to it. Elsewhere, such as beside a pool that only recommends, a pool
subtracts from the demand what the earlier pools of the list serve or have free slices for, and what later pools already serve.
Then replicas end in the last pool first: a pool keeps what it has as long as replicas run behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.snapshot import DemandInput, ReplicaBounds


@dataclass(frozen=True, slots=True)
class OtherPool:
    """What an Inference has in another pool of its list."""

    replicas: int
    """Replicas that were decided there, without warm spares, as far as `count_reliable`; before a decision, those with slices."""
    ready: int
    room: int
    """Replicas for which that pool has free slices."""
    curve: CapacityCurve
    """Capacity of its replicas there."""
    is_before: bool
    """Whether its replicas count before those of this pool: it is before it in the list, or one solve has divided them."""
    name: str = ""


def count_reliable(replicas: int, ready: int, fitting: int) -> int:
    """Return how many replicas another pool can be counted on for: no more than have slices or room, or are ready anyway.

    A pool without healthy nodes decides nothing, and its last decision stays.
    """
    return min(replicas, max(fitting, ready))


def follow_division(pools: Sequence[OtherPool], divided: Mapping[str, int]) -> tuple[OtherPool, ...]:
    """Return the other pools with the replicas that one solve has given each of them; those that it left out stay.

    The present replicas of this pool serve until those that start elsewhere are ready. What is to stop elsewhere does not count,
    whether this answer or that pool's last decision stops it.
    """
    return tuple(
        replace(
            pool,
            replicas=divided[pool.name],
            ready=min(pool.ready, pool.replicas, divided[pool.name]),
            room=0,
            is_before=True,
        )
        if pool.name in divided
        else pool
        for pool in pools
    )


def limit_growth(
    current: Mapping[str, int], divided: Mapping[str, int], ceiling: int | None
) -> Mapping[str, int]:
    """Return the division of an Inference in which no more replicas start than its ceiling leaves room for.

    Replicas that move run twice for a while, so an Inference at its maximum stays where it is.
    """
    if ceiling is None:
        return divided
    room = max(ceiling - sum(current.values()), 0)
    limited, waiting = dict(divided), 0
    for pool, count in divided.items():
        growth = max(count - current[pool], 0)
        limited[pool] -= max(growth - room, 0)
        waiting += max(growth - room, 0)
        room = max(room - growth, 0)
    for pool, count in divided.items():
        restored = min(max(current[pool] - count, 0), waiting)
        limited[pool] += restored
        waiting -= restored
    return limited


def reduce_demand(load: DemandInput, here: float, pools: Sequence[OtherPool]) -> DemandInput:
    """Return what is left of the demand for this pool, whose present replicas serve `here` requests per second.

    The present replicas keep the demand that ready ones before this pool do not serve yet. They are demand and no floor: in a
    pool that is too small, other work of more value gets their slices.
    """
    elsewhere = sum(
        pool.curve.rate_at(pool.replicas + (pool.room if pool.is_before else 0)) for pool in pools
    )
    ready_before = sum(pool.curve.rate_at(pool.ready) for pool in pools if pool.is_before)

    def reduce_rate(rate: float) -> float:
        return max(rate - elsewhere, min(here, rate - ready_before), 0.0)

    deadline = load.deadline
    return replace(
        load,
        rates=tuple(reduce_rate(rate) for rate in load.rates),
        elsewhere=_describe_replicas(pools),
        deadline=None if deadline is None else replace(deadline, rate=reduce_rate(deadline.rate)),
    )


def _describe_replicas(pools: Sequence[OtherPool]) -> str:
    return " and ".join(
        f"{pool.replicas} {'replica' if pool.replicas == 1 else 'replicas'}"
        f"{' planned' if pool.replicas > pool.ready else ''} in {pool.name}"
        for pool in pools
        if pool.replicas
    )


def narrow_bounds(bounds: ReplicaBounds, replicas: int, pools: Sequence[OtherPool]) -> ReplicaBounds:
    """Return the bounds of all pools for this one, which has `replicas`; without others, the same.

    What is missing to the floor starts here only as far as the pools before have no room. Of what is there, the ready replicas of
    the pools before this one count first: a surplus ends in the last pool.
    """
    if not pools:
        return bounds
    elsewhere = sum(pool.replicas for pool in pools)
    before = sum(min(pool.ready, pool.replicas) for pool in pools if pool.is_before)
    room = sum(pool.room for pool in pools if pool.is_before)
    floor = max(bounds.floor - elsewhere - room, min(replicas, bounds.floor - before), 0)
    if bounds.ceiling is None:
        return replace(bounds, floor=floor)
    ceiling = max(bounds.ceiling - elsewhere, min(replicas, bounds.ceiling - before), 0)
    return replace(bounds, floor=min(floor, ceiling), ceiling=ceiling)
