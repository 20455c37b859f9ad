"""Moves that make room on one node: found wherever trying everything finds some, the fewest, and none that goes back and forth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.examples import examples
from tidegate.api.meta import ObjectKey
from tidegate.planning.pools.packing import MAX_MOVES, MovablePods, PackingMove, plan_packing

Arrangement = tuple[dict[str, int], list[MovablePods]]
"""Free slices by node, and the pods that may move, each in an entry of its own."""


def a_pod(name: str, node: str, slices: int = 1, rank: int = 0) -> MovablePods:
    return MovablePods(ObjectKey("ads", name), node, slices, 1, rank)


@st.composite
def arrangements(draw: st.DrawFn) -> Arrangement:
    """Up to three nodes and five pods."""
    names = "abc"[: draw(st.integers(1, 3))]
    free = {node: draw(st.integers(0, 4)) for node in names}
    pods = [
        a_pod(f"p{number}", draw(st.sampled_from(names)), draw(st.integers(1, 4)), draw(st.integers(0, 2)))
        for number in range(draw(st.integers(0, 5)))
    ]
    return free, pods


def iter_moves(free: dict[str, int], pods: Sequence[MovablePods]) -> Iterator[tuple[int, str]]:
    for number, pod in enumerate(pods):
        for node in free:
            if node != pod.node and free[node] >= pod.slices:
                yield number, node


def move(free: dict[str, int], pods: list[MovablePods], number: int, node: str) -> Arrangement:
    """The replacement starts where there is room, and then the pod ends."""
    pod = pods[number]
    assert free[node] >= pod.slices, "a replacement starts on a node without room"
    after = {**free, pod.node: free[pod.node] + pod.slices, node: free[node] - pod.slices}
    moved = MovablePods(pod.inference, node, pod.slices, 1, pod.rank)
    return after, [*pods[:number], moved, *pods[number + 1 :]]


def fewest_moves(free: dict[str, int], pods: list[MovablePods], needed: int, limit: int) -> int | None:
    """Try all sequences of moves."""
    if max(free.values()) >= needed:
        return 0
    counts = [
        1 + count
        for number, node in iter_moves(free, pods)
        if limit and (count := fewest_moves(*move(free, pods, number, node), needed, limit - 1)) is not None
    ]
    return min(counts, default=None)


def carry_out(free: dict[str, int], pods: list[MovablePods], plan: Sequence[PackingMove]) -> Arrangement:
    for step in plan:
        number = next(
            number
            for number, pod in enumerate(pods)
            if (pod.inference, pod.slices, pod.node) == (step.inference, step.slices, step.source)
        )
        free, pods = move(free, pods, number, step.target)
    return free, pods


@settings(max_examples=examples(300))
@given(arrangement=arrangements(), needed=st.integers(1, 9))
def test_it_makes_room_with_the_fewest_moves_wherever_there_is_a_way(
    arrangement: Arrangement, needed: int
) -> None:
    free, pods = arrangement
    plan = plan_packing(free, pods, needed)
    assert (None if plan is None else len(plan)) == fewest_moves(free, pods, needed, MAX_MOVES)
    if plan is not None:
        after, _ = carry_out(free, pods, plan)
        assert max(after.values()) >= needed


@given(arrangement=arrangements(), pending=st.lists(st.integers(2, 5), max_size=4))
def test_each_plan_places_a_replica_and_then_nothing_moves_for_it(
    arrangement: Arrangement, pending: list[int]
) -> None:
    free, pods = arrangement
    for number, needed in enumerate(pending):
        plan = plan_packing(free, pods, needed)
        if plan is None:
            continue
        free, pods = carry_out(free, pods, plan)
        # What made the room makes no second plan, and the replica takes it: it may be moved later as any other.
        assert plan_packing(free, pods, needed) == ()
        node = max(free, key=lambda node: free[node])
        free = {**free, node: free[node] - needed}
        pods = [*pods, a_pod(f"new-{number}", node, needed, rank=2)]


@given(arrangement=arrangements(), needed=st.integers(1, 9))
def test_equal_inputs_give_equal_plans_in_any_order(arrangement: Arrangement, needed: int) -> None:
    free, pods = arrangement
    backwards = dict(reversed(free.items()))
    assert plan_packing(free, pods, needed) == plan_packing(backwards, pods[::-1], needed)


def test_less_important_work_moves_first_and_fewer_slices_of_it() -> None:
    pods = [a_pod("realtime", "a", 1, rank=2), a_pod("offline", "a", 2, rank=0), a_pod("log", "b", 1, rank=1)]
    plan = plan_packing({"a": 1, "b": 0, "c": 2}, pods[:2], 3)
    assert plan == (PackingMove(ObjectKey("ads", "offline"), 2, "a", "c"),)
    small = [a_pod("small", "a", 1), a_pod("large", "a", 2)]
    assert plan_packing({"a": 2, "b": 2}, small, 3) == (PackingMove(ObjectKey("ads", "small"), 1, "a", "b"),)


def test_a_pod_makes_room_for_one_that_makes_room() -> None:
    pods = [a_pod("large", "a", 2), a_pod("small", "b", 1)]
    plan = plan_packing({"a": 1, "b": 1, "c": 1}, pods, 3)
    assert plan == (
        PackingMove(ObjectKey("ads", "small"), 1, "b", "c"),
        PackingMove(ObjectKey("ads", "large"), 2, "a", "b"),
    )


@pytest.mark.parametrize(
    ("free", "pods", "needed", "plan"),
    [
        ({}, [], 1, None),
        ({"a": 2}, [], 2, ()),
        ({"a": 0, "b": 0}, [a_pod("x", "a")], 1, None),
        # No pod may move.
        ({"a": 1, "b": 1}, [], 2, None),
        # Pods on nodes that take none are not moved.
        ({"a": 1, "b": 1}, [a_pod("x", "gone")], 2, None),
        ({"a": 1, "b": 1}, [MovablePods(ObjectKey("ads", "x"), "a", 0, 3)], 2, None),
    ],
)
def test_nothing_is_planned_without_need_or_way(
    free: dict[str, int], pods: list[MovablePods], needed: int, plan: tuple[PackingMove, ...] | None
) -> None:
    assert plan_packing(free, pods, needed) == plan


def test_a_pool_of_many_nodes_is_searched_to_an_end() -> None:
    """500 nodes without a way: no two pods fit elsewhere together."""
    free = {f"node-{number:03}": number % 3 for number in range(500)}
    pods = [a_pod(f"p{number}", f"node-{number % 500:03}", 3 + number % 2) for number in range(1500)]
    started = perf_counter()
    assert plan_packing(free, pods, 7) is None
    assert perf_counter() - started < 5.0
