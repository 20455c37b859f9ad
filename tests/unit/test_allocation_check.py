"""Which answers are not used: those that exceed a pool, or whose moves do, break a floor, or lead elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, snapshots, solve_snapshot
from stages.examples import examples
from tidegate.allocation.assembly import solve_greedily
from tidegate.allocation.assignment import AssignedReplicas, Assignment, Move, MoveAction
from tidegate.allocation.check import find_defect
from tidegate.allocation.snapshot import AllocationSnapshot, ReplicaBounds, ReplicaCounts
from tidegate.api.inference import Tier

SNAPSHOT = a_snapshot(
    a_pool(slices=4),
    a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=300.0, bounds=ReplicaBounds(2)),
    a_model("off", Tier.OFFLINE, a_placement(ready=2), rate=1.0),
)


def a_move(action: MoveAction, replicas: int, model: str = "ctr", wave: int = 0, pool: str = "gpu-a") -> Move:
    return Move(wave, action, f"ads/{model}", Tier.REALTIME, pool, replicas, replicas, 2, 3, "")


def answered(ctr: int, off: int, *moves: Move, postponed: tuple[str, ...] = ()) -> Assignment:
    placed = (AssignedReplicas("ads/ctr", "gpu-a", ctr), AssignedReplicas("ads/off", "gpu-a", off))
    return replace(solve_snapshot(SNAPSHOT), replicas=placed, moves=moves, postponed=postponed)


STOP_OFF = a_move(MoveAction.STOP, 1, "off")

WRONG = [
    (answered(9, 2), "it gives 11 slices of gpu-a, which has 4"),
    (answered(9, 2, postponed=("some",)), "it gives 11 slices of gpu-a, which has 4"),
    (answered(2, 2, a_move(MoveAction.START, 1)), "takes 5 slices of gpu-a, where there are 4"),
    (answered(3, 1, STOP_OFF, a_move(MoveAction.START, 1)), "takes 5 slices of gpu-a, where there are 4"),
    (answered(3, 1, STOP_OFF), "its moves lead ads/ctr to 2 replicas in gpu-a, not 3"),
    (answered(3, 1), "its moves lead ads/ctr to 2 replicas in gpu-a, not 3"),
    (answered(2, 0, a_move(MoveAction.STOP, 3, "off")), "cannot be executed"),
    (answered(2, 2, a_move(MoveAction.PROMOTE, 1)), "cannot be executed"),
    (answered(2, 2, a_move(MoveAction.START, 0)), "cannot be executed"),
    (answered(2, 2, a_move(MoveAction.START, 1, pool="b")), "is of nobody who was asked about"),
    (
        answered(2, 1, a_move(MoveAction.STOP, 1), STOP_OFF, a_move(MoveAction.START, 1, wave=1)),
        "leaves 1 replicas ready, below the floor of 2",
    ),
    (
        answered(2, 1, a_move(MoveAction.STOP, 1, "off", wave=1), a_move(MoveAction.START, 1)),
        "cannot be executed",
    ),
    (answered(-1, 2), "it gives ads/ctr -1 replicas in gpu-a"),
    (replace(answered(2, 2), replicas=()), "does not place exactly"),
    (replace(answered(2, 2), inputs_hash="of other inputs"), "it answers other inputs"),
]


@pytest.mark.parametrize(("assignment", "message"), WRONG)
def test_what_is_not_used(assignment: Assignment, message: str) -> None:
    assert message in find_defect(SNAPSHOT, assignment)


def test_the_same_moves_in_their_order_are_used() -> None:
    """Beside the refused ones: the start waits for the stop to be gone."""
    assert find_defect(SNAPSHOT, answered(3, 1, STOP_OFF, a_move(MoveAction.START, 1, wave=1))) == ""


def test_what_a_lost_node_leaves_too_much_may_wait() -> None:
    lost = a_snapshot(a_pool(slices=3), *SNAPSHOT.inferences)
    waits = replace(answered(2, 2, postponed=("some",)), inputs_hash=lost.inputs_hash)
    assert find_defect(lost, waits) == ""
    assert find_defect(lost, replace(waits, postponed=())) != ""


def test_spares_that_are_promoted_and_ended_are_used() -> None:
    spare = a_model("ctr", Tier.REALTIME, a_placement(replicas=ReplicaCounts(spare=2)), rate=100.0)
    other = a_model("off", Tier.OFFLINE, rate=700.0)
    snapshot = a_snapshot(spare, other)
    assert {move.action for move in solve_snapshot(snapshot).moves} >= {
        MoveAction.PROMOTE,
        MoveAction.STOP_SPARE,
    }
    assert find_defect(snapshot, solve_snapshot(snapshot)) == ""


@settings(max_examples=examples(60))
@given(snapshots(most_models=5))
def test_every_answer_of_ours_is_used(snapshot: AllocationSnapshot) -> None:
    assert find_defect(snapshot, solve_snapshot(snapshot)) == ""
    assert find_defect(snapshot, solve_greedily(snapshot, "killed")) == ""
