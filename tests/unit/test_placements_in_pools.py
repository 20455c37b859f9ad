"""Placements of Inferences in several pools: who runs where, who waits, and who is woken."""

from __future__ import annotations

from builders.compute_pool import compute_pool_body, node_body
from builders.placement_world import PlacementWorld
from tidegate.api.meta import ObjectKey
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.names import make_pool_deployment_name

BOTH = ("cpu-a", "cpu-b")


def by_pool(result: PlacementResult) -> dict[str, int]:
    return {pool.pool: pool.replicas for pool in result.pools}


def test_what_the_first_pool_has_no_room_for_goes_to_the_next() -> None:
    world = PlacementWorld()
    world.inference("ctr", *BOTH, replicas=6)
    result = world.of("ctr")
    assert (by_pool(result), result.verdict.holds) == ({"cpu-a": 4, "cpu-b": 2}, True)

    world.inference("other", "cpu-b", replicas=4)
    assert world.of("other").replicas == 2, "what was just given counts in both pools"


def test_a_replica_does_not_return_to_a_better_pool_that_has_room_again() -> None:
    world = PlacementWorld()
    world.inference("ctr", *BOTH, replicas=6)
    world.of("ctr")
    world.deployment("ctr", 4)
    world.deployment("ctr", 2, "cpu-b", name=make_pool_deployment_name("ctr", "cpu-b"))
    world.placements.forget_assumed(ObjectKey("ads", "ctr"))
    world.has(world._nodes, node_body("node-more", labels={"pool": "a"}))
    assert by_pool(world.of("ctr")) == {"cpu-a": 4, "cpu-b": 2}

    world.inference("ctr", *BOTH, replicas=7)
    assert by_pool(world.of("ctr")) == {"cpu-a": 5, "cpu-b": 2}, "new ones go to the first"
    world.inference("ctr", *BOTH, replicas=5)
    assert by_pool(world.of("ctr")) == {"cpu-a": 4, "cpu-b": 1}, "the last pool gives first"


def test_room_in_any_of_its_pools_wakes_one_that_waits() -> None:
    world = PlacementWorld()
    for pool, name in (("cpu-a", "old-a"), ("cpu-b", "old-b")):
        world.inference(name, pool)
        world.deployment(name, 4, pool)
    world.inference("ctr", *BOTH, replicas=2)
    result = world.of("ctr")
    assert (result.replicas, result.verdict.reason.value) == (0, "PoolFull")
    world.placements.forget_assumed(ObjectKey("ads", "ctr"))

    world.woken.clear()
    world.inference("old-b", "cpu-b", replicas=3)
    world.deployment("old-b", 3, "cpu-b")
    assert "ctr" in world.woken
    assert by_pool(world.of("ctr")) == {"cpu-a": 0, "cpu-b": 1}


def test_only_the_first_pool_is_asked_to_make_room() -> None:
    world = PlacementWorld()
    world.inference("ctr", *BOTH, replicas=10)
    world.of("ctr")
    (first,), (second,) = (world.placements.list_claims(pool) for pool in BOTH)
    assert (first.replicas, first.spilled) == (6, 0), "four that run and two that wait"
    assert (second.replicas, second.spilled) == (6, 2)


def test_a_pool_that_is_being_deleted_is_left_out_and_named() -> None:
    world = PlacementWorld()
    world.inference("ctr", "cpu-a", "cpu-b", replicas=6)
    pool = compute_pool_body("cpu-a", nodeSelector={"pool": "a"})
    deleting = {**pool["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.has(world.stores.pools, {**pool, "metadata": deleting})

    result = world.of("ctr")
    assert by_pool(result) == {"cpu-a": 0, "cpu-b": 4}
    assert result.verdict.reason.value == "PoolNotFound"
    assert "there is no ComputePool cpu-a" in result.verdict.message
    (claim,) = world.placements.list_claims("cpu-b")
    assert (claim.replicas, claim.spilled) == (6, 0), "the next pool is the one to make room"


def test_a_pool_deleted_in_a_move_keeps_what_runs_there() -> None:
    world = PlacementWorld()
    world.inference("ctr", *BOTH, replicas=6)
    world.deployment("ctr", 4)
    world.deployment("ctr", 2, "cpu-b", name=make_pool_deployment_name("ctr", "cpu-b"))
    world.inference("ctr", "cpu-b", "cpu-c", replicas=6)
    pool = compute_pool_body("cpu-b", nodeSelector={"pool": "b"})
    world.has(world.stores.pools, pool, gone=True)

    result = world.of("ctr")
    assert by_pool(result) == {"cpu-b": 2, "cpu-c": 0}
    assert result.verdict.message.startswith("2 of 6 replicas have slices (2 in ComputePool cpu-b): ")
    # Its four pods in cpu-a hold their slices until they are gone.
    (claim,) = world.placements.list_claims("cpu-a")
    assert (claim.replicas, claim.all_slices) == (0, 4)
    world.deployment("ctr", 1000)
    (claim,) = world.placements.list_claims("cpu-a")
    assert claim.all_slices == 6, "anyone may scale a Deployment, and takes no more than the spec asks for"


def test_the_deployment_of_a_pool_is_ours_only_under_its_own_name() -> None:
    world = PlacementWorld()
    world.inference("ctr", *BOTH, replicas=2)
    world.deployment("ctr", 2, "cpu-b", name=make_pool_deployment_name("ctr", "cpu-c"))
    assert world.placements.find_workload(ObjectKey("ads", "ctr")) is None
    world.deployment("ctr", 2, "cpu-b", name=make_pool_deployment_name("ctr", "cpu-b"))
    assert world.placements.find_workload(ObjectKey("ads", "ctr")) is not None
