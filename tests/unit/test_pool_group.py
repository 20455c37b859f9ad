"""Pools that share Inferences, solved as one: what they serve together is the most that any division serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import product
from math import inf
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from builders.allocator import NOW, a_decision, nodes, signals
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from stages.examples import examples
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.curves import linear_curve
from tidegate.allocation.snapshot import DemandInput
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.other_pools import OtherPool, follow_division, limit_growth, reduce_demand
from tidegate.planning.allocator.pool_group import build_group, divide_members, list_neighbours
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.pools.claims import PoolClaim

Place = tuple[str, str]
"""A model and a pool."""


@dataclass(frozen=True)
class Model:
    """A real-time model, and the relative capacity of a replica in each of its pools, in the order of its list."""

    name: str
    pools: Mapping[str, float]
    demand: float
    value: float = 1.0
    most: int = 12
    capacity: float = 100.0


@dataclass
class Pools:
    """Pools of so many slices and the models in them; a replica has loaded when a test says so."""

    slices: Mapping[str, int]
    models: Sequence[Model]
    replicas: dict[Place, int] = field(default_factory=dict)
    loading: dict[Place, int] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    overrides: Sequence[Any] = ()
    reasons: list[str] = field(default_factory=list)
    solver: Solver = field(default_factory=lambda: Solver(lambda: 0.0))

    def look(self, *pools: str) -> dict[Place, int]:
        """The allocators decide one after the other, each with what it has caused meanwhile."""
        for pool in pools or tuple(self.slices):
            self.decide(pool)
        return {place: count for place, count in sorted(self.replicas.items()) if count}

    def decide(self, pool: str) -> Assignment:
        observed = self.divide(pool)
        assignment = self.solver.solve(build_allocation_view(observed).snapshot)
        self.reasons += [move.reason for move in assignment.moves]
        for item in assignment.replicas:
            place = item.inference.removeprefix("ads/"), pool
            grown = item.replicas - self.replicas.get(place, 0)
            self.replicas[place] = item.replicas
            self.loading[place] = max(self.loading.get(place, 0) + grown, 0)
        return assignment

    def divide(self, pool: str) -> AllocationObserved:
        observed = self.observe(pool)
        others = [self.observe(name) for name in self._connected(pool) if name != pool]
        group = build_group(observed, others)
        return (
            observed if group is None else divide_members(observed, group, self.solver.solve(group.snapshot))
        )

    def observe(self, pool: str) -> AllocationObserved:
        members = tuple(self._member(model, pool) for model in self.models if pool in model.pools)
        demands: dict[str, Any] = {model.name: model.demand for model in self.models}
        body = a_compute_pool(pool, policy={"dwell": "0s", **self.policy})
        return AllocationObserved(
            body, NOW, nodes(self.slices[pool]), members, signals=signals(**demands), overrides=self.overrides
        )

    def load(self) -> None:
        self.loading.clear()

    def served(self) -> float:
        """What the ready replicas earn."""
        ready = {place: count - self.loading.get(place, 0) for place, count in self.replicas.items()}
        return worth(self.models, ready)

    def _connected(self, pool: str) -> Sequence[str]:
        found, waiting = {pool}, [pool]
        while waiting:
            for name in list_neighbours(self.observe(waiting.pop())):
                if name not in found:
                    found.add(name)
                    waiting.append(name)
        return sorted(found)

    def _member(self, model: Model, pool: str) -> PoolMember:
        listed = [
            {"name": name, "slices": 1, "relativeCapacity": str(ratio)} for name, ratio in model.pools.items()
        ]
        parts = [
            {"name": name, "replicas": self.replicas[model.name, name]}
            for name in model.pools
            if (model.name, name) in self.replicas
        ]
        total = sum(int(str(part["replicas"])) for part in parts)
        placement = {"pools": listed} if len(listed) > 1 else {"pool": pool}
        allocation = {"replicas": total, "epoch": 1, **({"pools": parts} if len(listed) > 1 else {})}
        inference = an_inference(
            model.name,
            scaling={"minReplicas": 1, "maxReplicas": model.most},
            capacity={"requestsPerSecond": str(model.capacity)},
            value={"perRequest": str(model.value)},
            placement=placement,
            replicas=None,
            status={"allocation": allocation} if parts else {},
        )
        count = self.replicas.get((model.name, pool), 0)
        claim = PoolClaim(
            inference.key, inference.spec.tier, 1, count, count, "", relative_capacity=model.pools[pool]
        )
        others = tuple(self._other(model, name, pool) for name in model.pools if name != pool)
        ready = count - self.loading.get((model.name, pool), 0)
        several = {"other_pools": others, "all_pools": inference} if others else {}
        return PoolMember(inference.narrow_to_pool(pool), claim, ready, **several)  # type: ignore[arg-type]

    def _other(self, model: Model, name: str, pool: str) -> OtherPool:
        listed, count = list(model.pools), self.replicas.get((model.name, name), 0)
        used = sum(held for (_, place), held in self.replicas.items() if place == name)
        return OtherPool(
            count,
            count - self.loading.get((model.name, name), 0),
            max(self.slices[name] - used, 0),
            linear_curve(model.capacity * model.pools[name]),
            listed.index(name) < listed.index(pool),
            name,
        )


def worth(models: Sequence[Model], replicas: Mapping[Place, int]) -> float:
    """What is earned with these replicas, all of them ready."""
    return sum(
        model.value
        * min(
            model.demand,
            sum(
                replicas.get((model.name, pool), 0) * model.capacity * ratio
                for pool, ratio in model.pools.items()
            ),
        )
        for model in models
    )


def best(pools: Pools) -> float:
    """The most that any division earns in which every model has a replica."""
    return max(worth(pools.models, replicas) for replicas in _divisions(pools))


def _divisions(pools: Pools) -> Iterator[Mapping[Place, int]]:
    places = [(model.name, pool) for model in pools.models for pool in model.pools]
    most = {model.name: model.most for model in pools.models}
    for counts in product(*(range(min(pools.slices[pool], most[name]) + 1) for name, pool in places)):
        division = dict(zip(places, counts, strict=True))
        fits = all(
            sum(count for (_, pool), count in division.items() if pool == name) <= slices
            for name, slices in pools.slices.items()
        )
        if fits and all(
            1 <= sum(count for (name, _), count in division.items() if name == model.name) <= model.most
            for model in pools.models
        ):
            yield division


BOTH = {"a": 1.0, "b": 1.0}


def two_pools(**more: Any) -> Pools:
    """The pool a is full: three replicas of ctr, which may use b too, and one of rank, which needs two and may use a alone."""
    models = (Model("ctr", BOTH, 290), Model("rank", {"a": 1.0}, 190, value=0.5))
    return Pools({"a": 4, "b": 4}, models, {("ctr", "a"): 3, ("rank", "a"): 1}, **more)


def test_a_model_of_two_pools_makes_room_for_one_that_fits_in_the_first_alone() -> None:
    pools = two_pools()
    assert pools.look("a", "b") == {("ctr", "a"): 3, ("ctr", "b"): 1, ("rank", "a"): 1}, "ctr keeps its rate"
    pools.load()
    assert pools.look("a", "b") == {("ctr", "a"): 2, ("ctr", "b"): 1, ("rank", "a"): 2}
    pools.load()
    assert pools.look() == {("ctr", "a"): 2, ("ctr", "b"): 1, ("rank", "a"): 2}, "nothing moves after that"
    assert pools.served() == 290 + 0.5 * 190


def test_one_of_more_value_does_not_wait() -> None:
    pools = two_pools()
    pools.models = (pools.models[0], replace(pools.models[1], value=2.0))
    assert pools.look("a", "b") == {("ctr", "a"): 2, ("ctr", "b"): 1, ("rank", "a"): 2}


def test_replicas_leave_the_first_pool_one_by_one_as_others_are_ready() -> None:
    models = (Model("ctr", BOTH, 290), Model("rank", {"a": 1.0}, 390, value=0.5))
    for ready in (0, 1, 2, 3):
        pools = Pools({"a": 4, "b": 4}, models, {("ctr", "a"): 3, ("rank", "a"): 1, ("ctr", "b"): 3})
        pools.loading["ctr", "b"] = 3 - ready
        pools.decide("a")
        assert (pools.replicas["ctr", "a"], pools.replicas["rank", "a"]) == (3 - ready, 1 + ready)


def test_reasons_name_the_replicas_in_other_pools() -> None:
    pools = two_pools()
    pools.look("a", "b")
    assert pools.reasons == [
        "realtime ads/ctr +1 in b: demand 90/s beside 2 replicas in a exceeds 0/s; from free slices"
    ]
    pools.load()
    pools.reasons.clear()
    pools.look("a")
    assert pools.reasons == [
        "realtime ads/ctr -1 in a: worth 0 per slice-minute beside 1 replica in b, given to realtime ads/rank at 2,700",
        "realtime ads/rank +1 in a: demand 190/s exceeds 100/s; taken from realtime ads/ctr, worth 0 per slice-minute against 2,700",
    ]


def test_new_replicas_start_in_the_first_pool_and_a_surplus_ends_in_the_last() -> None:
    models = (Model("ctr", {"b": 1.0, "a": 1.0}, 290), Model("other", BOTH, 90))
    pools = Pools({"a": 6, "b": 6}, models)
    pools.look("a", "b")
    pools.load()
    assert pools.look("b", "a") == {("ctr", "b"): 3, ("other", "a"): 1}


def test_an_inference_at_its_maximum_stays_where_it_is() -> None:
    pools = two_pools()
    pools.models = (replace(pools.models[0], most=3), pools.models[1])
    for _ in range(3):
        assert pools.look("a", "b") == {("ctr", "a"): 3, ("rank", "a"): 1}
        pools.load()


def test_one_that_is_held_moves_no_replica() -> None:
    target = {"kind": "Inference", "namespace": "ads", "name": "ctr"}
    pools = two_pools(overrides=(a_compute_override(target=target, hold=True),))
    for _ in range(3):
        assert pools.look("a", "b") == {("ctr", "a"): 3, ("rank", "a"): 1}
        pools.load()


def test_pools_without_a_shared_inference_are_no_group() -> None:
    pools = Pools({"a": 4, "b": 4}, (Model("ctr", {"a": 1.0}, 90), Model("rank", {"b": 1.0}, 90)))
    assert list_neighbours(pools.observe("a")) == ()
    assert build_group(pools.observe("a"), [pools.observe("b")]) is None
    shared = two_pools()
    assert build_group(shared.observe("a"), []) is None
    unknown = replace(shared.observe("a"), signals=signals())
    assert build_group(unknown, [shared.observe("b")]) is None, "without its demand, ctr stays where it is"


def test_one_that_cannot_be_divided_connects_no_pools() -> None:
    observed = two_pools().observe("a")
    assert list_neighbours(observed) == ("b",)
    refused = tuple(replace(member, refusal="no") for member in observed.members)
    assert list_neighbours(replace(observed, members=refused)) == ()
    strict = two_pools(policy={"nodeLoss": {"mode": "Strict"}})
    assert list_neighbours(strict.observe("a")) == (), "its reserve is computed by each pool alone"
    assert build_group(strict.observe("a"), [strict.observe("b")]) is None


def test_demand_counts_once_where_an_inference_can_be_divided_in_some_of_its_pools() -> None:
    three = {"a": 1.0, "b": 1.0, "c": 1.0}
    models = (Model("ctr", three, 290), Model("rank", BOTH, 190))
    pools = Pools({"a": 1, "b": 4, "c": 4}, models, {("ctr", "a"): 1, ("ctr", "b"): 1, ("ctr", "c"): 1})
    in_a = pools.observe("a")
    refused = tuple(
        replace(member, refusal="no") if member.key.name == "ctr" else member for member in in_a.members
    )
    group = build_group(pools.observe("b"), [replace(in_a, members=refused), pools.observe("c")])
    assert group is not None
    rates = {model.key: model.load.rates for model in group.snapshot.inferences if model.load is not None}
    assert rates["ads/ctr in a"] + rates["ads/ctr"] == (100.0, 190.0)


def test_the_dwell_of_one_pool_holds_nothing_in_another() -> None:
    pools = two_pools(policy={"dwell": "60s"})
    moved = a_decision(
        ("ctr", 2, 3), at=NOW - timedelta(minutes=10), outcome={"appliedAt": NOW.isoformat()}, pool="a"
    )
    in_b = replace(pools.observe("b"), pool=a_compute_pool("b", policy={"dwell": "1h"}))
    group = build_group(replace(pools.observe("a"), decisions=(moved,)), [in_b])
    assert group is not None
    [placement] = [item for item in group.shared[ObjectKey("ads", "ctr")].placements if item.pool == "a"]
    assert (group.snapshot.dwell_s, placement.since_up_s) == (3600.0, inf)
    group = build_group(pools.observe("a"), [replace(in_b, decisions=(replace_pool(moved, "b"),))])
    assert group is not None
    [placement] = [item for item in group.shared[ObjectKey("ads", "ctr")].placements if item.pool == "b"]
    assert placement.since_up_s == 600.0


def replace_pool(decision: AllocationDecision, pool: str) -> AllocationDecision:
    """A decision about another pool."""
    return decision.model_copy(update={"spec": decision.spec.model_copy(update={"pool": pool})})


def test_two_inferences_that_wait_for_slices_do_not_count_on_the_same_ones() -> None:
    models = (Model("ctr", BOTH, 290), Model("rank", BOTH, 290))
    pools = Pools({"a": 2, "b": 4}, models, {("ctr", "a"): 2, ("rank", "a"): 2})
    observed = pools.observe("a")
    waiting = tuple(
        replace(member, claim=replace(member.claim, replicas=0, assigned=0), ready=0)
        for member in observed.members
    )
    group = build_group(replace(observed, members=waiting), [pools.observe("b")])
    assert group is not None
    started = [
        item.replicas.loading
        for model in group.shared.values()
        for item in model.placements
        if item.pool == "a"
    ]
    assert started == [2, 0]


def test_only_what_grows_is_limited_by_the_maximum() -> None:
    assert limit_growth({"a": 3, "b": 0}, {"a": 1, "b": 2}, 4) == {"a": 2, "b": 1}
    assert limit_growth({"a": 3, "b": 0}, {"a": 1, "b": 2}, None) == {"a": 1, "b": 2}
    assert limit_growth({"a": 3, "b": 2}, {"a": 1, "b": 2}, 5) == {"a": 1, "b": 2}
    assert limit_growth({"a": 0, "b": 0, "c": 3}, {"a": 2, "b": 1, "c": 0}, 4) == {"a": 1, "b": 0, "c": 2}


def test_what_is_to_stop_elsewhere_serves_nothing_for_this_pool() -> None:
    others = (
        OtherPool(3, 2, 5, linear_curve(100.0), is_before=False, name="b"),
        OtherPool(1, 1, 1, linear_curve(50.0), True, "c"),
    )
    first, second = follow_division(others, {"b": 1})
    assert (first.replicas, first.ready, first.room, first.is_before) == (1, 1, 0, True)
    assert second is others[1]
    [stopping] = follow_division(
        (OtherPool(0, 2, 4, linear_curve(100.0), is_before=False, name="b"),), {"b": 2}
    )
    assert (stopping.replicas, stopping.ready) == (2, 0), "pods that b was told to stop do not count"
    assert reduce_demand(DemandInput((290.0,)), 100.0, (stopping,)).elsewhere == "2 replicas planned in b"


@st.composite
def any_pools(draw: st.DrawFn) -> Pools:
    """Two or three pools, and models in one to three of them."""
    names = ["a", "b", "c"][: draw(st.integers(2, 3))]
    models: list[Model] = []
    for number in range(draw(st.integers(2, 3))):
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        ratios = {name: draw(st.sampled_from([1.0, 0.5, 1.5])) for name in chosen}
        demand, value = draw(st.integers(1, 39)), draw(st.sampled_from([1.0, 2.0, 5.0]))
        models.append(Model(f"m{number}", ratios, 10.0 * demand, value))
    pools = Pools({name: draw(st.integers(2, 4)) for name in names}, models)
    assume(any(True for _ in _divisions(pools)))  # each model can have a replica
    return pools


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_pools(), st.booleans())
def test_pools_that_look_in_turn_serve_what_the_best_division_serves(pools: Pools, backwards: bool) -> None:
    order = sorted(pools.slices, reverse=backwards)
    for _ in range(5):
        pools.look(*order)
        pools.load()
        assert all(
            sum(count for (_, place), count in pools.replicas.items() if place == name) <= slices
            for name, slices in pools.slices.items()
        )
    settled = dict(pools.replicas)
    pools.look(*order)
    assert pools.replicas == settled, "nothing moves forth and back"
    assert pools.served() >= 0.999 * best(pools)


@settings(max_examples=examples(10), deadline=None)
@given(any_pools())
def test_equal_inputs_give_equal_bytes(pools: Pools) -> None:
    snapshots: list[str] = []
    for _ in range(2):
        snapshot = build_allocation_view(pools.divide("a")).snapshot
        snapshots.append(repr(Solver(lambda: 0.0).solve(snapshot)))
    assert snapshots[0] == snapshots[1]
