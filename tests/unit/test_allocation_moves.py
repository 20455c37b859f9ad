"""The order of moves: carried out step by step, no step exceeds capacity and no real-time floor breaks in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, snapshots, solve_snapshot
from stages.examples import examples
from tidegate.allocation.assignment import Assignment, Move, MoveAction
from tidegate.allocation.snapshot import AllocationSnapshot, ModelInput, ReplicaBounds, ReplicaCounts
from tidegate.api.inference import Tier


def steps(assignment: Assignment) -> list[tuple[int, MoveAction, str, int]]:
    return [(move.wave, move.action, move.inference, move.replicas) for move in assignment.moves]


class World:
    """Pods that follow the moves: what is started loads, what is stopped drains, until the wave ends."""

    def __init__(self, snapshot: AllocationSnapshot) -> None:
        self.snapshot = snapshot
        self.slices = {
            (each.key, spot.pool): spot.slices for each in snapshot.inferences for spot in each.placements
        }
        phases = {
            (each.key, spot.pool): spot.replicas for each in snapshot.inferences for spot in each.placements
        }
        self.ready = {key: each.ready for key, each in phases.items()}
        self.loading = {key: each.loading for key, each in phases.items()}
        self.draining = {key: each.draining for key, each in phases.items()}
        self.spare = {key: each.spare for key, each in phases.items()}

    def carry_out(self, move: Move) -> None:
        key = (move.inference, move.pool)
        match move.action:
            case MoveAction.START:
                self.loading[key] += move.replicas
            case MoveAction.PROMOTE:
                self.spare[key] -= move.replicas
                self.ready[key] += move.replicas
            case MoveAction.STOP_SPARE:
                self.spare[key] -= move.replicas
                self.draining[key] += move.replicas
            case MoveAction.STOP:
                early = min(self.loading[key], move.replicas)
                self.loading[key] -= early
                self.ready[key] -= move.replicas - early
                self.draining[key] += move.replicas
        assert min(self.ready[key], self.loading[key], self.spare[key]) >= 0

    def end_wave(self) -> None:
        for key in self.ready:
            self.ready[key] += self.loading[key]
            self.loading[key] = self.draining[key] = 0

    def occupied(self, pool: str) -> int:
        phases = (self.ready, self.loading, self.draining, self.spare)
        return sum(phase[key] * self.slices[key] for phase in phases for key in phase if key[1] == pool)

    def serving(self, inference: str) -> int:
        return sum(count for key, count in self.ready.items() if key[0] == inference)

    def rate(self, inference: ModelInput, replicas: dict[tuple[str, str], int] | None = None) -> float:
        """Requests per second that its ready replicas serve."""
        counts = self.ready if replicas is None else replicas
        return sum(spot.curve.rate_at(counts[inference.key, spot.pool]) for spot in inference.placements)


def kept_rates(world: World, target: dict[tuple[str, str], int]) -> dict[str, float]:
    """What each real-time model serves of its present demand before any move and, as decided, after the last."""
    return {
        each.key: min(each.load.rates[0], world.rate(each), world.rate(each, target))
        for each in world.snapshot.inferences
        if each.tier is Tier.REALTIME and each.load is not None
    }


@settings(max_examples=examples(60))
@given(snapshots(most_models=5))
def test_every_step_keeps_capacity_and_floors(snapshot: AllocationSnapshot) -> None:
    assignment = solve_snapshot(snapshot)
    world = World(snapshot)
    room = {pool.name: max(pool.slices, world.occupied(pool.name)) for pool in snapshot.pools}
    target = {
        each.key: sum(assignment.get_replicas(each.key, spot.pool) for spot in each.placements)
        for each in snapshot.inferences
    }
    floors = {
        each.key: min(each.bounds.floor, world.serving(each.key), target[each.key])
        for each in snapshot.inferences
        if each.tier is Tier.REALTIME
    }
    reached = {(each.inference, each.pool): each.replicas for each in assignment.replicas}
    rates = kept_rates(world, reached)
    models = {each.key: each for each in snapshot.inferences}
    wave = 0
    for move in assignment.moves:
        while wave < move.wave:
            world.end_wave()
            wave += 1
        world.carry_out(move)
        assert all(world.occupied(pool) <= room[pool] for pool in room)
        assert all(world.serving(key) >= floor for key, floor in floors.items())
        assert all(world.rate(models[key]) >= rate - 1e-9 for key, rate in rates.items())
    world.end_wave()
    for (key, pool), count in world.ready.items():
        assert count == assignment.get_replicas(key, pool)


def test_what_fits_is_started_before_anything_stops() -> None:
    busy = a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=600.0)
    idle = a_model("off", Tier.OFFLINE, a_placement(ready=4), rate=400.0)
    assert steps(solve_snapshot(a_snapshot(busy, idle))) == [
        (0, MoveAction.START, "ads/ctr", 2),
        (0, MoveAction.STOP, "ads/off", 2),
        (1, MoveAction.START, "ads/ctr", 2),
    ]


def test_a_warm_spare_is_promoted_before_anything_starts() -> None:
    placement = a_placement(replicas=ReplicaCounts(ready=1, spare=1))
    busy = a_model("ctr", Tier.REALTIME, placement, rate=300.0)
    assert steps(solve_snapshot(a_snapshot(a_pool(spares=1), busy))) == [
        (0, MoveAction.PROMOTE, "ads/ctr", 1),
        (0, MoveAction.START, "ads/ctr", 1),
    ]


def test_what_still_drains_holds_its_slices() -> None:
    leaving = a_model("off", Tier.OFFLINE, a_placement(replicas=ReplicaCounts(draining=8)), rate=0.0)
    busy = a_model("ctr", Tier.REALTIME, a_placement(), rate=200.0)
    assert steps(solve_snapshot(a_snapshot(leaving, busy))) == [(1, MoveAction.START, "ads/ctr", 2)]


def test_a_model_changes_pools_without_leaving_its_floor() -> None:
    """It may only stop where it was when it is ready where it goes."""
    old = a_placement("old", ready=2, per_replica=100.0)
    new = a_placement("new", per_replica=100.0)
    moved = a_model("ctr", Tier.REALTIME, old, new, rate=200.0, bounds=ReplicaBounds(2))
    other = a_model("big", Tier.REALTIME, a_placement("old", slices=2, per_replica=900.0), rate=900.0)
    assignment = solve_snapshot(a_snapshot(a_pool("old", 2), a_pool("new", 2), moved, other))
    assert steps(assignment) == [
        (0, MoveAction.START, "ads/ctr", 2),
        (1, MoveAction.STOP, "ads/ctr", 2),
        (2, MoveAction.START, "ads/big", 1),
    ]


def moved_between_pools(rate: float) -> AllocationSnapshot:
    """Eight ready in a, a minimum of one; a lost most of its slices to a model worth more, and b is empty."""
    old = a_placement("a", ready=8, load_s=60.0)
    new = a_placement("b", load_s=60.0)
    moved = a_model("ctr", Tier.REALTIME, old, new, rate=rate, bounds=ReplicaBounds(1))
    other = a_model("big", Tier.REALTIME, a_placement("a", slices=7), rate=100.0, bounds=ReplicaBounds(1))
    return a_snapshot(a_pool("a", 8), a_pool("b", 8), moved, other)


def test_a_model_that_changes_pools_sheds_none_of_its_demand() -> None:
    """Its minimum of 1 is not what it needs: all of the 800/s are served until b is ready."""
    assignment = solve_snapshot(moved_between_pools(rate=800.0))
    assert steps(assignment) == [
        (0, MoveAction.START, "ads/ctr", 7),
        (1, MoveAction.STOP, "ads/ctr", 7),
        (2, MoveAction.START, "ads/big", 1),
    ]


def test_a_model_that_changes_pools_lets_go_at_once_of_what_nobody_asks_for() -> None:
    found = steps(solve_snapshot(moved_between_pools(rate=300.0)))
    assert (0, MoveAction.STOP, "ads/ctr", 5) in found
    assert (0, MoveAction.START, "ads/ctr", 2) in found


def test_two_models_that_would_have_to_change_places_in_full_pools_wait() -> None:
    here, there = a_placement("a", ready=1, per_replica=1.0), a_placement("b", per_replica=100.0)
    one = a_model("one", Tier.REALTIME, here, there, rate=100.0, bounds=ReplicaBounds(1))
    two = a_model(
        "two",
        Tier.REALTIME,
        a_placement("a", per_replica=100.0),
        a_placement("b", ready=1, per_replica=1.0),
        rate=100.0,
        bounds=ReplicaBounds(1),
    )
    assignment = solve_snapshot(a_snapshot(a_pool("a", 1), a_pool("b", 1), one, two))
    assert assignment.moves == ()
    assert len(assignment.postponed) == 4
    assert assignment.get_replicas("ads/one", "a") == assignment.get_replicas("ads/two", "b") == 1
    # What is said is what is reached: one of the hundred requests per second of each, and not the target's hundred.
    assert assignment.objective == pytest.approx(2.0)
    assert [(each.rule, each.subject) for each in assignment.relaxed] == [
        ("SLO", "ads/one"),
        ("SLO", "ads/two"),
    ]


def test_spares_that_nobody_wants_any_more_make_room() -> None:
    spare = a_model("old", Tier.REALTIME, a_placement(replicas=ReplicaCounts(spare=3)), rate=0.0)
    busy = a_model("ctr", Tier.REALTIME, a_placement(ready=4), rate=700.0)
    assert steps(solve_snapshot(a_snapshot(a_pool(spares=0), spare, busy))) == [
        (0, MoveAction.STOP_SPARE, "ads/old", 2),
        (0, MoveAction.START, "ads/ctr", 1),
        (1, MoveAction.START, "ads/ctr", 2),
    ]
