"""Placement: what a pool gives each Inference, in which order, and what is said to those that get less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.compute_pool import a_compute_pool, node_body
from builders.inference import an_inference
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import PoolShare, Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.inference.deployments import DeploymentView
from tidegate.planning.pools.claims import NodeShare, PoolClaim, make_claim
from tidegate.planning.pools.compute_pool import judge_readiness
from tidegate.planning.pools.nodes import parse_node
from tidegate.planning.pools.placement import PlacementResult, place_claim, place_without_pool
from tidegate.planning.pools.pool_claims import ASSIGNING_REASONS, PoolClaims, SliceLedger, refuse_claim
from tidegate.planning.pools.pool_slices import NodeSlices, PoolSlices, sum_nodes, sum_pool_slices

TEMPLATE: dict[str, Any] = {"metadata": {}, "spec": {}}


def slices_of(pool: ComputePool, *cpus: int, **facts: Any) -> PoolSlices:
    """The pool on nodes of so many cores, and as many slices of one core."""
    bodies = [node_body(f"node-{n}", cpu=str(cpu), memory="64Gi", **facts) for n, cpu in enumerate(cpus)]
    return sum_pool_slices(pool, [parse_node(body) for body in bodies], {})


def a_claim(
    name: str = "ctr",
    *,
    tier: Tier = Tier.REALTIME,
    slices: int = 1,
    replicas: int = 1,
    assigned: int = 0,
    created: str = "",
    spares: int = 0,
) -> PoolClaim:
    return PoolClaim(ObjectKey("ads", name), tier, slices, replicas, assigned, created, spares=spares)


def running(replicas: int, *, slices: int = 1, pool: str = "cpu-a") -> DeploymentView:
    """A Deployment on slices of a pool."""
    return DeploymentView(
        TEMPLATE, complete=True, deadline_exceeded=False, replicas=replicas, pool=pool, slices=slices
    )


def placed(
    wanted: PoolClaim,
    *others: PoolClaim,
    cpus: tuple[int, ...] = (4, 4),
    live: DeploymentView | None = None,
    **spec: Any,
) -> PlacementResult:
    pool = a_compute_pool(**spec)
    return place_claim(wanted, live, pool, slices_of(pool, *cpus), PoolClaims((wanted, *others)))


def assigned_replicas(
    pool: ComputePool, slices: PoolSlices, claims: Sequence[PoolClaim]
) -> Mapping[ObjectKey, int]:
    assignments = PoolClaims(claims).assign_slices(pool, slices)
    return {claim.key: assignments.count_replicas(claim.key) for claim in claims}


def assign_one_after_the_other(
    pool: ComputePool, slices: PoolSlices, claims: Sequence[PoolClaim]
) -> tuple[Mapping[ObjectKey, int], SliceLedger]:
    """Assign slices to each claim by itself: the rule in its plainest form. Returns replicas, and what each tier has then."""
    ledger, nodes = SliceLedger(), slices.healthy_nodes
    for claim in claims:
        ledger.assign_slices(claim.tier, claim.count_slices(claim.kept_replicas, nodes))
    replicas = {claim.key: claim.kept_replicas for claim in claims}
    if judge_readiness(pool, slices).reason not in ASSIGNING_REASONS:
        return replicas, ledger
    rank = {tier: number for number, tier in enumerate(Tier)}
    ordered = sorted(claims, key=lambda claim: (rank[claim.tier], claim.created, claim.key))
    without_spares = [(claim, claim.replicas - claim.spares) for claim in ordered]
    for claim, desired in (*without_spares, *((claim, claim.replicas) for claim in ordered)):
        before = replicas[claim.key]
        assigned = claim.count_slices(before, nodes)
        # What it has beyond its replicas, of another size or of terminating pods, is room for its own alone.
        room = ledger.count_room(claim.tier, pool, slices) + assigned - before * claim.slices
        more = min(desired - before, room // claim.slices)
        if more > 0 and refuse_claim(pool, slices, claim) is None:
            replicas[claim.key] += more
            ledger.assign_slices(claim.tier, claim.count_slices(before + more, nodes) - assigned)
    return replicas, ledger


def test_every_replica_gets_its_slices_and_the_pods_the_size_of_them() -> None:
    result = placed(a_claim(slices=2, replicas=3))

    assert (result.replicas, result.verdict.reason) == (3, Reason.PLACED)
    resources = result.resources
    assert resources is not None
    # Two slices, less what the agent beside the server asks for.
    assert (resources.cpu, resources.memory) == ("1950m", "1920Mi")
    assert resources.node_selector == {"pool": "a"}
    assert resources.labels == {"tidegate.io/pool": "cpu-a", "tidegate.io/slices": "2"}


def test_a_full_pool_gives_what_it_has_and_names_the_figures() -> None:
    result = placed(a_claim(replicas=5), a_claim("other", replicas=6, assigned=6, tier=Tier.OFFLINE))

    assert result.replicas == 2
    assert result.verdict.reason is Reason.POOL_FULL
    assert result.verdict.stalled
    assert result.verdict.message == (
        "ComputePool cpu-a gives 2 of 5 replicas their 1 slice: of 8 healthy slices 0 are left to tier realtime "
        "(realtime has 2, nearline has 0, offline has 6); lower spec.replicas or spec.placement.slices, "
        "or add nodes to the pool"
    )


def test_where_replicas_are_decided_the_range_is_what_to_change() -> None:
    wanted = replace(a_claim(replicas=5), scaled=True)
    message = placed(wanted, a_claim("other", replicas=6, assigned=6, tier=Tier.OFFLINE)).verdict.message
    assert "lower spec.scaling.minReplicas or spec.placement.slices, or add nodes" in message


def test_what_is_held_is_kept_and_those_that_wait_come_by_tier_and_age() -> None:
    pool = a_compute_pool()
    claims = (
        a_claim("held", tier=Tier.OFFLINE, replicas=5, assigned=5),
        a_claim("young", replicas=2, created="2026-01-02"),
        a_claim("old", replicas=2, created="2026-01-01"),
        a_claim("patient", tier=Tier.NEARLINE, replicas=2, created="2025-01-01"),
    )
    replicas = assigned_replicas(pool, slices_of(pool, 4, 4), claims)

    assert {key.name: count for key, count in replicas.items()} == {
        "held": 5,
        "old": 2,
        "young": 1,
        "patient": 0,
    }


def test_a_spare_waits_until_everybody_has_what_they_need_and_nobody_misses_it() -> None:
    old = a_claim("old", replicas=3, assigned=2, created="2025", spares=1)
    new = a_claim("new", replicas=1, created="2026")
    result = placed(old, new, cpus=(3,), live=running(2))
    assert result.replicas == 2
    assert result.verdict.holds
    assert placed(new, old, cpus=(3,)).replicas == 1
    enough = placed(old, new, cpus=(4,), live=running(2))
    assert enough.replicas == 3
    assert enough.verdict.message.endswith("gives 3 replicas 1 slice each, 1 of them as a warm spare")


def test_a_floor_is_kept_for_its_tier_used_or_not() -> None:
    tiers = {"realtime": {"floor": 6}}
    batch = placed(a_claim("batch", tier=Tier.OFFLINE, replicas=4), tiers=tiers)
    assert batch.replicas == 2
    assert "realtime has 0 and a floor of 6" in batch.verdict.message
    assert (
        placed(
            a_claim(replicas=6), a_claim("batch", tier=Tier.OFFLINE, assigned=2, replicas=2), tiers=tiers
        ).replicas
        == 6
    )


def test_a_ceiling_is_not_passed_though_there_is_room() -> None:
    result = placed(a_claim(tier=Tier.OFFLINE, replicas=4), tiers={"offline": {"ceiling": 3}})

    assert result.replicas == 3
    assert result.verdict.reason is Reason.TIER_FULL
    assert "tier offline has 3 slices and a ceiling of 3" in result.verdict.message


def test_more_slices_than_any_node_has_are_refused_with_the_number_that_would_do() -> None:
    result = placed(a_claim(slices=6), cpus=(4, 5))

    assert result.replicas == 0
    assert result.verdict.reason is Reason.TOO_MANY_SLICES
    assert "the largest has 5: set spec.placement.slices to 5 at most" in result.verdict.message


def test_a_pool_that_takes_no_pods_says_why() -> None:
    pool = a_compute_pool()
    wanted = a_claim()
    result = place_claim(wanted, None, pool, slices_of(pool, 4, cordoned=True), PoolClaims((wanted,)))

    assert result.verdict.reason is Reason.POOL_NOT_READY
    assert "node node-0 is cordoned" in result.verdict.message
    assert not result.verdict.stalled


def test_a_node_that_fails_takes_nothing_from_what_was_given() -> None:
    pool = a_compute_pool()
    wanted = a_claim(replicas=4, assigned=4)
    result = place_claim(wanted, running(4), pool, slices_of(pool, 4, ready=False), PoolClaims((wanted,)))

    assert (result.replicas, result.verdict.holds) == (4, True)


def test_without_a_pool_what_runs_stays() -> None:
    result = place_without_pool("cpu-a", 5, running(3))

    assert (result.resources, result.replicas) == (None, 3)
    assert result.verdict.reason is Reason.POOL_NOT_FOUND
    assert "its 3 pods stay as they are" in result.verdict.message


@pytest.mark.parametrize(
    ("live", "slices"),
    [
        pytest.param(running(3, pool="cpu-b"), 1, id="from another pool"),
        pytest.param(running(3), 2, id="to larger replicas"),
        pytest.param(running(3, pool="", slices=0), 1, id="from no pool"),
    ],
)
def test_pods_that_move_wait_until_there_is_room_for_as_many_as_run(
    live: DeploymentView, slices: int
) -> None:
    inference = an_inference(replicas=3, placement={"pool": "cpu-a", "slices": slices})
    wanted = make_claim(inference, PoolShare("cpu-a", slices), live)
    full = a_claim("other", replicas=6, assigned=6)
    waiting = placed(wanted, full, live=live)
    assert (waiting.resources, waiting.replicas, waiting.verdict.holds) == (None, 3, False)

    moving = placed(wanted, live=live)
    assert moving.resources is not None
    assert (moving.replicas, moving.verdict.holds) == (3, True)


def test_what_an_inference_leaves_is_nobody_elses_until_its_pods_are_gone() -> None:
    """It was given another pool or deleted: its Deployment, then its pods on their way out, still have their slices."""
    newcomer = a_claim("new", replicas=4)
    leaving = a_claim("old", tier=Tier.OFFLINE, replicas=0, assigned=4)
    assert placed(newcomer, leaving, cpus=(4,)).replicas == 0
    draining = replace(leaving, assigned=0, pods={"node-0": 3})
    assert placed(newcomer, draining, cpus=(4,)).replicas == 1
    assert placed(newcomer, replace(draining, pods={}), cpus=(4,)).replicas == 4


def test_pods_that_end_on_a_lost_node_take_nothing_of_the_others() -> None:
    stuck = replace(a_claim("old", replicas=0), pods={"lost": 4})
    assert placed(a_claim("new", replicas=4), stuck, cpus=(4,)).replicas == 4


def test_pods_that_wait_for_a_larger_size_keep_the_slices_that_they_have() -> None:
    larger = a_claim("old", slices=3, replicas=4, assigned=4, tier=Tier.OFFLINE)
    assert placed(a_claim("new"), larger, cpus=(4,)).replicas == 0
    assert placed(larger, cpus=(12,), live=running(4)).replicas == 4


def test_fewer_replicas_are_carried_out_though_the_pool_has_no_room_for_those_that_move() -> None:
    wanted, full = a_claim(replicas=2), a_claim("other", replicas=8, assigned=8)
    result = placed(wanted, full, live=running(4, pool="cpu-b"))
    assert (result.resources, result.replicas, result.verdict.holds) == (None, 2, False)
    assert place_without_pool("cpu-a", 0, running(3)).replicas == 0


_CLAIMS = st.lists(
    st.builds(
        PoolClaim,
        key=st.builds(ObjectKey, st.just("ads"), st.text("abcdef", min_size=1, max_size=3)),
        tier=st.sampled_from(Tier),
        slices=st.integers(1, 5),
        replicas=st.integers(0, 9),
        assigned=st.integers(0, 12),
        created=st.sampled_from(["", "2026-01-01", "2026-01-02"]),
        pods=st.dictionaries(st.sampled_from(["node-0", "node-1", "lost"]), st.integers(1, 4)),
        assumed=st.integers(0, 4),
        spares=st.integers(0, 2),
    ),
    max_size=7,
    unique_by=lambda each: each.key,
)


@given(
    claims=_CLAIMS,
    floors=st.tuples(*[st.integers(0, 5)] * 3),
    ceiling=st.integers(5, 12),
    cpus=st.integers(0, 20),
)
def test_no_tier_grows_into_anothers_floor_above_its_ceiling_or_beyond_the_pool(
    claims: list[PoolClaim], floors: tuple[int, int, int], ceiling: int, cpus: int
) -> None:
    tiers = {
        tier.value: {"floor": floor, "ceiling": ceiling} for tier, floor in zip(Tier, floors, strict=True)
    }
    pool = a_compute_pool(tiers=tiers)
    slices = slices_of(pool, cpus, 4)
    replicas = assigned_replicas(pool, slices, claims)

    has = {tier: sum(replicas[c.key] * c.slices for c in claims if c.tier is tier) for tier in Tier}
    kept = {tier: sum(c.kept_replicas * c.slices for c in claims if c.tier is tier) for tier in Tier}
    for claim in claims:
        assert claim.kept_replicas <= replicas[claim.key] <= claim.replicas
    for tier in Tier:
        if has[tier] == kept[tier]:
            continue  # it has not grown
        assert has[tier] <= ceiling
        assert sum(has.values()) <= slices.healthy
        reserved = sum(
            max(other_floor - has[other], 0)
            for other, other_floor in zip(Tier, floors, strict=True)
            if other is not tier
        )
        assert sum(has.values()) + reserved <= slices.healthy
    assert replicas == assigned_replicas(pool, slices, list(reversed(claims)))


_TIERS = st.dictionaries(
    st.sampled_from([tier.value for tier in Tier]),
    st.fixed_dictionaries({"floor": st.integers(0, 5)}, optional={"ceiling": st.integers(5, 60)}),
)
_CHANGE = st.one_of(
    _CLAIMS.map(lambda claims: ("put", claims)),
    st.sampled_from("abcdef").map(lambda name: ("remove", name)),
    st.lists(st.integers(0, 60), max_size=3).map(lambda cpus: ("nodes", cpus)),
    _TIERS.map(lambda tiers: ("tiers", tiers)),
)


def assert_assigned_one_after_the_other(claims: PoolClaims, pool: ComputePool, slices: PoolSlices) -> None:
    replicas, ledger = assign_one_after_the_other(pool, slices, tuple(claims))
    assignments = claims.assign_slices(pool, slices)
    assert {claim.key: assignments.count_replicas(claim.key) for claim in claims} == replicas
    assert assignments.ledger.assigned_slices == ledger.assigned_slices
    assert assignments.find_gains() == {
        claim.key: replicas[claim.key] for claim in claims if replicas[claim.key] > claim.kept_replicas
    }


@given(changes=st.lists(_CHANGE, max_size=12))
def test_after_any_changes_slices_are_assigned_as_if_one_after_the_other(
    changes: list[tuple[str, Any]],
) -> None:
    claims, pool, slices = PoolClaims(), a_compute_pool(), slices_of(a_compute_pool(), 20, 4)
    for what, value in changes:
        if what == "put":
            for each in value:
                claims.put_claim(each)
        elif what == "remove":
            claims.remove_claim(ObjectKey("ads", value))
        elif what == "nodes":
            slices = slices_of(pool, *value)
        else:
            pool = a_compute_pool(tiers=value)
        assert_assigned_one_after_the_other(claims, pool, slices)


@pytest.mark.parametrize("seed", range(4))
def test_slices_of_very_many_claims_are_assigned_as_if_one_after_the_other(seed: int) -> None:
    random = Random(seed)
    pool = a_compute_pool(tiers={"nearline": {"ceiling": 400}, "offline": {"floor": 60}})
    slices = slices_of(pool, 1200, 40)

    def any_claim() -> PoolClaim:
        return a_claim(
            str(random.randrange(600)),
            tier=random.choice(tuple(Tier)),
            slices=random.choice((1, 1, 2, 7)),
            replicas=random.randrange(4),
            assigned=random.randrange(3),
            created=str(random.randrange(20)),
            spares=random.randrange(2),
        )

    claims = PoolClaims(any_claim() for _ in range(600))
    for _ in range(12):
        for _ in range(random.choice((1, 40))):
            claims.put_claim(any_claim())
            claims.remove_claim(ObjectKey("ads", str(random.randrange(600))))
        slices = slices_of(pool, random.choice((900, 1200, 3000)), 40)
        assert_assigned_one_after_the_other(claims, pool, slices)


def scattered(**changes: Any) -> PlacementResult:
    """Two nodes of four slices with one free each, and a replica of two that no node takes."""
    tiers = {"realtime": 2, "offline": 1}
    slices = sum_nodes(NodeSlices(node, 4, tiers, "") for node in ("node-0", "node-1"))
    on_both = {"node-0": NodeShare(ready=1), "node-1": NodeShare(ready=1)}
    wanted = replace(a_claim("big", slices=2, replicas=1, assigned=2), **changes)
    others = (
        replace(
            a_claim("ctr", replicas=4, assigned=4), nodes={"node-0": NodeShare(2), "node-1": NodeShare(2)}
        ),
        replace(a_claim("embed", tier=Tier.OFFLINE, replicas=2, assigned=2), nodes=on_both),
    )
    pool = a_compute_pool()
    return place_claim(wanted, running(1, slices=2), pool, slices, PoolClaims((wanted, *others)))


def test_a_pod_that_no_single_node_takes_is_told_what_to_move() -> None:
    assert scattered().remedy == (
        "2 slices are free, scattered over nodes: to make room, move a replica of ads/embed (1 slice) from node node-0 to node-1"
    )


def test_nothing_is_moved_for_a_pod_that_has_a_node_or_cannot_have_one() -> None:
    assert scattered(nodes={"node-0": NodeShare(not_ready=2)}).remedy == ""
    assert scattered(slices=1, assigned=1).remedy == ""
    assert scattered(slices=3, assigned=3).remedy == ""  # only two are free
    assert (
        placed(a_claim(slices=2, assigned=2), live=running(1, slices=2)).remedy == ""
    )  # a node has four free
