"""The allocator on any small snapshot: as good as trying every answer, never over capacity, the same every time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from builders.allocation import snapshots
from builders.every_answer import best, score
from stages.examples import examples
from tidegate.allocation.assembly import SolveLimits, solve_greedily
from tidegate.allocation.assignment import Assignment, SolveMethod
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.solver import Solver

EXACT = SolveLimits(seconds=30.0, gap=0.0)
CLOSE = 1e-5
# Assignments without relaxed rules are rare among small snapshots.
small = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def solved(snapshot: AllocationSnapshot, limits: SolveLimits = EXACT) -> Assignment:
    return Solver(lambda: 0.0).solve(snapshot, limits)


def replicas(assignment: Assignment) -> dict[tuple[str, str], int]:
    return {(each.inference, each.pool): each.replicas for each in assignment.replicas}


def over_capacity(snapshot: AllocationSnapshot, assignment: Assignment) -> list[str]:
    given_slices = {pool.name: 0 for pool in snapshot.pools}
    for each in snapshot.inferences:
        for spot in each.placements:
            given_slices[spot.pool] += assignment.get_replicas(each.key, spot.pool) * spot.slices
    return [pool.name for pool in snapshot.pools if given_slices[pool.name] > pool.slices]


@small
@given(snapshots())
def test_it_is_as_good_as_trying_every_answer(snapshot: AllocationSnapshot) -> None:
    assignment = solved(snapshot)
    missed, value = score(snapshot, replicas(assignment))
    assert assignment.objective == pytest.approx(value, abs=1e-6)
    assume(not assignment.postponed)
    least, most = best(snapshot)
    assert missed == pytest.approx(least, abs=1e-6)
    assert value >= most - CLOSE * max(1.0, abs(most))
    assert assignment.method is not SolveMethod.GREEDY


@small
@given(snapshots(most_models=6))
def test_it_is_never_over_capacity(snapshot: AllocationSnapshot) -> None:
    for assignment in (solved(snapshot, SolveLimits(seconds=30.0)), solve_greedily(snapshot, "killed")):
        assert over_capacity(snapshot, assignment) == []


@small
@given(snapshots(most_models=4))
def test_whatever_moves_is_bound_by_something_that_is_named(snapshot: AllocationSnapshot) -> None:
    for assignment in (solved(snapshot, SolveLimits(seconds=30.0)), solve_greedily(snapshot, "killed")):
        moved = [move for move in assignment.moves if move.before != move.after]
        assert assignment.bindings or not moved


@small
@given(snapshots(most_models=5))
def test_the_same_snapshot_gets_the_same_bytes(snapshot: AllocationSnapshot) -> None:
    shuffled = replace(snapshot, inferences=snapshot.inferences[::-1], pools=snapshot.pools[::-1])
    assert repr(solved(snapshot)) == repr(solved(shuffled))


@small
@given(snapshots(most_models=4), snapshots(most_models=4))
def test_what_was_solved_before_decides_nothing(
    before: AllocationSnapshot, snapshot: AllocationSnapshot
) -> None:
    warm = Solver(lambda: 0.0)
    warm.solve(before, EXACT)
    names = {pool.name for pool in snapshot.pools}
    rates = {each.key: each for each in before.inferences if {spot.pool for spot in each.placements} <= names}
    # The same models with other numbers, so that the warm model is used again.
    other = replace(
        snapshot, inferences=tuple(_with_load_of(each, rates.get(each.key)) for each in snapshot.inferences)
    )
    warm.solve(other, EXACT)
    assert replicas(warm.solve(snapshot, EXACT)) == replicas(solved(snapshot))


def _with_load_of(each, other):
    if other is None or other.load is None or each.load is None:
        return each
    return replace(each, load=replace(each.load, rates=(*other.load.rates, 1.0, 1.0)[: len(each.load.rates)]))


@small
@given(snapshots(), st.integers(1, 3))
def test_more_capacity_is_never_worse(snapshot: AllocationSnapshot, more: int) -> None:
    first, *others = snapshot.pools
    larger = replace(snapshot, pools=(replace(first, slices=first.slices + more), *others))
    # What one promises depends on capacity: only where all can be had do the two promise alike.
    small_one, large_one = solved(snapshot), solved(larger)
    assume(not small_one.relaxed and not small_one.postponed and not large_one.postponed)
    assume(not large_one.relaxed)
    assert large_one.objective >= small_one.objective - CLOSE * max(1.0, abs(small_one.objective))


@small
@given(snapshots(most_models=5))
def test_the_bound_is_a_bound(snapshot: AllocationSnapshot) -> None:
    assignment = solved(snapshot, SolveLimits(seconds=30.0))
    assert assignment.bound is not None
    assert assignment.objective <= assignment.bound + CLOSE * max(1.0, abs(assignment.bound))


@small
@given(snapshots())
def test_greedy_keeps_what_matters_most(snapshot: AllocationSnapshot) -> None:
    """Floors of real-time models where any answer keeps them: one replica after the other finds them."""
    assume(all(len(each.placements) == 1 and each.placements[0].slices == 1 for each in snapshot.inferences))
    assignment = solve_greedily(snapshot, "killed")
    missed, _ = score(snapshot, replicas(assignment))
    least, _ = best(snapshot)
    assert missed[0] == pytest.approx(least[0], abs=1e-6)
    assert assignment.note == "killed"
    assert assignment.method is SolveMethod.GREEDY
