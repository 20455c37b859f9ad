"""Which spares a pool's Inferences share: by value from what caches show, with what each limit and each obstacle does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from math import ceil
from typing import Any

import pytest

from builders.allocator import NOW, a_decision, a_member, nodes, observed, signals
from tidegate.allocation.curves import linear_curve
from tidegate.allocation.snapshot import DeadlineInput, DemandInput, ModelInput, PlacementInput
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import AllocationDecision, DecisionTrigger
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.planning.allocator.decision import SolvedAllocation, plan_decision
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.replica_times import ReplicaTimes
from tidegate.planning.allocator.shared_spares import keep_spares, plan_pool_spares
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.spare_plan import LiveSpare, PlannedSpare, PoolSparePlan
from tidegate.planning.pools.claims import NodeShare
from tidegate.planning.pools.pool_slices import sum_nodes

CAPACITY = {"requestsPerSecond": "100"}
AUTO: Mapping[str, Any] = {"mode": "Auto", "nodeLoss": {"mode": "Shared"}}


def model(name: str, namespace_nodes: Mapping[str, int] | None = None, **spec: Any) -> PoolMember:
    """A model with so many ready replicas on each node, by default one on the first."""
    placed = {"node-0": 1} if namespace_nodes is None else namespace_nodes
    held = spec.pop("held", sum(placed.values()))
    member = a_member(name, held, capacity=CAPACITY, **spec)
    slices = member.replica_slices
    shares = {node: NodeShare(ready=count * slices) for node, count in placed.items()}
    return replace(member, claim=replace(member.claim, nodes=shares, ready=sum(placed.values())))


def pool(*members: PoolMember, policy: Mapping[str, Any] = AUTO, **more: Any) -> AllocationObserved:
    """Three nodes of four slices, where each model gets 50 of the 100 requests that a replica serves."""
    rates = more.pop("rates", {member.key.name: 50.0 for member in members})
    return observed(
        *members,
        **{"slices": (4, 4, 4), "signals": signals(**rates), "policy": dict(policy), **more},
    )


def plan(seen: AllocationObserved) -> PoolSparePlan:
    return plan_pool_spares(seen, build_allocation_view(seen).snapshot.inferences)


def exists(spare: PlannedSpare, *serving: str, is_placed: bool = True) -> LiveSpare:
    return LiveSpare(replace(spare, reason=""), dict.fromkeys(serving, 1), is_placed, is_placed)


def test_a_model_whose_agent_reports_absurd_memory_gets_no_spare_and_keeps_none_from_others() -> None:
    versions = {"memory": [{"version": "1", "bytes": 2_000_000_000_000}]}
    lying = model("ctr", status={"versions": versions})
    found = plan(pool(lying, model("cvr")))
    assert [spare.models for spare in found.spares] == [("cvr",)]


def test_models_of_one_node_share_a_spare_on_another_as_far_as_it_serves_both() -> None:
    found = plan(pool(model("ctr"), model("cvr")))
    assert found == PoolSparePlan(
        (
            PlannedSpare(
                "spare-cpu-a-0",
                "ads",
                0,
                "node-1",
                1,
                ("ctr", "cvr"),
                "the loss of node node-0 takes 1 busy replicas of ctr (0.5), cvr (0.5), and no other node's takes more",
            ),
        ),
    )
    # With a little more there are two; on different nodes one serves for both, since only one of these is lost.
    busier = {"ctr": 51.0, "cvr": 50.0}
    assert [spare.models for spare in plan(pool(model("ctr"), model("cvr"), rates=busier)).spares] == [
        ("ctr",),
        ("cvr",),
    ]
    apart = plan(pool(model("ctr"), model("cvr", {"node-1": 1}), rates=busier))
    assert [(spare.node, spare.models) for spare in apart.spares] == [("node-2", ("ctr", "cvr"))]


def test_a_model_without_requests_has_a_spare_and_one_whose_demand_is_unknown_counts_as_busy() -> None:
    idle = plan(pool(model("ctr"), rates={"ctr": 0.0}))
    assert [spare.models for spare in idle.spares] == [("ctr",)]
    assert "takes 0.1 busy replicas" in idle.spares[0].reason
    assert "takes 1 busy replicas" in plan(pool(model("ctr"), rates={})).spares[0].reason


def test_a_little_more_demand_leaves_the_plan_with_its_text_as_it_is() -> None:
    found = plan(pool(model("ctr"), rates={"ctr": 41.0}))
    assert "takes 0.5 busy replicas of ctr (0.5)" in found.spares[0].reason
    assert plan(pool(model("ctr"), rates={"ctr": 49.0})) == found
    more = plan(pool(model("ctr"), rates={"ctr": 51.0}))
    assert "takes 0.6 busy replicas of ctr (0.6)" in more.spares[0].reason


def test_only_inferences_that_ask_for_it_have_spares_and_namespaces_have_their_own() -> None:
    priced = {"mode": "Auto"}
    assert plan(pool(model("ctr"), policy=priced)) == PoolSparePlan()
    own = model("ctr", scaling={"minReplicas": 1, "maxReplicas": 4, "nodeLoss": "Shared"})
    found = plan(pool(own, model("cvr"), policy=priced))
    assert [spare.models for spare in found.spares] == [("ctr",)]
    strict = model("ctr", scaling={"minReplicas": 1, "maxReplicas": 4, "nodeLoss": "Strict"})
    assert plan(pool(strict)) == PoolSparePlan()
    fixed = model("ctr", most=None)
    assert plan(pool(fixed)) == PoolSparePlan()
    assert plan(pool(model("embed", tier=Tier.OFFLINE))) == PoolSparePlan()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"model": {"format": "Python", "uri": "s3://models/ctr", "version": "1"}},
            "format Python runs code of its own",
        ),
        ({"model": {"secretName": "own"}}, "this one has spec.model.secretName"),
        ({"serviceAccountName": "own"}, "this one has spec.serviceAccountName"),
        ({"model": {"uri": "pvc://models/ads/ctr"}}, "a volume claim in spec.model.uri"),
    ],
)
def test_an_inference_that_can_share_no_pod_is_named_with_the_reason(
    spec: dict[str, Any], reason: str
) -> None:
    found = plan(pool(model("ctr", **spec), model("cvr")))
    assert found.uncovered.keys() == {"ads/ctr"}
    assert reason in found.uncovered["ads/ctr"]
    assert [spare.models for spare in found.spares] == [("cvr",)]


def test_two_models_of_one_name_share_no_pod() -> None:
    named = {"model": {"name": "ranker"}}
    found = plan(pool(model("ctr", **named), model("cvr", **named)))
    assert [spare.models for spare in found.spares] == [("ctr",)]
    assert "is called ranker like that of ads/ctr" in found.uncovered["ads/cvr"]


@pytest.mark.parametrize(
    ("policy", "tiers", "reason"),
    [
        ({**AUTO, "mode": "RecommendOnly"}, {}, "mode RecommendOnly, in which no spare starts"),
        ({**AUTO, "mode": "Hold"}, {}, "mode Hold, in which no spare starts"),
        (
            AUTO,
            {"offline": {"floor": 10}},
            "realtime demand and what other tiers keep need 12 of 12 slices, which leaves 0",
        ),
        (AUTO, {"realtime": {"ceiling": 2}}, "the ceiling of realtime, 2 slices, leaves 0"),
        (
            {"mode": "Auto", "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxSlices": 1}}},
            {},
            "policy.nodeLoss.sharedSpares.maxSlices is 1",
        ),
    ],
)
def test_a_limit_leaves_models_without_a_spare_and_is_named(
    policy: dict[str, Any], tiers: dict[str, Any], reason: str
) -> None:
    found = plan(
        pool(model("ctr"), model("cvr"), policy=policy, tiers=tiers, rates={"ctr": 90.0, "cvr": 90.0})
    )
    assert reason in found.uncovered["ads/cvr"]
    assert len(found.spares) == (1 if "maxSlices" in reason else 0)


def solve_with_spares(seen: AllocationObserved) -> Mapping[str, int]:
    """Return the replicas that the solver gives each member beside the planned spares."""
    found = plan(seen)
    planned = replace(seen, spare_plan=found, spare_slices=found.slice_count)
    assignment = Solver(lambda: 0.0).solve(build_allocation_view(planned).snapshot)
    return {assigned.inference: assigned.replicas for assigned in assignment.replicas}


@pytest.mark.parametrize(
    "work",
    [
        model("work", {"node-2": 4}, tier=Tier.NEARLINE, least=4, most=None),
        model("work", {"node-2": 4}, tier=Tier.NEARLINE, least=4, most=8),
        model("work", {"node-2": 4}, tier=Tier.OFFLINE, least=4, most=8),
        # One that decisions leave out keeps its slices.
        replace(
            model("work", {"node-2": 4}, tier=Tier.NEARLINE), excluded_reason="its Deployment is missing"
        ),
    ],
    ids=["fixed", "least", "offline", "excluded"],
)
def test_no_spare_takes_slices_that_a_realtime_demand_needs_beside_what_others_keep(work: PoolMember) -> None:
    seen = pool(
        model("ctr", {"node-0": 3, "node-1": 3}), work, slices=(3, 3, 4), rates={"ctr": 590.0, "work": 0.0}
    )
    found = plan(seen)
    assert found.spares == ()
    assert "need 10 of 10 slices, which leaves 0 for spares" in found.uncovered["ads/ctr"]
    assert solve_with_spares(seen)["ads/ctr"] == 6
    # With slices beyond that there are spares, and the realtime demand has its own all the same.
    larger = replace(seen, slices=nodes(3, 3, 8))
    assert [spare.slices for spare in plan(larger).spares] == [1, 1, 1]
    assert solve_with_spares(larger)["ads/ctr"] >= 6


def test_a_floor_of_a_tier_and_those_of_its_members_count_once() -> None:
    work = model("work", {"node-2": 2}, tier=Tier.NEARLINE, least=2)
    seen = pool(model("ctr"), work, rates={"ctr": 90.0, "work": 0.0}, tiers={"nearline": {"floor": 10}})
    assert [spare.models for spare in plan(seen).spares] == [("ctr",)]
    reason = plan(replace(seen, slices=nodes(4, 4, 3))).uncovered["ads/ctr"]
    assert "need 11 of 11 slices, which leaves 0 for spares" in reason


def test_a_strict_reserve_and_a_deadline_come_before_spares() -> None:
    # On two nodes, 190 requests per second need two replicas on each.
    strict: dict[str, Any] = {"minReplicas": 1, "maxReplicas": 9, "nodeLoss": "Strict"}
    rank = model("rank", {"node-0": 2, "node-1": 2}, scaling=strict)
    seen = pool(model("ctr"), rank, rates={"ctr": 90.0, "rank": 190.0}, slices=(3, 2))
    assert "need 5 of 5 slices" in plan(seen).uncovered["ads/ctr"]
    assert len(plan(replace(seen, slices=nodes(3, 3))).spares) == 1

    stream = ModelInput(
        "ads/work",
        Tier.NEARLINE,
        (PlacementInput("cpu-a", linear_curve(100.0)),),
        DemandInput((900.0,), deadline=DeadlineInput(350.0, 60.0)),
    )
    seen = pool(model("ctr"), model("work", {}, tier=Tier.NEARLINE), slices=(3, 2), rates={"ctr": 90.0})
    [ctr] = [item for item in build_allocation_view(seen).snapshot.inferences if item.key == "ads/ctr"]
    assert "need 5 of 5 slices" in plan_pool_spares(seen, [ctr, stream]).uncovered["ads/ctr"]
    later = replace(stream, load=DemandInput((900.0,)))
    assert len(plan_pool_spares(seen, [ctr, later]).spares) == 1


def test_a_pool_of_one_node_has_no_place_for_a_spare() -> None:
    found = plan(pool(model("ctr"), slices=(4,)))
    assert found.spares == ()
    assert "it has replicas on the only healthy node" in found.uncovered["ads/ctr"]


def test_a_spare_larger_than_the_nodes_without_its_replicas_is_named() -> None:
    found = plan(pool(model("ctr", slices=4), slices=(6, 3, 3)))
    assert found.spares == ()
    assert (
        "needs a spare with 4 slices, and the nodes without its replicas have at most 3"
        in (found.uncovered["ads/ctr"])
    )
    [spare] = plan(pool(model("ctr", slices=4), slices=(6, 3, 4))).spares
    assert (spare.node, spare.slices) == ("node-2", 4)


def test_max_models_and_memory_limit_a_spare() -> None:
    limited = {"mode": "Auto", "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxModels": 1}}}
    assert len(plan(pool(model("ctr"), model("cvr"), policy=limited)).spares) == 2
    # A slice has 1Gi, of which the agent has 128Mi and the server 256Mi.
    memory = [{"version": "1", "bytes": 300 << 20}]
    large: dict[str, Any] = {"status": {"versions": {"memory": memory}}}
    assert len(plan(pool(model("ctr", **large), model("cvr", **large))).spares) == 2
    memory[0]["bytes"] = 200 << 20
    assert len(plan(pool(model("ctr", **large), model("cvr", **large))).spares) == 1
    memory[0]["bytes"] = 321 << 20
    found = plan(pool(model("ctr", **large)))
    assert (
        "its model has 321Mi, and a spare with 1 slices has 640Mi for two versions of it"
        in (found.uncovered["ads/ctr"])
    )


def test_models_of_unknown_size_count_as_even_shares_of_a_spare() -> None:
    names = [f"m{number}" for number in range(9)]
    rates = dict.fromkeys(names, 5.0)
    found = plan(pool(*(model(name) for name in names), slices=(9, 4, 4), rates=rates))
    assert sorted(len(spare.models) for spare in found.spares) == [1, 8]
    # One that is larger takes the room of others.
    measured: dict[str, Any] = {"status": {"versions": {"memory": [{"version": "1", "bytes": 250 << 20}]}}}
    large = [model("m0", **measured), *(model(name) for name in names[1:8])]
    found = plan(pool(*large, slices=(9, 4, 4), rates=rates))
    assert sorted(len(spare.models) for spare in found.spares) == [2, 6]


def test_a_spare_stays_in_the_outage_in_which_it_serves() -> None:
    [spare] = plan(pool(model("ctr"), model("cvr"))).spares
    # The node is gone, and no replacement has a node yet; demand and everything else is as before.
    lost = pool(
        model("ctr", {}, held=1),
        model("cvr", {}, held=1),
        slices=(0, 4, 4),
        live_spares=[exists(spare, "ctr", "cvr")],
    )
    found = plan(lost)
    assert [(item.node, item.models) for item in found.spares] == [("node-1", ("ctr", "cvr"))]
    assert "have no node yet" in found.spares[0].reason
    # A replacement that loads beside the spare cannot be covered by it, and is served by it all the same until it is.
    beside = replace(lost, members=(model("ctr", {"node-1": 1}), model("cvr", {}, held=1)))
    assert ("ctr", "cvr") in [item.models for item in plan(beside).spares]


def test_a_lost_node_leaves_the_spares_that_serve_for_it_although_nothing_is_left_for_spares() -> None:
    others: dict[str, Any] = {"least": 1, "most": 3, "tier": Tier.OFFLINE}
    placed = {"node-0": 3, "node-1": 3}
    before = pool(
        model("ctr", placed),
        model("work", {"node-2": 1, "node-3": 2}, **others),
        slices=(3, 3, 3, 3),
        tiers={"offline": {"floor": 3}},
        rates={"ctr": 590.0},
    )
    spares = plan(before).spares
    assert [spare.node for spare in spares] == ["node-2", "node-3", "node-2"]
    live = [exists(spare, "ctr") for spare in spares]
    lost = replace(
        before,
        slices=nodes(0, 3, 3, 3),
        members=(model("ctr", {"node-1": 3}, held=6), before.members[1]),
        live_spares=live,
        spare_slices=3,
    )
    found = plan(lost)
    assert [spare.name for spare in found.spares] == [spare.name for spare in spares]
    # The replicas stay decided, and the spares serve until there is a place for them.
    assert found.excess_slices == 3
    assert solve_with_spares(lost) == {"ads/ctr": 6, "ads/work": 3}
    # Nothing serves on them yet: they go.
    assert plan(replace(lost, live_spares=[exists(spare) for spare in spares])).spares == ()
    # The replacements serve: the slices are theirs.
    served = replace(lost, members=(model("ctr", {"node-1": 3, "node-2": 3}), before.members[1]))
    assert plan(served).spares == ()


def settle(nodes_there: int, rate: float, rounds: int = 8) -> list[tuple[int, int]]:
    """Decide again and again about a model whose replicas are spread evenly: its replicas and its spares after each decision.

    What is planned in one round has been loaded in the next. Other work can use every slice, and is worth less than a reserve.
    """
    replicas, spares, results = ceil(rate / 100), tuple[PlannedSpare, ...](), list[tuple[int, int]]()
    for _ in range(rounds):
        spread = Counter(f"node-{number % nodes_there}" for number in range(replicas))
        seen = pool(
            model("ctr", spread),
            model("rest", {}, tier=Tier.OFFLINE, least=0, most=50, value={"perRequest": "0.1"}),
            slices=(6,) * nodes_there,
            rates={"ctr": rate},
            live_spares=[exists(spare, *spare.models) for spare in spares],
            spare_slices=sum(spare.slices for spare in spares),
        )
        spares = plan(seen).spares
        replicas = solve_with_spares(seen)["ads/ctr"]
        results.append((replicas, len(spares)))
    return results


@pytest.mark.parametrize(
    ("nodes_there", "rate", "expected"),
    [
        # Both nodes have replicas, so that no spare can serve for them: it holds its own reserve.
        (2, 190.0, (4, 0)),
        (3, 290.0, (5, 0)),
        (3, 190.0, (2, 1)),
        (4, 190.0, (2, 1)),
        (2, 90.0, (1, 1)),
    ],
)
def test_decisions_settle(nodes_there: int, rate: float, expected: tuple[int, int]) -> None:
    first, *others = settle(nodes_there, rate)
    # A reserve is held until the spare has loaded the model.
    assert first == (expected[0] + expected[1], expected[1])
    assert others == [expected] * 7


def test_a_model_holds_its_own_reserve_until_its_spares_have_loaded_it() -> None:
    seen = pool(model("ctr", {"node-0": 2, "node-1": 1}), rates={"ctr": 290.0})
    spares = plan(seen).spares
    assert len(spares) == 2
    for live, covered in (
        ([], False),
        ([exists(spare) for spare in spares], False),
        ([exists(spares[0], "ctr"), exists(spares[1])], False),
        ([exists(spare, "ctr") for spare in spares], True),
    ):
        found = plan(replace(seen, live_spares=live, spare_slices=len(live)))
        assert found.uncovered == {}
        assert found.covered == ({"ads/ctr"} if covered else set())
        planned = replace(seen, spare_plan=found)
        [solver_input] = build_allocation_view(planned).snapshot.inferences
        assert solver_input.has_shared_spare is covered


def test_a_new_version_starts_no_reserve_while_the_spare_loads_it() -> None:
    seen = pool(model("ctr"))
    [spare] = plan(seen).spares

    def look(before: PoolSparePlan, live: LiveSpare, after_s: float) -> PoolSparePlan:
        """Return the plan that follows `before`, so many seconds after the start."""
        now = NOW + timedelta(seconds=after_s)
        return plan(replace(seen, live_spares=[live], spare_slices=1, spare_plan=before, now=now))

    loaded, loading = exists(spare, "ctr"), exists(spare)
    served = look(PoolSparePlan(), loaded, 0)
    swapping = look(served, loading, 30)
    assert (swapping.covered, swapping.reloading) == ({"ads/ctr"}, {"ads/ctr": NOW + timedelta(seconds=30)})
    assert look(swapping, loading, 60) == swapping
    assert solve_with_spares(replace(seen, live_spares=[loading], spare_plan=served))["ads/ctr"] == 1
    assert look(swapping, loaded, 60) == served
    # It takes longer than a load, or the pod is not ready: something else is wrong.
    late = look(swapping, loading, 91)
    assert late.covered == set()
    assert look(late, loading, 92).covered == set()
    assert look(served, replace(loading, is_ready=False), 30).covered == set()
    # What has not been loaded before is no cover yet.
    assert look(replace(served, covered=frozenset()), loading, 30).covered == set()
    # Replicas that load for longer have spares that do.
    [member] = seen.members
    seen = replace(seen, members=[replace(member, times=ReplicaTimes(load_s=120.0))])
    assert look(swapping, loading, 91).covered == {"ads/ctr"}


def test_replicas_beyond_those_that_demand_needs_do_not_count() -> None:
    # Two of the four would serve without either node, and there is no third one.
    seen = pool(model("ctr", {"node-0": 2, "node-1": 2}), slices=(4, 4), rates={"ctr": 190.0})
    assert "all 2 healthy nodes" in plan(seen).uncovered["ads/ctr"]
    assert plan(replace(seen, slices=nodes(4, 4, 4))).uncovered == {}
    # A reserve that was lost is not missing; nor are more replicas than are asked for.
    lost = plan(pool(model("ctr", {"node-1": 2}, held=4), slices=(0, 4, 4), rates={"ctr": 190.0}))
    assert len(lost.spares) == 2
    assert all("the loss of node node-1 takes 1 busy" in spare.reason for spare in lost.spares)


def test_a_spare_waits_for_slices_where_some_become_free() -> None:
    full = PlannedSpare("spare-cpu-a-0", "ads", 0, "node-1", 1, ("ctr",))
    seen = pool(model("ctr"), live_spares=[exists(full, is_placed=False)])
    used = replace(seen.slices.nodes[1], used={"offline": 4})
    crowded = replace(
        seen, slices=replace(seen.slices, nodes=(seen.slices.nodes[0], used, seen.slices.nodes[2]))
    )
    assert [spare.node for spare in plan(crowded).spares] == ["node-2"]
    placed = replace(crowded, live_spares=[exists(full)])
    assert [spare.node for spare in plan(placed).spares] == ["node-1"]


def test_a_spare_starts_no_pod_before_its_node_has_slices_for_it() -> None:
    seen = pool(model("ctr"), model("work", {"node-1": 4, "node-2": 4}, tier=Tier.OFFLINE, least=0, most=8))
    full = [
        replace(node, used={"offline": 4} if index else {}) for index, node in enumerate(seen.slices.nodes)
    ]
    crowded = replace(seen, slices=replace(seen.slices, nodes=tuple(full)))
    # Its slices are reserved, so that the work yields; a pod before that would end some of it.
    [waiting] = plan(crowded).spares
    assert (waiting.starts, plan(crowded).slice_count) == (False, 1)
    freed = replace(crowded.slices, nodes=(*full[:2], replace(full[2], used={"offline": 3})))
    [started] = plan(replace(crowded, slices=freed, live_spares=[exists(waiting, is_placed=False)])).spares
    assert (started.node, started.starts) == ("node-2", True)
    # With its own pod there, nothing is free any more.
    [running] = plan(replace(crowded, live_spares=[exists(started)])).spares
    assert (running.node, running.starts) == ("node-2", True)


def test_a_spare_on_a_node_that_takes_no_pods_stays_as_long_as_it_serves() -> None:
    [spare] = plan(pool(model("ctr"))).spares
    assert spare.node == "node-1"
    cordoned = pool(
        model("ctr", {}, held=1), slices=(0, 0, 4), live_spares=[exists(spare, "ctr")], spare_slices=0
    )
    found = plan(cordoned)
    assert [(item.node, item.models) for item in found.spares] == [("node-1", ("ctr",))]
    # Its slice is none of those that others can have, so none is reserved.
    assert (found.excess_slices, found.count_slices(cordoned.slices.healthy_nodes)) == (0, 0)
    # It serves for none: it moves.
    moved = plan(replace(cordoned, live_spares=[exists(spare)]))
    assert [item.node for item in moved.spares] == ["node-2"]


def test_a_loaded_spare_on_a_cordoned_node_stays_until_another_has_its_models() -> None:
    [spare] = plan(pool(model("ctr"), model("cvr"))).spares
    old = exists(spare, "ctr", "cvr")
    cordoned = pool(model("ctr"), model("cvr"), slices=(4, 0, 4), live_spares=[old])
    first = plan(cordoned)
    assert [(item.number, item.node, item.models) for item in first.spares] == [
        (0, "node-1", ("ctr", "cvr")),
        (1, "node-2", ("ctr", "cvr")),
    ]
    assert "node node-1 takes no new pods" in first.spares[0].reason
    assert first.covered == {"ads/ctr", "ads/cvr"}
    assert first.excess_slices == 0
    # The new one has loaded one of them, and then both.
    new = first.spares[1]
    half = plan(replace(cordoned, live_spares=[old, exists(new, "ctr")], spare_plan=first))
    assert [item.models for item in half.spares] == [("cvr",), ("ctr", "cvr")]
    whole = plan(replace(cordoned, live_spares=[old, exists(new, "ctr", "cvr")], spare_plan=half))
    assert [item.node for item in whole.spares] == ["node-2"]
    # A pod that is not ready serves nothing.
    dead = replace(cordoned, live_spares=[replace(old, serving={}, is_ready=False)])
    assert [item.node for item in plan(dead).spares] == ["node-2"]
    # Nothing else has room for it.
    full = plan(replace(cordoned, slices=nodes(4, 0, 0)))
    assert ([item.node for item in full.spares], full.covered) == (["node-1"], set())


def test_a_loaded_model_stays_for_dwell_after_its_need_ends() -> None:
    placed = {"node-0": 1, "node-1": 1}
    needy = pool(model("ctr", placed, least=2), model("cvr"), rates={"ctr": 190.0, "cvr": 5.0})
    first = plan(needy)
    [spare] = [item for item in first.spares if "ctr" in item.models]
    live = [exists(item, *item.models) for item in first.spares]
    # With one node fewer it serves all the same.
    calm = replace(needy, live_spares=live, signals=signals(ctr=90.0, cvr=5.0))

    def look(before: PoolSparePlan, after_s: float, seen: AllocationObserved = calm) -> PoolSparePlan:
        return plan(replace(seen, spare_plan=before, now=NOW + timedelta(seconds=after_s)))

    def find_models(found: PoolSparePlan) -> dict[int, tuple[str, ...]]:
        return {item.number: item.models for item in found.spares}

    kept = look(first, 10)
    assert find_models(kept) == find_models(first)
    assert kept.kept_models == {(spare.place, "ctr"): NOW + timedelta(seconds=10)}
    dwell_s = parse_duration(needy.pool.spec.policy.dwell).total_seconds()
    assert look(kept, 9 + dwell_s) == kept
    over = look(kept, 10 + dwell_s)
    assert "ctr" not in {name for item in over.spares for name in item.models}
    assert over.kept_models == {}
    # It is needed again: the next end begins anew.
    assert look(look(kept, 20, replace(needy, live_spares=live)), 30).kept_models == {
        (spare.place, "ctr"): NOW + timedelta(seconds=30)
    }
    # What has not been loaded, or was not planned, does not stay.
    assert (
        look(first, 10, replace(calm, live_spares=[exists(item) for item in first.spares])).kept_models == {}
    )
    assert plan(calm).kept_models == {}


def test_a_kept_spare_yields_to_a_model_that_needs_its_slices() -> None:
    limited = {"mode": "Auto", "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxSlices": 2}}}
    ctr = model("ctr", {"node-0": 1, "node-1": 1}, least=2)
    first = plan(pool(ctr, policy=limited, rates={"ctr": 190.0}))
    live = [exists(item, *item.models) for item in first.spares]
    calm = pool(ctr, policy=limited, rates={"ctr": 90.0}, live_spares=live, spare_plan=first)
    kept = plan(calm)
    assert [item.models for item in kept.spares] == [("ctr",)]
    assert kept.spares[0].reason == "nothing needs its models any more: they stay for policy.dwell"
    large = model("large", {"node-0": 1}, slices=2)
    rates = signals(ctr=90.0, large=90.0)
    found = plan(replace(calm, members=(ctr, large), signals=rates))
    assert [(item.slices, item.models) for item in found.spares] == [(2, ("large",))]


def test_an_inference_that_decisions_leave_out_keeps_the_spare_that_serves_for_it() -> None:
    [spare] = plan(pool(model("ctr"))).spares
    left_out = replace(model("ctr", {}, held=1), excluded_reason="its pods are replaced")
    seen = pool(left_out, slices=(0, 4, 4), live_spares=[exists(spare, "ctr")])
    assert [(item.node, item.models) for item in plan(seen).spares] == [("node-1", ("ctr",))]
    new = plan(replace(seen, live_spares=()))
    assert (new.spares, list(new.uncovered)) == ((), ["ads/ctr"])


def test_a_held_pool_and_one_without_demand_keep_what_exists() -> None:
    [spare] = plan(pool(model("ctr"), model("cvr"))).spares
    held = pool(
        model("ctr"), model("cvr"), policy={**AUTO, "mode": "Hold"}, live_spares=[exists(spare, "ctr")]
    )
    assert [item.models for item in plan(held).spares] == [("ctr", "cvr")]
    kept = keep_spares(held)
    assert [item.models for item in kept.spares] == [("ctr", "cvr")]
    # The other has not been loaded.
    assert kept.covered == {"ads/ctr"}


def test_a_held_pool_stops_no_spare_although_others_need_its_slices() -> None:
    [spare] = plan(pool(model("ctr"))).spares
    for mode, kept in (("Hold", True), ("RecommendOnly", True), ("Auto", False)):
        seen = pool(
            model("ctr"),
            policy={**AUTO, "mode": mode},
            tiers={"offline": {"floor": 11}},
            live_spares=[exists(spare, "ctr")],
            spare_slices=1,
        )
        assert [item.name for item in plan(seen).spares] == ([spare.name] if kept else []), mode
        # The model is gone.
        seen = replace(seen, members=())
        assert [item.name for item in plan(seen).spares] == ([spare.name] if kept else []), mode


def of_namespaces(*namespaces: str, **more: Any) -> AllocationObserved:
    """A pool with a model ctr in each of these namespaces, all on the first node."""
    members: list[PoolMember] = []
    for namespace in namespaces:
        member = model("ctr")
        metadata = member.inference.metadata.model_copy(update={"namespace": namespace})
        inference = member.inference.model_copy(update={"metadata": metadata})
        claim = replace(member.claim, key=inference.key)
        members.append(replace(member, inference=inference, claim=claim))
    rates = {member.key: Signal(50.0, NOW, fresh=True) for member in members}
    return pool(*members, signals=Signals(rates), **more)


def test_an_existing_spare_stays_although_a_namespace_that_sorts_before_wants_one() -> None:
    limited = {"mode": "Auto", "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxSlices": 1}}}
    # The limit of slices, and nodes of one slice each without replicas.
    for more in ({"policy": limited}, {"slices": (4, 1)}):
        [first] = plan(of_namespaces("zeta", **more)).spares
        live = [exists(first, "ctr")]
        both = replace(of_namespaces("alpha", "zeta", **more), live_spares=live, spare_slices=1)
        found = plan(both)
        assert [(spare.namespace, spare.node) for spare in found.spares] == [("zeta", "node-1")]
        assert (found.covered, list(found.uncovered)) == ({"zeta/ctr"}, ["alpha/ctr"])
        # Nothing needs it any more: it is replaced.
        gone = replace(of_namespaces("alpha", **more), live_spares=live, spare_slices=1)
        assert [spare.namespace for spare in plan(gone).spares] == ["alpha"]
        # Without the other there is room for the first by name.
        assert list(plan(of_namespaces("alpha", "zeta", **more)).uncovered) == ["zeta/ctr"]
    # With a larger limit each has its own.
    larger = {"mode": "Auto", "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxSlices": 2}}}
    found = plan(replace(of_namespaces("alpha", "zeta", policy=larger), live_spares=[exists(first, "ctr")]))
    assert [spare.namespace for spare in found.spares] == ["alpha", "zeta"]


def test_spares_of_two_namespaces_take_the_last_free_slice_of_a_node_once() -> None:
    seen = of_namespaces("ads", "shop")
    busy = (
        replace(seen.slices.nodes[1], used={"offline": 3}),
        replace(seen.slices.nodes[2], used={"offline": 3}),
    )
    seen = replace(seen, slices=sum_nodes((seen.slices.nodes[0], *busy)))
    assert [(spare.namespace, spare.node) for spare in plan(seen).spares] == [
        ("ads", "node-1"),
        ("shop", "node-2"),
    ]


def test_spares_count_in_the_pool_and_in_the_bounds_of_realtime_and_take_the_place_of_a_reserve() -> None:
    tiers = {"realtime": {"floor": 4, "ceiling": 6}}
    seen = pool(model("ctr", {"node-0": 1, "node-1": 1}), tiers=tiers, rates={"ctr": 190.0})
    live = [exists(spare, *spare.models) for spare in plan(seen).spares]
    found = plan(replace(seen, live_spares=live, spare_slices=1))
    planned = replace(seen, spare_plan=found, spare_slices=found.slice_count)
    snapshot = build_allocation_view(planned).snapshot
    assert (seen.allocatable_slices, planned.allocatable_slices, planned.free_slices) == (12, 11, 9)
    assert snapshot.pools[0].slices == 11
    [rule] = [rule for rule in snapshot.pools[0].tiers if rule.tier is Tier.REALTIME]
    assert (rule.floor, rule.ceiling) == (3, 5)

    def decide(seen: AllocationObserved) -> int:
        [assigned] = Solver(lambda: 0.0).solve(build_allocation_view(seen).snapshot).replicas
        return assigned.replicas

    # In free slices a priced loss holds a third replica; a spare holds it for everyone.
    free, covered = (replace(item, pool=pool().pool) for item in (seen, planned))
    assert (decide(free), decide(covered)) == (3, 2)


def decide_about(seen: AllocationObserved, shared: PoolSparePlan) -> dict[str, Any] | None:
    snapshot = build_allocation_view(seen).snapshot
    assignment = Solver(lambda: 0.0).solve(snapshot)
    solved = SolvedAllocation(
        assignment,
        predict_outcome(snapshot, assignment),
        DecisionTrigger.INTERVAL,
        0.1,
        shared_spares=shared.spares,
    )
    return plan_decision(seen, solved)


def test_a_decision_names_the_spares_and_is_made_again_only_if_they_change() -> None:
    seen = pool(model("ctr"), model("cvr"))
    seen = replace(seen, live_spares=[exists(spare, *spare.models) for spare in plan(seen).spares])
    shared = plan(seen)
    seen = replace(seen, spare_plan=shared, spare_slices=1)
    body = decide_about(seen, shared)
    assert body is not None
    [spare] = AllocationDecision.parse(body).spec.shared_spares
    assert (spare.namespace, spare.node, spare.slices, spare.models) == ("ads", "node-1", 1, ("ctr", "cvr"))
    assert spare.reason.startswith("the loss of node node-0")
    recorded = body["spec"]["sharedSpares"]
    standing = a_decision(outcome={"appliedAt": NOW.isoformat()}, sharedSpares=recorded)
    assert decide_about(replace(seen, decisions=(standing,)), shared) is None
    other = a_decision(
        outcome={"appliedAt": NOW.isoformat()}, sharedSpares=[{**recorded[0], "models": ["ctr"]}]
    )
    assert decide_about(replace(seen, decisions=(other,)), shared) is not None
