"""Deadlines of streams in decisions: after the SLOs of real-time models, before any value, and named where they are missed."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, solve_snapshot
from builders.allocator import NOW
from builders.nearline import nearline_spec
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import DeadlineInput, DemandInput, ModelInput, ReplicaBounds
from tidegate.api.inference import Tier
from tidegate.api.nearline import NearlineSpec
from tidegate.planning.allocator.signals import MAX_RATE_PER_S, Signal
from tidegate.planning.allocator.stream_demand import (
    CATCH_UP_S,
    find_deadline,
    find_deadline_shortfalls,
)

DEAR = 1e6


def a_stream(
    rate: float = 300.0, *, ready: int = 1, deadline: float | None = 300.0, name: str = "rank", **more: Any
) -> ModelInput:
    """Near-line work of replicas that answer 100 messages per second each."""
    promise = None if deadline is None else DeadlineInput(deadline, 60.0)
    load = DemandInput((rate,), deadline=promise)
    return a_model(name, Tier.NEARLINE, a_placement(ready=ready), load=load, **{"value": 0.001, **more})


def embed(ready: int, value: float = DEAR) -> ModelInput:
    """Offline work that can use all slices, and is worth far more."""
    placement = a_placement(ready=ready, per_replica=1.0)
    return a_model("embed", Tier.OFFLINE, placement, rate=8.0, value=value)


def deadlines(assignment: Assignment) -> list[tuple[str, str]]:
    return [(rule.subject, rule.message) for rule in assignment.relaxed if rule.rule == "deadline"]


def test_deadline_comes_before_work_of_any_value() -> None:
    kept = solve_snapshot(a_snapshot(a_stream(), embed(7)))
    assert (kept.get_replicas("ads/rank", "gpu-a"), deadlines(kept)) == (3, [])
    # Without it, the messages wait as long as other work is worth more.
    waiting = solve_snapshot(a_snapshot(a_stream(deadline=None), embed(7)))
    assert waiting.get_replicas("ads/rank", "gpu-a") == 0
    # It asks for no more than keeps it, although messages come faster than that.
    part = solve_snapshot(a_snapshot(a_stream(rate=700.0, deadline=200.0), embed(7)))
    assert part.get_replicas("ads/rank", "gpu-a") == 2


def test_slo_comes_before_a_deadline_that_is_named_with_what_it_gets() -> None:
    ctr = a_model("ctr", Tier.REALTIME, a_placement(ready=6), rate=600.0, value=1e-6)
    assignment = solve_snapshot(a_snapshot(ctr, a_stream(ready=2)))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 6
    assert assignment.get_replicas("ads/rank", "gpu-a") == 2
    assert deadlines(assignment) == [
        (
            "ads/rank",
            "2 replicas answer 200/s of the 300/s that keep messages within 60 s; add slices",
        )
    ]
    assert all(rule.rule != "SLO" for rule in assignment.relaxed)


def test_deadline_comes_before_warm_spares() -> None:
    assignment = solve_snapshot(a_snapshot(a_pool(slices=4, spares=2), a_stream(ready=3)))
    assert assignment.get_replicas("ads/rank", "gpu-a") == 3
    assert [rule.rule for rule in assignment.relaxed] == ["warm spares"]


def test_maximum_is_named_where_it_stops_a_deadline() -> None:
    [(_, message)] = deadlines(solve_snapshot(a_snapshot(a_stream(bounds=ReplicaBounds(0, 2)))))
    assert message == (
        "2 replicas answer 200/s of the 300/s that keep messages within 60 s; raise its maximum or add slices"
    )


def test_reason_and_binding_name_the_deadline() -> None:
    assignment = solve_snapshot(a_snapshot(a_stream(), embed(7)))
    [reason] = [move.reason for move in assignment.moves if move.inference == "ads/rank"]
    assert reason.startswith(
        "nearline ads/rank +2 in gpu-a: messages wait at most 60 s if 300/s are answered, and 100/s are; taken from"
    )
    assert "deadline of ads/rank: 3 replicas" in [binding.constraint for binding in assignment.bindings]


def test_two_that_both_miss_it_do_not_take_from_each_other_for_little() -> None:
    """The mean value of messages changes with what comes: of two that are nearly equal, the higher must not take all each time."""

    def list_moves(value: float) -> list[str]:
        rank = a_stream(rate=800.0, deadline=800.0, ready=4, value=value)
        log = a_stream(rate=800.0, deadline=800.0, ready=4, value=1.0, name="log")
        return [move.inference for move in solve_snapshot(a_snapshot(rank, log)).moves]

    assert list_moves(1.001) == []
    assert sorted(set(list_moves(2.0))) == ["ads/log", "ads/rank"]


def test_several_pools_keep_a_deadline_together() -> None:
    placements = a_placement("gpu-a", ready=1), a_placement("gpu-b")
    load = DemandInput((400.0,), deadline=DeadlineInput(300.0, 60.0))
    rank = a_model("rank", Tier.NEARLINE, *placements, load=load, value=0.001)
    work = a_placement("gpu-a", ready=1, per_replica=1.0)
    dear = a_model("embed", Tier.OFFLINE, work, rate=8.0, value=DEAR)
    assignment = solve_snapshot(a_snapshot(a_pool("gpu-a", 2), a_pool("gpu-b", 2), rank, dear))
    assert assignment.get_replicas("ads/rank", "gpu-a") + assignment.get_replicas("ads/rank", "gpu-b") == 3
    assert deadlines(assignment) == []


def test_shortfall_is_what_ready_replicas_lack() -> None:
    snapshot = a_snapshot(
        a_stream(ready=1), a_stream(ready=4, name="log"), a_stream(deadline=None, name="free"), embed(0)
    )
    assert find_deadline_shortfalls(snapshot) == {"ads/rank": 200.0, "ads/log": 0.0}


@pytest.mark.parametrize(
    ("deadline", "message"),
    [
        (DeadlineInput(-1.0, 60.0), "load.deadline.rate: -1 is outside"),
        (DeadlineInput(nan, 60.0), "load.deadline.rate: nan is not a number"),
        (DeadlineInput(1e308, 60.0), "load.deadline.rate: 1e+308 is outside"),
        (DeadlineInput(1.0, 0.0), "load.deadline.maxDelay: 0 is outside"),
        (DeadlineInput(1.0, inf), "load.deadline.maxDelay: inf is not a number"),
    ],
)
def test_impossible_deadline_is_refused(deadline: DeadlineInput, message: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        a_model("rank", Tier.NEARLINE, load=DemandInput((1.0,), deadline=deadline))
    assert message in str(raised.value)


def test_deadline_of_other_tiers_is_refused() -> None:
    for tier in (Tier.REALTIME, Tier.OFFLINE):
        with pytest.raises(InvalidInputError, match="is only for near-line work"):
            a_model("ctr", tier, load=DemandInput((1.0,), deadline=DeadlineInput(1.0, 60.0)))


def needed(backlog: float | None, arrivals: float = 10.0, load_s: float = 20.0, **more: Any) -> float:
    """The rate that a delay of 100 s takes."""
    spec = NearlineSpec.model_validate(nearline_spec(maxDelay="100s"))
    rate = arrivals + (backlog or 0.0) / CATCH_UP_S
    signal = Signal(rate, NOW, backlog=backlog, **more)
    deadline = find_deadline(spec, signal, 5.0, load_s)
    assert deadline is not None
    assert deadline.max_delay_s == 100.0
    return deadline.rate


def test_rate_answers_the_backlog_within_the_delay_and_keeps_up() -> None:
    assert needed(4_000.0) == 50.0  # within 80 s, since replicas load for 20 s
    assert needed(4_000.0, load_s=900.0) == 80.0
    assert needed(100.0) == pytest.approx(10.0)
    assert needed(0.0, arrivals=0.0) == 5.0
    assert needed(1e300) == MAX_RATE_PER_S
    # Without a count that is fresh, it keeps a pod that counts.
    assert needed(None) == needed(9_000.0, fresh=False) == 5.0


def test_stream_without_a_delay_has_no_deadline() -> None:
    spec = NearlineSpec.model_validate(nearline_spec())
    assert find_deadline(spec, Signal(1.0, NOW, backlog=4_000.0), 5.0, 20.0) is None
