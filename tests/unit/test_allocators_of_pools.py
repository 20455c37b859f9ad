"""The allocators of two pools, as the controllers run them: a model moves to the pool with room, and each pool writes its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from builders.compute_pool import compute_pool_body
from builders.fake_clock import FakeClock
from builders.inference import inference_body
from builders.ownership import of_deployment
from builders.placement_world import PlacementWorld, pool_labels
from tidegate.allocation.assembly import SolveLimits, solve_greedily
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import ALLOCATION_DECISION, HORIZONTAL_POD_AUTOSCALER, INFERENCE, Kind
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate.resources.names import make_pool_deployment_name
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits
from tidegate_controllers.allocator.events import AllocationEvents
from tidegate_controllers.allocator.executor import DecisionExecutor
from tidegate_controllers.allocator.forecasts import AllocationForecasts
from tidegate_controllers.allocator.observer import PoolObserver
from tidegate_controllers.allocator.reconciler import AllocationResults, Allocator
from tidegate_controllers.allocator.solver import PoolSolver
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_controllers.typed_caches import OverrideIndex

POOLS = ("cpu-a", "cpu-b")


@dataclass(frozen=True)
class Model:
    """A real-time model of 100 requests per second, and the replicas that run in each of its pools, in the order of its list."""

    demand: float
    value: str
    running: Mapping[str, int]


FULL = {"ctr": Model(290.0, "1", {"cpu-a": 3, "cpu-b": 0}), "rank": Model(190.0, "0.5", {"cpu-a": 1})}
"""cpu-a is full of three replicas of ctr, which may use both pools, and one of rank, which may use it alone."""
CROWDED = {
    "ctr": Model(190.0, "3", {"cpu-a": 2, "cpu-b": 2}),
    "first": Model(190.0, "1", {"cpu-a": 2}),
    "second": Model(190.0, "2", {"cpu-b": 2}),
}
"""Both pools are full, and ctr has two replicas too many."""


class World(PlacementWorld):
    """Two pools of four slices with models in them.

    The world is the API server, the reconciler of Inferences and the kubelets: pods have what was decided, and are ready one
    round later.
    """

    def __init__(
        self, second_mode: str = "Auto", models: Mapping[str, Model] = FULL, second_interval: str = "10s"
    ) -> None:
        super().__init__()
        self.models = models
        self.clock, self.fence = FakeClock(), Fence.unlimited(1)
        self.demand = {name: model.demand for name, model in models.items()}
        self.solved: list[tuple[str, ...]] = []
        self.fails = self.raises = False
        self.gap, self.note = 0.0, ""
        self.unwritable: set[str] = set()
        """Pools whose decisions the API server refuses."""
        self._solver = Solver(lambda: 0.0)
        policies = ("Auto", "10s"), (second_mode, second_interval)
        for name, (mode, interval) in zip(POOLS, policies, strict=True):
            policy = {"mode": mode, "interval": interval, "dwell": "0s"}
            self.has(
                self.stores.pools, compute_pool_body(name, nodeSelector={"pool": name[-1]}, policy=policy)
            )
        for name, model in models.items():
            pools = list(model.running)
            placed: dict[str, Any] = {"pools": [{"name": pool} for pool in pools]}
            body = inference_body(
                name,
                "ads",
                replicas=None,
                scaling={"minReplicas": 1, "maxReplicas": 8},
                capacity={"requestsPerSecond": "100"},
                value={"perRequest": model.value},
                placement=placed if len(pools) > 1 else {"pool": pools[0]},
            )
            self.has(self.stores.inferences, {**body, "status": {}})
            for pool, count in model.running.items():
                self._run_pods(name, pool, count)
        for store in (self._nodes, self.occupancy._foreign_pods):  # pyright: ignore[reportPrivateUsage]
            store.synced.set()
        self.allocator = self._make_allocator()

    def _make_allocator(self) -> Allocator:
        metrics, cluster = AllocatorMetrics(CollectorRegistry()), cast(Any, self)
        observer = PoolObserver(
            pools=self.pools,
            inferences=self.inferences,
            decisions=TypedCache(AllocationDecision, self.stores.decisions),
            slices_cache=self.views,
            occupancy=self.occupancy,
            placements=self.placements,
            spares=SharedSpares(self.stores, Ownership(self.stores), self.placements),
            overrides=OverrideIndex(TypedCache(ComputeOverride, self.stores.overrides)),
            clock=self.clock,
        )
        return Allocator(
            observer=observer,
            solver=PoolSolver(
                solver=self,
                demand=self,
                forecasts=AllocationForecasts(None, self.clock),
                events=AllocationEvents(None, self.clock),
                inputs=SolverInputs(),
                metrics=metrics,
                clock=self.clock,
            ),
            executor=DecisionExecutor(cluster=cluster, observer=observer, fence=self.fence, metrics=metrics),
            autoscalers=AutoscalerLimits(cluster, ObjectStore(HORIZONTAL_POD_AUTOSCALER)),
            results=AllocationResults(lambda _: None),
            metrics=metrics,
            fence=self.fence,
            clock=self.clock,
        )

    async def run_round(self) -> Mapping[str, tuple[int, int]]:
        """Let each allocator look, give what they decided, and go on by an interval; the replicas of each model by pool."""
        for name in POOLS * 2:
            with suppress(PermanentError):
                await self.allocator.reconcile(ObjectKey("", name))
            self._place_all()
        await self.clock.advance(10.0)
        return self._place_all()

    def decisions(self, pool: str) -> list[AllocationDecision]:
        """Those of one pool, the oldest first."""
        found = [AllocationDecision.parse(body) for body in self.stores.decisions]
        return sorted((item for item in found if item.spec.pool == pool), key=lambda item: item.spec.at)

    async def solve(
        self, snapshot: AllocationSnapshot, limits: SolveLimits | None = None, *, outwait: bool = True
    ) -> Assignment:
        del limits, outwait
        self.solved.append(tuple(pool.name for pool in snapshot.pools))
        if self.fails and len(snapshot.pools) > 1:
            return solve_greedily(snapshot, "the solver did not start")
        if self.raises and len(snapshot.pools) > 1:
            raise ValueError("an input that the solver does not expect")
        answer = self._solver.solve(snapshot, SolveLimits(seconds=10.0))
        return replace(answer, gap=self.gap, note=self.note) if len(snapshot.pools) > 1 else answer

    async def read(self) -> Signals:
        now = self.clock.now()
        return Signals(
            {ObjectKey("ads", name): Signal(rate, now, fresh=True) for name, rate in self.demand.items()}
        )

    async def apply(self, manifest: Mapping[str, Any], fence: Fence) -> Mapping[str, Any]:
        del fence
        if manifest["spec"]["pool"] in self.unwritable:
            raise PermanentError("refused by a policy")
        self.has(self.stores.decisions, dict(manifest))
        stored = self.stores.decisions.get(ObjectKey("", manifest["metadata"]["name"]))
        assert stored is not None
        return stored

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Mapping[str, Any], *, uid: str, fence: Fence
    ) -> Mapping[str, Any]:
        del uid, fence
        store = {INFERENCE: self.stores.inferences, ALLOCATION_DECISION: self.stores.decisions}[kind]
        body = store.get(key)
        assert body is not None
        self.has(store, {**body, "status": {**body.get("status", {}), **status}})
        stored = store.get(key)
        assert stored is not None
        return stored

    def _place_all(self) -> Mapping[str, tuple[int, int]]:
        """Run the pods that each pool gives; those that started before are ready."""
        counts: dict[str, tuple[int, int]] = {}
        for name, model in self.models.items():
            placed, pools = self.of(name), list(model.running)
            given = {item.pool: item.replicas for item in placed.pools} or {pools[0]: placed.replicas}
            for pool in pools:
                self._run_pods(name, pool, given.get(pool, 0))
            self.placements.forget_assumed(ObjectKey("ads", name))
            counts[name] = given.get("cpu-a", 0), given.get("cpu-b", 0)
        return counts

    def _run_pods(self, name: str, pool: str, count: int) -> None:
        is_only = len(self.models[name].running) == 1
        deployment = f"inf-{name}" if is_only or pool == "cpu-a" else make_pool_deployment_name(name, pool)
        self.deployment(name, count, pool, name=deployment)
        for number in range(8):
            metadata = {"name": f"{deployment}-{number}", "namespace": "ads"}
            metadata |= of_deployment(deployment, {**pool_labels(name, pool), "tidegate.io/tier": "realtime"})
            before = self.stores.pods.get(ObjectKey("ads", f"{deployment}-{number}"))
            ready = "True" if before is not None else "False"
            body = {
                "metadata": metadata,
                "spec": {
                    "nodeName": f"node-{pool[-1]}",
                    "containers": [
                        {"name": "triton", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
                    ],
                },
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
            }
            if number < count or before is not None:
                self.has(self.stores.pods, body, gone=number >= count)


async def test_a_model_moves_to_the_pool_with_room_and_each_pool_writes_its_own_decision() -> None:
    world = World()
    rounds = [await world.run_round() for _ in range(6)]
    assert rounds[-1] == {"ctr": (2, 1), "rank": (2, 0)}
    assert all(sum(counts["ctr"]) >= 3 for counts in rounds), "no replica stops before another serves"
    assert all(counts["ctr"][0] + counts["rank"][0] <= 4 for counts in rounds)
    [started] = world.decisions("cpu-b")
    assert [(move.inference, move.before, move.after) for move in started.spec.moves] == [("ads/ctr", 0, 1)]
    assert "demand 90/s beside 2 replicas in cpu-a exceeds 0/s" in started.spec.moves[0].why
    [given] = [item for item in world.decisions("cpu-a") if item.spec.moves]
    assert {(move.inference, move.before, move.after) for move in given.spec.moves} == {
        ("ads/ctr", 3, 2),
        ("ads/rank", 1, 2),
    }
    assert "beside 1 replica in cpu-b" in given.spec.moves[0].why
    assert given.status.outcome is not None
    assert given.status.outcome.error == ""
    assert POOLS in world.solved


@pytest.mark.parametrize("mode", ["RecommendOnly", "Hold"])
async def test_nothing_moves_to_a_pool_whose_decisions_are_not_carried_out(mode: str) -> None:
    world = World(mode)
    for _ in range(4):
        assert await world.run_round() == {"ctr": (3, 0), "rank": (1, 0)}


async def test_without_an_answer_of_the_solver_no_replica_moves_between_pools_and_decisions_say_so() -> None:
    world = World()
    world.fails = True
    for _ in range(4):
        assert await world.run_round() == {"ctr": (3, 0), "rank": (1, 0)}
    world.demand["ctr"] = 390.0
    rounds = [await world.run_round() for _ in range(3)]
    assert rounds[-1] == {"ctr": (3, 1), "rank": (1, 0)}, (
        "the second pool starts what the first has no room for"
    )
    [decided] = world.decisions("cpu-b")
    assert "not solved together with cpu-a: the solver did not start" in decided.spec.note


async def test_other_pools_are_divided_with_the_demand_of_this_tick() -> None:
    world = World(models=CROWDED)
    for _ in range(8):
        await world.run_round()
    world.demand |= {"first": 390.0, "second": 390.0}
    await world.allocator.reconcile(ObjectKey("", "cpu-a"))
    placed = {item.pool: item.replicas for item in world.of("ctr").pools}
    assert placed["cpu-a"] == 2, "cpu-a gives up nothing, because second needs all of cpu-b now"


async def test_no_pool_waits_for_one_that_does_not_carry_its_decisions_out() -> None:
    world = World()
    world.demand["ctr"] = 190.0
    settled = [await world.run_round() for _ in range(10)]
    assert settled[-1] == {"ctr": (2, 0), "rank": (2, 0)}
    world.unwritable.add("cpu-b")
    world.demand["ctr"] = 490.0
    alone = [await world.run_round() for _ in range(6)]
    assert alone[-1] == {"ctr": (3, 0), "rank": (1, 0)}, "ctr is worth more than the second replica of rank"
    world.unwritable.clear()
    again = [await world.run_round() for _ in range(3)]
    assert sum(again[-1]["ctr"]) == 5


async def test_no_pool_waits_for_one_that_decides_much_more_seldom() -> None:
    world = World(second_interval="10m")
    world.demand["ctr"] = 190.0
    settled = [await world.run_round() for _ in range(10)]
    assert settled[-1] == {"ctr": (2, 0), "rank": (2, 0)}
    world.demand["ctr"] = 490.0
    assert (await world.run_round())["ctr"] == (3, 0)


async def test_an_error_about_one_pool_stops_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(models={**FULL, "ctr": Model(190.0, "1", {"cpu-a": 2, "cpu-b": 0})})
    await world.run_round()
    list_decisions = PoolObserver.list_decisions

    def fail_for_one(self: PoolObserver, pool: str) -> Any:
        if pool == "cpu-b":
            raise ValueError("cannot be read")
        return list_decisions(self, pool)

    world.demand["ctr"] = 290.0
    monkeypatch.setattr(PoolObserver, "list_decisions", fail_for_one)
    await world.allocator.reconcile(ObjectKey("", "cpu-a"))
    monkeypatch.undo()
    assert world.decisions("cpu-a")[-1].spec.note == "solved without cpu-b: ValueError"


async def test_an_error_of_the_division_stops_no_pool_and_decisions_say_so() -> None:
    world = World()
    world.raises = True
    for _ in range(2):
        assert await world.run_round() == {"ctr": (3, 0), "rank": (1, 0)}
    world.demand["ctr"] = 390.0
    assert (await world.run_round())["ctr"] == (3, 1)
    [decided] = world.decisions("cpu-b")
    assert "not solved together with cpu-a: ValueError" in decided.spec.note


async def test_an_answer_far_from_the_optimum_moves_nothing_and_is_not_asked_for_again_at_once() -> None:
    world = World()
    world.gap, world.note = 0.004, "out of time for whole replicas"
    for _ in range(4):
        assert await world.run_round() == {"ctr": (3, 0), "rank": (1, 0)}
    assert world.solved.count(POOLS) <= 2, "once for each pool"
    await world.clock.advance(300.0)
    world.gap = 0.002
    moved = [await world.run_round() for _ in range(4)]
    assert moved[-1] == {"ctr": (2, 1), "rank": (2, 0)}
    [decided] = world.decisions("cpu-b")
    assert decided.spec.note == "solved together with cpu-a: out of time for whole replicas"


@pytest.mark.parametrize(("capacity", "connected"), [("100", 11), ("", 1)])
async def test_inferences_of_others_neither_end_a_group_nor_enlarge_it_without_limit(
    capacity: str, connected: int
) -> None:
    world = World()
    names = [f"cpu-{letter}" for letter in "cdefghijklmno"]
    for name in names:
        world.node(f"node-{name[-1]}")
        policy = {"mode": "Auto"}
        body = compute_pool_body(name, nodeSelector={"pool": name[-1]}, policy=policy)
        world.has(world.stores.pools, body)
    for key, pools in (("near", ["cpu-a", *names[:7]]), ("far", names[6:])):
        body = inference_body(
            key,
            "other",
            replicas=None,
            scaling={"minReplicas": 1, "maxReplicas": 1},
            placement={"pools": [{"name": name} for name in pools]},
            **({"capacity": {"requestsPerSecond": capacity}} if capacity else {}),
        )
        world.has(world.stores.inferences, {**body, "status": {}})
    observer = world.allocator.observer
    pool = observer.pools.get(ObjectKey("", "cpu-a"))
    assert pool is not None
    group = observer.observe_group(observer.observe_pool(pool), {*names, "cpu-b"})
    assert len(group.pools) == connected
    assert "cpu-b" in [item.name for item in group.pools]


async def test_pools_that_share_nothing_are_solved_alone() -> None:
    world = World()
    body: Any = world.stores.inferences.get(ObjectKey("ads", "ctr"))
    body = {**body, "spec": {**body["spec"], "placement": {"pool": "cpu-a"}}}
    world.has(world.stores.inferences, body)
    for _ in range(3):
        await world.run_round()
    assert set(world.solved) == {("cpu-a",)}


async def test_two_pools_that_give_up_one_model_do_not_count_on_each_other() -> None:
    world = World(models=CROWDED)
    for _ in range(8):
        await world.run_round()
    world.demand |= {"first": 390.0, "second": 390.0}
    for name in POOLS:
        await world.allocator.reconcile(ObjectKey("", name))
    both_decided = world.of("ctr")
    assert sum(item.replicas for item in both_decided.pools) >= 2, "190 requests per second need two"
    for _ in range(4):
        assert sum((await world.run_round())["ctr"]) >= 2
