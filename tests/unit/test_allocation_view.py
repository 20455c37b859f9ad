"""What the allocator decides from: capacity, phases, bounds and demand, as caches, people and signals have them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any

import pytest

from builders.allocator import NOW, a_decision, a_member, observed, signals
from builders.batch import batch_spec
from builders.compute_override import a_compute_override
from builders.nearline import nearline_spec
from tidegate.allocation.snapshot import (
    DeadlineInput,
    DemandInput,
    ModelInput,
    NodeLossInput,
    NodeReplicas,
    PoolInput,
    ReplicaCounts,
)
from tidegate.allocation.solver import Solver
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.inference import Tier
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.batch.remaining_shards import MAX_URGENCY
from tidegate.planning.pools.claims import NodeShare
from tidegate.resources.batch_run import make_run_name

CAPACITY = {"requestsPerSecond": "100"}


def pool_of(seen: AllocationObserved) -> PoolInput:
    return build_allocation_view(seen).snapshot.pools[0]


def model_of(seen: AllocationObserved, number: int = 0) -> ModelInput:
    return build_allocation_view(seen).snapshot.inferences[number]


def override(**what: object) -> ComputeOverride:
    made = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return a_compute_override(metadata=made, expiresAt="2026-01-01T18:00:00Z", **what)


def test_slices_that_somebody_leaves_are_not_there_and_ready_pods_on_a_cordoned_node_are() -> None:
    assert pool_of(observed(slices=(4, 4), departing_slices=3)).slices == 5
    assert pool_of(observed(slices=(4,), unhealthy_node_slices=2)).slices == 6


def test_pods_are_counted_by_phase() -> None:
    starting = model_of(observed(a_member(held=3, ready=1)))
    assert starting.placements[0].replicas == ReplicaCounts(ready=1, loading=2)
    leaving = model_of(observed(a_member(held=1, pods=3)))
    assert leaving.placements[0].replicas == ReplicaCounts(ready=1, draining=2)


def test_warm_spares_are_no_replicas_and_no_pods_on_their_way_out() -> None:
    spare = model_of(observed(a_member(held=2, spares=1)))
    assert spare.placements[0].replicas == ReplicaCounts(ready=2, spare=1)
    # Told to have one that its Deployment was not given yet.
    told = {"allocation": {"replicas": 2, "spares": 1, "decision": "d", "epoch": 1}}
    assert model_of(observed(a_member(held=2, status=told))).placements[0].replicas == ReplicaCounts(ready=2)
    # Promoted: the same pods, and all of them are replicas.
    promoted = {"allocation": {"replicas": 3, "spares": 0, "decision": "d", "epoch": 1}}
    found = model_of(observed(a_member(held=2, spares=1, status=promoted)))
    assert found.placements[0].replicas == ReplicaCounts(ready=3)
    assert pool_of(observed(tiers={"realtime": {"warmSpares": 2}})).spares == 2


def test_a_fixed_number_is_kept_and_only_a_real_time_one_takes_from_others() -> None:
    batch = model_of(observed(a_member(held=1, least=3, most=None, tier=Tier.OFFLINE)))
    assert (batch.bounds.floor, batch.bounds.ceiling) == (1, 3)
    ctr = model_of(observed(a_member(held=1, least=3, most=None)))
    assert (ctr.bounds.floor, ctr.bounds.ceiling, ctr.bounds.floor_source) == (3, 3, "spec.replicas")


def test_demand_needs_a_fresh_signal_and_a_measured_capacity() -> None:
    assert model_of(observed(a_member(capacity=CAPACITY), signals=signals(ctr=250.0))).load is not None
    assert model_of(observed(a_member(), signals=signals(ctr=250.0))).load is None
    assert model_of(observed(a_member(capacity=CAPACITY))).load is None


def test_a_decision_that_was_given_up_halfway_uses_up_the_half_of_the_budget() -> None:
    policy = {"mode": "Auto", "moves": {"maxPercent": 50, "per": "10m"}}
    half = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=1), outcome={"error": "x", "movedSlices": 1})
    assert pool_of(observed(policy=policy, decisions=(half,))).budget == 3
    whole = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=1), outcome={"error": "x"})
    assert pool_of(observed(policy=policy, decisions=(whole,))).budget == 1


STREAM = nearline_spec()


def rank(held: int, **more: Any) -> ModelInput:
    """A near-line model whose replicas answer a hundred messages per second each."""
    member = a_member("rank", held, least=0, tier=Tier.NEARLINE, capacity=CAPACITY, nearline=STREAM)
    return model_of(observed(member, **more))


def test_a_stream_is_looked_at_by_somebody_where_nothing_comes_and_where_nobody_knows() -> None:
    """A look is worth little, so that whoever has more to do gets the slices."""
    assert rank(2, signals=signals(rank=250.0)).load == DemandInput((250.0,))
    assert rank(1, signals=signals(rank=0.0)).load == DemandInput((5.0,))
    assert rank(0).load == DemandInput((5.0,))
    # Where pods are there and silent, it keeps what it has.
    assert rank(2).load is None
    assert rank(2, signals=signals("the gateways are gone", rank=250.0)).load is None


def test_stream_with_a_delay_needs_what_keeps_it_and_one_pod_that_counts() -> None:
    stream = nearline_spec(maxDelay="60s")
    member = a_member("rank", 2, least=0, tier=Tier.NEARLINE, capacity=CAPACITY, nearline=stream)

    def load_of(member: PoolMember, signal: Signal | None = None) -> DemandInput | None:
        by_key = {} if signal is None else {member.key: signal}
        return model_of(observed(member, signals=Signals(by_key, ""))).load

    # 30 s are left for a backlog of 9,000 messages once others have loaded.
    assert load_of(member, Signal(250.0, NOW, backlog=9_000.0)) == DemandInput(
        (300.0,), deadline=DeadlineInput(300.0, 60.0)
    )
    assert load_of(member, Signal(250.0, NOW, backlog=60.0)) == DemandInput(
        (250.0,), deadline=DeadlineInput(249.0, 60.0)
    )
    idle = a_member("rank", 0, least=0, tier=Tier.NEARLINE, capacity=CAPACITY, nearline=stream)
    assert load_of(idle) == DemandInput((5.0,), deadline=DeadlineInput(5.0, 60.0))
    assert load_of(member) is None


def test_stale_signals_raise_a_real_time_model_and_never_lower_it() -> None:
    stale = signals("Prometheus is gone", ctr=50.0)
    ctr = model_of(observed(a_member(held=4, capacity=CAPACITY), signals=stale))
    assert ctr.bounds.floor == 4
    assert ctr.load is not None
    assert ctr.load.rates == (50.0,)
    near = a_member(held=4, tier=Tier.NEARLINE, capacity=CAPACITY)
    assert model_of(observed(near, signals=stale)).load is None


def test_offline_work_uses_what_is_left() -> None:
    batch = model_of(observed(a_member(slices=2, most=3, tier=Tier.OFFLINE)))
    assert batch.load is not None
    assert batch.load.rates == (6.0,)


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({"done": 0}, 1.0),
        ({"done": 0, "startedAt": NOW - timedelta(hours=3)}, 2.0),
        ({"done": 3, "startedAt": NOW - timedelta(hours=3)}, 1.0),
        ({"done": 5, "startedAt": NOW - timedelta(hours=3)}, 1.0),
        ({"done": 3, "startedAt": NOW - timedelta(hours=5)}, 3.0),
        ({"done": 5, "startedAt": NOW - timedelta(hours=7)}, MAX_URGENCY),
        ({"done": 0, "startedAt": NOW - timedelta(hours=3), "run": "another"}, 1.0),
    ],
    ids=["not begun", "nothing done", "in time", "ahead", "behind", "too late", "another run"],
)
def test_a_batch_behind_its_pace_is_worth_more(status: dict[str, Any], wanted: float) -> None:
    spec = {"tier": Tier.OFFLINE, "batch": batch_spec(shards=6, deadline="6h"), "least": 0}
    inference = a_member(**spec).inference
    assert inference.spec.batch is not None
    found = {"run": make_run_name(inference, inference.spec.batch), "output": "s3://lake/scores", **status}
    load = model_of(observed(a_member(status={"batch": found}, **spec))).load
    assert load is not None
    assert load.urgency == (pytest.approx(wanted),)


def test_a_batch_has_no_use_for_more_replicas_than_shards_are_left() -> None:
    spec = {"tier": Tier.OFFLINE, "batch": batch_spec(shards=6), "least": 1, "most": 8}
    whole = a_member(**spec)
    assert whole.inference.spec.batch is not None
    run = make_run_name(whole.inference, whole.inference.spec.batch)

    def with_done(**status: object) -> ModelInput:
        batch = {"run": run, "output": "s3://lake/scores", **status}
        return model_of(observed(a_member(status={"batch": batch}, **spec)))

    for found, left in ((model_of(observed(whole)), 6), (with_done(done=3, failed=1), 2)):
        assert found.load is not None
        assert (found.load.rates, found.bounds.floor, found.bounds.ceiling) == ((float(left),), 1, left)
    complete = with_done(done=6, completedAt="2026-01-01T11:00:00Z")
    assert complete.load is not None
    assert (complete.load.rates, complete.bounds.floor, complete.bounds.ceiling) == ((0.0,), 0, 0)
    gave_up = with_done(done=2, failed=1, endedAt="2026-01-01T11:00:00Z")
    assert gave_up.load is not None
    assert (gave_up.load.rates, gave_up.bounds.floor, gave_up.bounds.ceiling) == ((0.0,), 0, 0)


@pytest.mark.parametrize(
    ("what", "bounds"),
    [
        ({"pin": {"replicas": 5}}, (5, 5)),
        ({"floor": {"replicas": 4}}, (4, 8)),
        ({"hold": True}, (3, 3)),
        ({"pin": {"replicas": 40}}, (8, 8)),
        ({"floor": {"replicas": 40}}, (8, 8)),
        ({"pin": {"replicas": 0}}, (1, 1)),
    ],
)
def test_overrides_bound_within_the_range(what: dict[str, object], bounds: tuple[int, int]) -> None:
    found = model_of(observed(a_member(held=3), overrides=(override(**what),))).bounds
    assert (found.floor, found.ceiling) == bounds
    assert found.floor_source == "ComputeOverride sale"


def test_an_override_that_has_ended_bounds_nothing() -> None:
    ended = NOW + timedelta(hours=6)
    found = model_of(observed(a_member(held=3), overrides=(override(pin={"replicas": 5}),), now=ended)).bounds
    assert (found.floor, found.ceiling, found.floor_source) == (1, 8, "spec.scaling.minReplicas")


def test_a_held_pool_moves_nothing_and_a_recommendation_says_so_too() -> None:
    target = {"kind": "ComputePool", "namespace": None, "name": "cpu-a"}
    held = (override(target=target, hold=True),)
    assert pool_of(observed(overrides=held)).hold
    assert pool_of(observed(policy={"mode": "Hold"})).hold
    assert not pool_of(observed(policy={"mode": "Auto"})).hold
    assert observed(overrides=held, policy={"mode": "Auto"}).effective_mode == "Hold"
    assert observed(overrides=held).effective_mode == "RecommendOnly"


def test_the_budget_is_a_part_of_the_pool_less_what_was_moved_lately() -> None:
    policy = {"mode": "Auto", "moves": {"maxPercent": 50, "per": "10m"}}
    assert pool_of(observed(policy=policy)).budget == 4
    done = {"appliedAt": NOW.isoformat()}
    lately = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=9), outcome=done)
    assert pool_of(observed(policy=policy, decisions=(lately,))).budget == 1
    long_ago = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=11), outcome=done)
    assert pool_of(observed(policy=policy, decisions=(long_ago,))).budget == 4
    only_said = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=9), mode="RecommendOnly")
    assert pool_of(observed(policy=policy, decisions=(only_said,))).budget == 4
    under_way = a_decision(("ctr", 1, 4), at=NOW - timedelta(minutes=9))
    assert pool_of(observed(policy=policy, decisions=(under_way,))).budget == 4


def test_what_was_just_raised_is_remembered() -> None:
    raised = a_decision(("ctr", 1, 3), at=NOW - timedelta(seconds=40), outcome={"appliedAt": NOW.isoformat()})
    placement = model_of(observed(a_member(held=3), decisions=(raised,))).placements[0]
    assert (placement.since_up_s, placement.since_down_s) == (40.0, inf)


@pytest.mark.parametrize(
    ("policy", "seconds"), [({}, 300.0), ({"dwell": "20s"}, 20.0), ({"dwell": "0s"}, 0.0)]
)
def test_how_long_a_real_time_replica_is_kept_is_the_policys(
    policy: dict[str, object], seconds: float
) -> None:
    raised = a_decision(("ctr", 1, 3), at=NOW - timedelta(seconds=40), outcome={"appliedAt": NOW.isoformat()})
    members = (a_member(held=3, capacity=CAPACITY), a_member("rank", 1, tier=Tier.OFFLINE))
    seen = observed(
        *members, slices=(4,), policy=policy, decisions=(raised,), signals=signals(ctr=50.0, rank=0.0)
    )
    snapshot = build_allocation_view(seen).snapshot
    assert snapshot.dwell_s == seconds
    kept = 3 if seconds > 40.0 else 1
    assert Solver(lambda: 0.0).solve(snapshot).get_replicas("ads/ctr", "cpu-a") == kept


def test_loss_of_a_node_has_the_price_of_the_policy() -> None:
    assert pool_of(observed()).node_loss == NodeLossInput(720 * 3600.0, 50 + 30, 100)
    often = {"interval": "10s", "nodeLoss": {"expectedEvery": "24h"}}
    assert pool_of(observed(policy=often)).node_loss == NodeLossInput(86400.0, 60, 100)


@pytest.mark.parametrize(
    ("pool_mode", "own_mode", "is_strict"),
    [
        (None, None, False),
        ("Priced", None, False),
        ("Strict", None, True),
        (None, "Strict", True),
        ("Strict", "Priced", False),
    ],
)
def test_an_inference_is_as_strict_as_it_says_or_else_as_its_pool(
    pool_mode: str | None, own_mode: str | None, is_strict: bool
) -> None:
    policy = {} if pool_mode is None else {"nodeLoss": {"mode": pool_mode}}
    own = {} if own_mode is None else {"nodeLoss": own_mode}
    member = a_member(scaling={"minReplicas": 1, "maxReplicas": 8, **own})
    assert model_of(observed(member, policy=policy)).keeps_node_spare is is_strict


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ({"node-0": 3, "node-1": 1}, (("node-0", 3), ("node-1", 1))),
        ({"node-0": 1, "node-1": 3}, (("node-1", 3), ("node-0", 1))),
        ({"node-0": 2}, (("node-0", 2),)),
        # Spread evenly, as far as that is possible.
        ({"node-0": 2, "node-1": 2, "node-2": 1}, ()),
        ({"node-0": 1}, ()),
        ({}, ()),
        # Only healthy nodes of the pool count.
        ({"node-0": 1, "gone": 5}, ()),
        ({"node-0": 3, "gone": 5}, (("node-0", 3),)),
    ],
)
def test_nodes_of_ready_pods_are_known_where_they_are_not_spread_evenly(
    ready: dict[str, int], expected: tuple[tuple[str, int], ...]
) -> None:
    member = a_member(held=8, slices=2)
    nodes = {node: NodeShare(ready=2 * count, not_ready=2) for node, count in ready.items()}
    member = replace(member, claim=replace(member.claim, nodes=nodes))
    [placement] = model_of(observed(member, slices=(8, 8, 8))).placements
    assert placement.ready_by_node == tuple(NodeReplicas(node, count) for node, count in expected)
    # With one node there is nothing to spread over, and other tiers hold nothing for the loss of one.
    alone = model_of(observed(member, slices=(24,))).placements[0]
    offline = replace(member, claim=replace(member.claim, tier=Tier.OFFLINE))
    assert alone.ready_by_node == ()
    assert model_of(observed(offline, slices=(8, 8, 8))).placements[0].ready_by_node == ()


def test_reserve_follows_the_nodes_of_pods() -> None:
    member = a_member(
        held=2, scaling={"minReplicas": 1, "maxReplicas": 8, "nodeLoss": "Strict"}, capacity=CAPACITY
    )

    def decide(**ready: int) -> int:
        nodes = {node.replace("_", "-"): NodeShare(ready=count) for node, count in ready.items()}
        placed = replace(member, claim=replace(member.claim, nodes=nodes))
        seen = observed(placed, slices=(4, 4, 4), signals=signals(ctr=190.0))
        return (
            Solver(lambda: 0.0).solve(build_allocation_view(seen).snapshot).get_replicas("ads/ctr", "cpu-a")
        )

    assert decide(node_0=1, node_1=1) == 3
    assert decide(node_0=2) == 4


def test_one_whose_deployment_is_missing_is_left_alone_and_keeps_its_slices() -> None:
    seen = observed(a_member("ctr", held=0, apart="its Deployment is not there"), a_member("cvr"))
    view = build_allocation_view(seen)
    assert [str(key) for key in view.excluded] == ["ads/ctr"]
    assert [each.key for each in view.snapshot.inferences] == ["ads/cvr"]


def test_one_that_the_pool_refuses_costs_nobody_anything() -> None:
    big = a_member("big", 0, least=1, most=None, slices=4, refused="the largest node has 2")
    view = build_allocation_view(observed(big, a_member("batch", 8, tier=Tier.OFFLINE), slices=(2, 2, 2, 2)))
    assert [str(key) for key in view.excluded] == ["ads/big"]
    assert view.snapshot.pools[0].slices == 8


def test_pods_on_a_node_that_is_lost_keep_nothing_from_others() -> None:
    batch = a_member("batch", 0, pods=2, lost=2, least=0, tier=Tier.OFFLINE)
    ctr = a_member("ctr", 2)
    seen = observed(batch, ctr, slices=(4,))
    assert seen.free_slices == 2
    assert batch.draining_replicas == 0
    # On a node that lives they do.
    draining = a_member("batch", 0, pods=2, least=0, tier=Tier.OFFLINE)
    assert observed(draining, ctr, slices=(4,)).free_slices == 0


def test_what_no_member_can_use_of_a_floor_is_kept_all_the_same() -> None:
    batch = a_member("batch", 4, most=8, tier=Tier.OFFLINE)
    pool = pool_of(observed(batch, tiers={"realtime": {"floor": 4}}))
    assert (pool.slices, max(rule.floor for rule in pool.tiers)) == (4, 0)
    ctr = a_member("ctr", 1, most=3)
    pool = pool_of(observed(batch, ctr, tiers={"realtime": {"floor": 4}}))
    assert (pool.slices, max(rule.floor for rule in pool.tiers)) == (7, 3)


def test_a_floor_is_filled_by_no_more_replicas_of_a_batch_than_shards_are_left() -> None:
    batch = a_member("batch", 4, most=8, tier=Tier.OFFLINE, batch=batch_spec(shards=3))
    pool = pool_of(observed(batch, tiers={"offline": {"floor": 4}}))
    assert (pool.slices, max(rule.floor for rule in pool.tiers)) == (7, 3)


def test_the_same_caches_give_the_same_snapshot() -> None:
    members = [a_member("a", 2), a_member("b", 3, tier=Tier.OFFLINE)]
    one, other = observed(*members), observed(*reversed(members), now=NOW + timedelta(minutes=5))
    assert (
        build_allocation_view(one).snapshot.inputs_hash == build_allocation_view(other).snapshot.inputs_hash
    )
