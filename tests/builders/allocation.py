"""Inputs of the allocator in one line each, and any small ones at all."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.curves import CapacityCurve, linear_curve
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DeadlineInput,
    DemandInput,
    HorizonStep,
    ModelInput,
    NodeLossInput,
    NodeReplicas,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
    TierRule,
    ValueClass,
)
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier


def a_pool(name: str = "gpu-a", slices: int = 8, **more: Any) -> PoolInput:
    """A pool without rules."""
    return PoolInput(name, slices, **more)


def a_placement(
    pool: str = "gpu-a", ready: int = 0, per_replica: float = 100.0, **more: Any
) -> PlacementInput:
    """`ready` replicas that serve `per_replica` requests per second each."""
    replicas = more.pop("replicas", ReplicaCounts(ready=ready))
    curve = more.pop("curve", linear_curve(per_replica))
    return PlacementInput(pool, curve, replicas=replicas, **more)


def a_model(
    name: str = "ctr",
    tier: Tier = Tier.REALTIME,
    *placements: PlacementInput,
    rate: float | None = 100.0,
    **more: Any,
) -> ModelInput:
    """A model that `rate` requests per second are asked of; None: nobody knows."""
    load = more.pop("load", None if rate is None else DemandInput((rate,)))
    return ModelInput(f"ads/{name}", tier, placements or (a_placement(),), load, **more)


def a_snapshot(*objects: PoolInput | ModelInput, **more: Any) -> AllocationSnapshot:
    """Pools and models in any order; without a pool one of 8 slices."""
    pools = tuple(each for each in objects if isinstance(each, PoolInput)) or (a_pool(),)
    return AllocationSnapshot(pools, tuple(each for each in objects if isinstance(each, ModelInput)), **more)


@st.composite
def curves(draw: st.DrawFn) -> CapacityCurve:
    """One or two pieces."""
    first = draw(st.integers(5, 20))
    if draw(st.booleans()):
        return linear_curve(first)
    return CapacityCurve(((2, 2.0 * first), (4, 2.0 * first + draw(st.integers(0, 2 * first)))))


@st.composite
def classes(draw: st.DrawFn) -> tuple[ValueClass, ...]:
    """Requests of one value, or of two to three."""
    values = sorted(draw(st.sets(st.sampled_from([0.0, 0.5, 1.0, 4.0]), max_size=3)), reverse=True)
    return tuple(ValueClass(value, 1 / len(values)) for value in values) if len(values) > 1 else ()


@st.composite
def pools(draw: st.DrawFn, name: str) -> PoolInput:
    """Up to 6 slices, with any rules."""
    tiers = draw(st.lists(st.sampled_from(list(Tier)), unique=True, max_size=2))
    rules = []
    for tier in tiers:
        floor = draw(st.integers(0, 3))
        rules.append(TierRule(tier, floor, draw(st.none() | st.integers(floor, 5))))
    return PoolInput(
        name,
        draw(st.integers(0, 6)),
        nodes=draw(st.integers(0, 3)),
        spares=draw(st.integers(0, 2)),
        tiers=tuple(rules),
        budget=draw(st.none() | st.integers(0, 4)),
        hold=draw(st.sampled_from([False, False, False, True])),
        price=draw(st.sampled_from([0.0, 1.0, 30.0])),
        node_loss=draw(
            st.sampled_from([None, NodeLossInput(3600.0, 60.0), NodeLossInput(7200.0, 60.0, 10.0)])
        ),
    )


@st.composite
def placed_replicas(draw: st.DrawFn) -> tuple[NodeReplicas, ...]:
    """Ready replicas on up to three nodes, the fullest first."""
    counts = sorted(draw(st.lists(st.integers(1, 3), max_size=3)), reverse=True)
    return tuple(NodeReplicas(f"node-{number}", count) for number, count in enumerate(counts))


def deadlines() -> st.SearchStrategy[DeadlineInput]:
    """Of a minute, for any small rate."""
    return st.integers(0, 60).map(lambda rate: DeadlineInput(float(rate), 60.0))


@st.composite
def models(draw: st.DrawFn, number: int, names: list[str], steps: int) -> ModelInput:
    """In one of the pools, or in two."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    ages = st.sampled_from([float("inf"), float("inf"), 0.0])
    placements = tuple(
        PlacementInput(
            name,
            draw(curves()),
            slices=draw(st.integers(1, 2)),
            replicas=ReplicaCounts(ready=draw(st.integers(0, 3)), loading=draw(st.integers(0, 1))),
            load_s=draw(st.sampled_from([10.0, 100.0])),
            since_up_s=draw(ages),
            since_down_s=draw(ages),
            ready_by_node=draw(st.just(()) | placed_replicas()),
            rank=rank,
        )
        for rank, name in enumerate(chosen)
    )
    least = draw(st.integers(0, 2))
    tier = draw(st.sampled_from(list(Tier)))
    deadline = draw(st.none() | deadlines()) if tier is Tier.NEARLINE else None
    rates = tuple(float(draw(st.integers(0, 60))) for _ in range(steps))
    return ModelInput(
        f"ads/m{number}",
        tier,
        placements,
        draw(st.none() | st.just(DemandInput(rates)))
        if draw(st.integers(0, 4)) == 0
        else DemandInput(rates, classes=draw(classes()), deadline=deadline),
        ReplicaBounds(least, draw(st.none() | st.integers(least, 4))),
        value=draw(st.sampled_from([0.5, 1.0, 7.0])),
        keeps_node_spare=draw(st.booleans()),
        has_shared_spare=draw(st.booleans()),
    )


@st.composite
def snapshots(draw: st.DrawFn, most_models: int = 3) -> AllocationSnapshot:
    """Anything small enough to try every answer."""
    names = ["a", "b"][: draw(st.integers(1, 2))]
    steps = tuple(HorizonStep(60.0, weight) for weight in (1.0, 0.5)[: draw(st.integers(1, 2))])
    made = tuple(draw(pools(name)) for name in names)
    asked = tuple(
        draw(models(number, names, len(steps))) for number in range(draw(st.integers(0, most_models)))
    )
    return AllocationSnapshot(made, asked, steps=steps, dwell_s=50.0)


def solve_snapshot(snapshot: AllocationSnapshot) -> Assignment:
    """Return the solver's answer, with all the time that it needs."""
    return Solver(lambda: 0.0).solve(snapshot)
