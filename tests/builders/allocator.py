"""A pool and its members as the allocator sees them, in one line each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.inference import Tier
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.pool_slices import NodeSlices, PoolSlices, sum_nodes

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_member(
    name: str = "ctr",
    held: int = 1,
    *,
    ready: int | None = None,
    pods: int | None = None,
    slices: int = 1,
    least: int = 1,
    most: int | None = 8,
    tier: Tier = Tier.REALTIME,
    status: dict[str, Any] | None = None,
    spares: int = 0,
    apart: str = "",
    refused: str = "",
    lost: int = 0,
    **spec: Any,
) -> PoolMember:
    """A model that has been given `held` replicas; `pods` of them are there, if that is not the same. `most` None: a fixed number, `least`.

    `spares`: warm ones that it has beside them, as it was told.
    """
    range_ = {"replicas": least} if most is None else {"scaling": {"minReplicas": least, "maxReplicas": most}}
    if spares:
        told = {"allocation": {"replicas": held, "spares": spares, "decision": "cpu-a-0", "epoch": 1}}
        status = {**told, **(status or {})}
    inference = an_inference(
        name,
        tier=tier.value,
        placement={"pool": "cpu-a", "slices": slices},
        status=status,
        **{**range_, **spec},
    )
    given = held + spares
    there = given if pods is None else pods
    claim = PoolClaim(
        inference.key,
        tier,
        slices,
        least if most is None else given,
        given * slices,
        "",
        pods={"node-0": there * slices} if there > given else {},
        spares=spares,
    )
    return PoolMember(inference, claim, min(given, there) if ready is None else ready, apart, refused, lost)


def nodes(*slices: int) -> PoolSlices:
    """Healthy nodes with so many slices each."""
    return sum_nodes(NodeSlices(f"node-{number}", count, {}, "") for number, count in enumerate(slices))


def observed(*members: PoolMember, slices: Sequence[int] = (8,), **more: Any) -> AllocationObserved:
    """The pool cpu-a of one node with eight slices, with these members. `policy` and `tiers` are the pool's."""
    spec = {name: more.pop(name) for name in ("policy", "tiers") if name in more}
    pool = a_compute_pool(**spec)
    return AllocationObserved(pool, more.pop("now", NOW), nodes(*slices), members, **more)


def signals(problem: str = "", **rates: float) -> Signals:
    """What is asked of models; of those that are not named nothing is known."""
    by_key = {
        an_inference(name).key: Signal(rate, NOW, fresh=not problem, held_reason=problem)
        for name, rate in rates.items()
    }
    return Signals(by_key, problem)


def a_decision(
    *moves: tuple[str, int, int],
    name: str = "cpu-a-1",
    at: datetime = NOW,
    mode: str = "Auto",
    outcome: dict[str, Any] | None = None,
    tier: str = "realtime",
    slices: int = 1,
    spares: dict[str, int] | None = None,
    **spec: Any,
) -> AllocationDecision:
    """A decision about cpu-a: a_decision(("ctr", 1, 3), spares={"ctr": 1})."""
    listed = [
        {"inference": f"ads/{model}", "tier": tier, "from": before, "to": after, "slices": slices}
        for model, before, after in moves
    ]
    return AllocationDecision.parse(
        {
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {
                "pool": "cpu-a",
                "at": at.isoformat(),
                "mode": mode,
                "solver": "LP",
                "moves": listed,
                "moveCount": len(listed),
                "spares": [
                    {"inference": f"ads/{model}", "replicas": count, "slices": slices}
                    for model, count in (spares or {}).items()
                ],
                **spec,
            },
            "status": {"outcome": outcome} if outcome is not None else {},
        }
    )
