"""Several allocators that decide about one Inference: their parts add up, in the order of its list, whichever looks first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from builders.allocator import NOW, a_member, nodes, signals
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from builders.pods import a_pod
from tidegate.allocation.curves import linear_curve
from tidegate.allocation.snapshot import DeadlineInput, DemandInput, ReplicaBounds
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Inference, Tier
from tidegate.planning.allocator.decision_steps import TargetReplicas, make_allocation
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.other_pools import (
    OtherPool,
    count_reliable,
    narrow_bounds,
    reduce_demand,
)
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.inference.replicas import resolve_replicas, select_serving_pods
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.spill_over import DividedReplicas, ListedPool, divide_inference

CAPACITY = 100
ORDER = ("cpu-a", "cpu-b", "cpu-c")


def in_pools(*pools: str, least: int = 1, most: int = 12, **more: Any) -> Inference:
    return an_inference(
        scaling={"minReplicas": least, "maxReplicas": most},
        capacity={"requestsPerSecond": str(CAPACITY)},
        placement={"pools": [{"name": pool} for pool in pools]},
        **{"replicas": None, **more},
    )


@dataclass
class World:
    """The model ctr in pools of so many slices, whose allocators look when a test says so."""

    slices: dict[str, int]
    demand: float = 0.0
    least: int = 1
    most: int = 12
    replicas: dict[str, int] = field(default_factory=dict)
    """As decided and with slices."""
    loading: dict[str, int] = field(default_factory=dict)
    """How many of them are not ready."""
    overrides: Sequence[Any] = ()
    rival: PoolMember | None = None
    """Another model of the pool that looks, with a demand for three replicas."""
    offline: dict[str, int] | None = None
    """Replicas of an offline model that can use every slice; None without one, where no replica has a reason to end."""
    solver: Solver = field(default_factory=lambda: Solver(lambda: 0.0))

    def look(self, *pools: str) -> dict[str, int]:
        """The allocators decide one after the other; what each pool has afterwards."""
        for pool in pools:
            self.replicas[pool] = self.decide(pool)
        return {pool: count for pool in self.slices if (count := self.replicas.get(pool, 0))}

    def decide(self, name: str) -> int:
        parts = [{"name": pool, "replicas": count} for pool, count in self.replicas.items()]
        allocation = {"replicas": sum(self.replicas.values()), "epoch": 1, "pools": parts}
        inference = in_pools(
            *self.slices, least=self.least, most=self.most, status={"allocation": allocation} if parts else {}
        )
        count = self.replicas.get(name, 0)
        claim = PoolClaim(inference.key, inference.spec.tier, 1, count, count, "")
        names = list(self.slices)
        others = [
            OtherPool(
                replicas=count_reliable(
                    self.replicas.get(other, 0),
                    self.replicas.get(other, 0) - self.loading.get(other, 0),
                    self.slices[other],
                ),
                ready=self.replicas.get(other, 0) - self.loading.get(other, 0),
                room=max(
                    self.slices[other] - self.replicas.get(other, 0) - (self.offline or {}).get(other, 0), 0
                ),
                curve=linear_curve(CAPACITY),
                is_before=names.index(other) < names.index(name),
            )
            for other in names
            if other != name
        ]
        ready = count - self.loading.get(name, 0)
        member = PoolMember(
            inference.narrow_to_pool(name), claim, ready, other_pools=others, all_pools=inference
        )
        observed = AllocationObserved(
            a_compute_pool(name),
            NOW,
            nodes(self.slices[name]),
            (
                member,
                *(() if self.offline is None else (self._make_offline(name),)),
                *(() if self.rival is None else (self.rival,)),
            ),
            signals=signals(ctr=self.demand, rival=290),
            overrides=self.overrides,
        )
        assignment = self.solver.solve(build_allocation_view(observed).snapshot)
        counts = {item.inference: item.replicas for item in assignment.replicas}
        if self.offline is not None:
            self.offline[name] = counts["ads/batch"]
        return counts["ads/ctr"]

    def _make_offline(self, pool: str) -> PoolMember:
        held = (self.offline or {}).get(pool, 0)
        return a_member("batch", held, least=0, most=20, tier=Tier.OFFLINE)


@pytest.mark.parametrize("order", [ORDER[:2], ORDER[1::-1]])
def test_the_first_pool_fills_before_the_second_whichever_looks_first(order: Sequence[str]) -> None:
    world = World({"cpu-a": 4, "cpu-b": 4}, demand=290)
    for _ in range(3):
        world.look(*order)
    assert world.look(*order) == {"cpu-a": 3}
    world.demand = 590
    for _ in range(3):
        world.look(*order)
    assert world.look(*order) == {"cpu-a": 4, "cpu-b": 2}


def test_a_third_pool_takes_what_two_have_no_room_for_and_more_than_all_is_cut() -> None:
    world = World({"cpu-a": 2, "cpu-b": 2, "cpu-c": 2}, demand=490)
    for _ in range(3):
        world.look(*ORDER)
    assert world.look(*ORDER) == {"cpu-a": 2, "cpu-b": 2, "cpu-c": 1}
    world.demand = 5_000
    assert world.look(*ORDER) == {"cpu-a": 2, "cpu-b": 2, "cpu-c": 2}
    world.most = 5
    for _ in range(2):
        world.look(*reversed(ORDER))
    assert world.look(*ORDER) == {"cpu-a": 2, "cpu-b": 2, "cpu-c": 1}


def test_room_that_returns_to_the_first_pool_moves_nothing() -> None:
    world = World({"cpu-a": 2, "cpu-b": 4}, demand=390, replicas={"cpu-a": 2, "cpu-b": 2})
    world.slices["cpu-a"] = 4
    for _ in range(3):
        assert world.look("cpu-a", "cpu-b") == {"cpu-a": 2, "cpu-b": 2}


@pytest.mark.parametrize("order", [ORDER[:2], ORDER[1::-1]])
def test_less_demand_ends_replicas_in_the_last_pool_first(order: Sequence[str]) -> None:
    world = World({"cpu-a": 4, "cpu-b": 4}, 690, replicas={"cpu-a": 4, "cpu-b": 3}, offline={})
    totals = [7]
    for demand, expected in ((490, {"cpu-a": 4, "cpu-b": 1}), (290, {"cpu-a": 3}), (0, {"cpu-a": 1})):
        world.demand = demand
        for _ in range(3):
            world.look(*order)
            totals.append(sum(world.replicas.values()))
            assert CAPACITY * totals[-1] >= demand
        assert world.look(*order) == expected
    assert all(before >= after for before, after in pairwise(totals)), "nothing is stopped and started again"


def test_replicas_stay_until_those_of_the_pools_before_are_ready() -> None:
    world = World({"cpu-a": 4, "cpu-b": 4}, 390, replicas={"cpu-a": 4, "cpu-b": 2}, offline={})
    world.loading = {"cpu-a": 2}
    assert world.look("cpu-b", "cpu-a") == {"cpu-a": 4, "cpu-b": 2}
    world.loading = {"cpu-a": 1}
    assert world.look("cpu-b") == {"cpu-a": 4, "cpu-b": 1}
    world.loading = {}
    assert world.look("cpu-b") == {"cpu-a": 4}


def test_the_minimum_is_that_of_all_pools_together() -> None:
    world = World({"cpu-a": 2, "cpu-b": 4}, least=3, replicas={"cpu-a": 2, "cpu-b": 1})
    for _ in range(3):
        assert world.look("cpu-b", "cpu-a") == {"cpu-a": 2, "cpu-b": 1}
    world.least = 5
    assert world.look("cpu-a", "cpu-b") == {"cpu-a": 2, "cpu-b": 3}


def test_a_pin_counts_all_pools() -> None:
    target = {"kind": "Inference", "namespace": "ads", "name": "ctr"}
    pin = a_compute_override(target=target, pin={"replicas": 5})
    world = World({"cpu-a": 3, "cpu-b": 4}, overrides=(pin,), replicas={"cpu-a": 2, "cpu-b": 1})
    for _ in range(3):
        world.look("cpu-b", "cpu-a")
    assert sum(world.replicas.values()) == 5
    assert world.replicas == {"cpu-a": 3, "cpu-b": 2}


class TestTheAllocationOfSeveralPools:
    def test_each_allocator_writes_its_part_and_the_sum(self) -> None:
        inference = in_pools("cpu-a", "cpu-b")
        first = make_allocation(inference, "cpu-b", TargetReplicas(2, 1), "cpu-b-1")
        assert first == {
            "replicas": 2,
            "spares": 1,
            "decision": "cpu-b-1",
            "pools": [{"name": "cpu-b", "replicas": 2, "spares": 1, "decision": "cpu-b-1"}],
        }
        inference = in_pools("cpu-a", "cpu-b", status={"allocation": {**first, "epoch": 1}})
        second = make_allocation(inference, "cpu-a", TargetReplicas(3), "cpu-a-1")
        assert (second["replicas"], second["spares"]) == (5, 1)
        assert [pool["name"] for pool in second["pools"]] == ["cpu-a", "cpu-b"], "in the order of the list"

    def test_a_pool_that_left_the_list_is_dropped_and_one_without_a_decision_keeps_what_runs(self) -> None:
        status = {
            "allocation": {"replicas": 9, "epoch": 1, "pools": [{"name": "old", "replicas": 9}]},
            "pools": [{"name": "cpu-b", "replicas": 2}, {"name": "old", "replicas": 9}],
        }
        made = make_allocation(
            in_pools("cpu-a", "cpu-b", status=status), "cpu-a", TargetReplicas(1), "cpu-a-1"
        )
        assert [(pool["name"], pool["replicas"]) for pool in made["pools"]] == [("cpu-a", 1), ("cpu-b", 2)]
        assert made["replicas"] == 3

    def test_with_one_pool_nothing_changes(self) -> None:
        inference = an_inference(placement={"pool": "cpu-a"})
        assert make_allocation(inference, "cpu-a", TargetReplicas(3), "d") == {"replicas": 3, "decision": "d"}
        assert make_allocation(None, "cpu-a", TargetReplicas(3, 1), "d")["spares"] == 1
        assert inference.narrow_to_pool("cpu-a") is inference

    def test_pools_have_what_was_decided_and_never_more_than_the_range(self) -> None:
        pools = [{"name": "cpu-a", "replicas": 3, "spares": 1}]
        inference = in_pools(
            "cpu-a", "cpu-b", status={"allocation": {"replicas": 3, "spares": 1, "epoch": 1, "pools": pools}}
        )
        share_a, share_b = inference.spec.placement.pool_shares  # type: ignore[union-attr]
        places = [ListedPool(share_a, None), ListedPool(share_b, None, assumed=2)]
        assert divide_inference(inference, places) == DividedReplicas((4, 2), 0)
        narrow = in_pools("cpu-a", "cpu-b", most=5, status=inference.status.dump())
        assert divide_inference(narrow, places) == DividedReplicas((4, 1), 0)
        assert inference.narrow_to_pool("cpu-a").decided_pods == 4
        assert inference.narrow_to_pool("cpu-b").status.allocation is None

    def test_before_the_first_decision_the_minimum_spills_over(self) -> None:
        inference = resolve_replicas(in_pools("cpu-a", "cpu-b", least=3), None)
        share_a, share_b = inference.spec.placement.pool_shares  # type: ignore[union-attr]
        places = [ListedPool(share_a, None), ListedPool(share_b, None)]
        assert divide_inference(inference, places) == DividedReplicas((0, 0), 3)

    def test_a_spare_of_one_pool_is_none_of_the_other(self) -> None:
        pools = [{"name": "cpu-a", "replicas": 1, "spares": 1}, {"name": "cpu-b", "replicas": 1}]
        inference = in_pools(
            "cpu-a", "cpu-b", status={"allocation": {"replicas": 2, "spares": 1, "epoch": 1, "pools": pools}}
        )
        pods = [
            replace(a_pod(name, source=""), pool=pool)
            for name, pool in (("a1", "cpu-a"), ("a2", "cpu-a"), ("b1", "cpu-b"))
        ]
        assert [pod.key.name for pod in select_serving_pods(inference, pods)] == ["a1", "b1"]


def test_without_other_pools_bounds_and_demand_are_as_they_were() -> None:
    bounds, load = ReplicaBounds(2, 4), DemandInput((100.0,))
    assert narrow_bounds(bounds, 3, ()) is bounds
    assert reduce_demand(load, 300.0, ()) == load


@pytest.mark.parametrize(
    ("replicas", "ready", "fitting", "reliable"),
    [(4, 4, 8, 4), (4, 0, 0, 0), (4, 1, 0, 1), (4, 0, 2, 2), (2, 4, 8, 2)],
)
def test_a_pool_without_healthy_nodes_is_not_counted_on(
    replicas: int, ready: int, fitting: int, reliable: int
) -> None:
    assert count_reliable(replicas, ready, fitting) == reliable


def test_another_pool_takes_over_when_the_first_loses_its_nodes() -> None:
    world = World({"cpu-a": 4, "cpu-b": 4}, demand=290, replicas={"cpu-a": 3})
    assert world.look("cpu-b") == {"cpu-a": 3}
    world.slices["cpu-a"] = 0
    world.loading["cpu-a"] = 3
    assert world.look("cpu-b") == {"cpu-a": 3, "cpu-b": 3}


@pytest.mark.parametrize("demand", [0.0, 1e308])
def test_absurd_demand_stays_a_number(demand: float) -> None:
    other = OtherPool(1, 1, 0, linear_curve(100.0), is_before=True)
    (rate,) = reduce_demand(DemandInput((demand,)), 300.0, (other,)).rates
    assert rate == max(demand - 100.0, 0.0)


def test_a_deadline_needs_here_what_the_others_do_not_answer() -> None:
    load = DemandInput((300.0,), deadline=DeadlineInput(200.0, 60.0))
    other = OtherPool(1, 1, 0, linear_curve(150.0), is_before=True, name="cpu-b")
    reduced = reduce_demand(load, 0.0, (other,))
    assert (reduced.rates, reduced.deadline) == ((150.0,), DeadlineInput(50.0, 60.0))
    assert reduced.elsewhere == "1 replica in cpu-b"


def test_a_second_pool_gives_no_priority_over_work_of_more_value() -> None:
    world = World({"cpu-a": 4, "ghost": 0}, demand=390, replicas={"cpu-a": 4})
    world.rival = a_member(
        "rival",
        0,
        least=1,
        capacity={"requestsPerSecond": str(CAPACITY)},
        value={"perRequest": "1000"},
    )
    assert world.decide("cpu-a") == 1
