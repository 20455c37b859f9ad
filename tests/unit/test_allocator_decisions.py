"""When a decision is written, what is in it, and when nothing is."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from builders.allocator import NOW, a_decision, a_member, observed, signals
from tidegate.allocation.assembly import solve_greedily
from tidegate.allocation.solver import Solver
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.allocation_decision import AllocationDecision, DecisionTrigger
from tidegate.api.inference import Tier
from tidegate.planning.allocator.decision import (
    KEPT_DECISIONS,
    SolvedAllocation,
    find_expired,
    plan_decision,
    sort_newest_first,
)
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.value_mix import ValueRates

CAPACITY = {"requestsPerSecond": "100"}


def decided(seen: AllocationObserved) -> dict[str, Any] | None:
    snapshot = build_allocation_view(seen).snapshot
    assignment = Solver(time.monotonic).solve(snapshot)
    expected, spares = predict_outcome(snapshot, assignment), choose_warm_spares(snapshot, assignment)
    return plan_decision(seen, SolvedAllocation(assignment, expected, DecisionTrigger.INTERVAL, 0.01, spares))


def targets(body: dict[str, Any] | None) -> dict[str, int]:
    assert body is not None
    return {move["inference"]: move["to"] for move in body["spec"]["moves"]}


def evening(rate: float = 550.0, **more: Any) -> AllocationObserved:
    """Eight slices: the batch job has six of them, and more is asked of ctr than two replicas serve."""
    ctr = a_member("ctr", 2, capacity=CAPACITY)
    batch = a_member("batch", 6, least=0, tier=Tier.OFFLINE)
    return observed(ctr, batch, signals=signals(ctr=rate), **more)


def test_real_time_load_takes_from_the_batch_and_the_decision_says_why() -> None:
    body = decided(evening())
    assert targets(body) == {"ads/batch": 2, "ads/ctr": 6}
    assert body is not None
    down, up = body["spec"]["moves"]
    assert (down["inference"], up["inference"]) == ("ads/batch", "ads/ctr")
    assert "demand 550/s exceeds 200/s" in up["why"]
    assert body["spec"]["solver"] in ("LP", "MILP")
    parsed = AllocationDecision.parse(body)
    assert parsed.spec.trigger is DecisionTrigger.INTERVAL
    assert parsed.spec.move_count == 2
    assert not parsed.is_finished


def test_replicas_that_slow_each_other_down_are_counted_as_they_were_measured_together() -> None:
    together = [{"replicas": 4, "requestsPerSecond": "280"}, {"replicas": 2, "requestsPerSecond": "160"}]
    for capacity, needed in ((CAPACITY, 4), ({**CAPACITY, "together": together}, 5)):
        ctr = a_member("ctr", 2, capacity=capacity)
        batch = a_member("batch", 6, least=0, tier=Tier.OFFLINE)
        body = decided(observed(ctr, batch, signals=signals(ctr=330.0)))
        assert targets(body) == {"ads/batch": 8 - needed, "ads/ctr": needed}
    assert body is not None
    assert "demand 330/s exceeds 160/s" in body["spec"]["moves"][1]["why"]


def test_a_decision_without_a_solver_says_so_and_why() -> None:
    snapshot = build_allocation_view(evening()).snapshot
    greedy = solve_greedily(snapshot, "the solver did not answer within 5 s and was ended")
    body = plan_decision(
        evening(),
        SolvedAllocation(greedy, predict_outcome(snapshot, greedy), DecisionTrigger.INTERVAL, 0.01, ()),
    )
    assert body is not None
    assert body["spec"]["solver"] == "Greedy"
    assert body["spec"]["note"] == "the solver did not answer within 5 s and was ended"
    assert AllocationDecision.parse(body).spec.solver == "Greedy"


def test_a_decision_that_stands_is_not_written_again_though_its_figures_change() -> None:
    body = decided(evening())
    assert body is not None
    standing = AllocationDecision.parse(body)
    assert decided(evening(555.0, decisions=(standing,), now=NOW + timedelta(minutes=1))) is None
    assert targets(decided(evening(450.0, decisions=(standing,)))) == {"ads/batch": 3, "ads/ctr": 5}


def test_a_recommendation_that_nobody_needs_any_more_is_taken_back() -> None:
    standing = a_decision(("batch", 6, 2), ("ctr", 2, 6), mode="RecommendOnly")
    body = decided(evening(150.0, decisions=(standing,)))
    assert body is not None
    assert body["spec"]["moves"] == []
    assert decided(evening(150.0, decisions=(AllocationDecision.parse(body),))) is None


def test_a_recommendation_is_decided_again_once_it_may_be_carried_out() -> None:
    standing = a_decision(("batch", 6, 2), ("ctr", 2, 6), mode="RecommendOnly")
    assert targets(decided(evening(decisions=(standing,), policy={"mode": "Auto"})))


def test_nothing_is_written_where_nothing_moves() -> None:
    assert decided(evening(150.0)) is None


def test_what_cannot_be_kept_is_written_once() -> None:
    seen = observed(a_member("ctr", 8, least=9, most=9))
    body = decided(seen)
    assert body is not None
    assert [each["rule"] for each in body["spec"]["notKept"]] == ["realtime floor"]
    known = AllocationDecision.parse(body)
    assert decided(observed(a_member("ctr", 8, least=9, most=9), decisions=(known,))) is None


def test_the_name_says_when_and_is_no_other_ones() -> None:
    body, later = decided(evening()), decided(evening(now=NOW + timedelta(milliseconds=1)))
    assert body is not None
    assert later is not None
    names = [each["metadata"]["name"] for each in (body, later)]
    assert all(name.startswith("cpu-a-20260101-120000-") for name in names)
    assert len(set(names)) == 2
    assert body["spec"]["inputsHash"] == later["spec"]["inputsHash"]


def test_a_decision_belongs_to_its_pool() -> None:
    body = decided(evening())
    assert body is not None
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ComputePool", "cpu-a")
    assert owner["uid"]


def test_the_newest_decision_counts_also_where_a_clock_was_set_back() -> None:
    ahead = a_decision(
        ("ctr", 2, 3), at=NOW + timedelta(hours=1), name="ahead", outcome={"appliedAt": NOW.isoformat()}
    )
    body = decided(evening(decisions=(ahead,), policy={"mode": "Auto"}))
    assert body is not None
    made = AllocationDecision.parse(body)
    both = sort_newest_first([ahead, made])
    assert both[0].metadata.name == made.metadata.name
    assert observed(decisions=both, policy={"mode": "Auto"}).current_decision is both[0]
    assert decided(evening(decisions=both, policy={"mode": "Auto"})) is None


def test_a_fixed_number_that_finds_no_place_is_decided_once() -> None:
    """Its replicas are not the allocator's to give: what they lack is no new decision."""
    big = a_member("big", 0, least=1, most=None, slices=4, capacity=CAPACITY)
    batch = a_member("batch", 8, least=0, tier=Tier.OFFLINE)
    body = decided(observed(big, batch))
    assert targets(body)["ads/batch"] == 4
    assert body is not None
    done = AllocationDecision.parse({**body, "status": {"outcome": {"appliedAt": NOW.isoformat()}}})
    given = a_member("batch", 4, least=0, tier=Tier.OFFLINE)
    assert decided(observed(big, given, decisions=(done,))) is None


def test_the_oldest_go_first() -> None:
    made = [
        a_decision(name=f"d{number}", at=NOW + timedelta(seconds=number))
        for number in range(KEPT_DECISIONS + 2)
    ]
    ordered = sort_newest_first(made)
    assert ordered[0].metadata.name == f"d{KEPT_DECISIONS + 1}"
    assert [each.metadata.name for each in find_expired(ordered)] == ["d1", "d0"]


WARM = {"tiers": {"realtime": {"warmSpares": 1}}, "policy": {"mode": "Auto"}}


def kept(body: dict[str, Any] | None) -> dict[str, int]:
    assert body is not None
    return {each["inference"]: each["replicas"] for each in body["spec"]["spares"]}


def test_a_warm_spare_is_decided_once_and_goes_with_the_pool_that_asked_for_it() -> None:
    ctr, load = a_member("ctr", 2, capacity=CAPACITY), signals(ctr=150.0)
    body = decided(observed(ctr, signals=load, **WARM))
    assert targets(body) == {}
    assert kept(body) == {"ads/ctr": 1}
    assert body is not None
    standing = AllocationDecision.parse(body)
    assert decided(observed(ctr, signals=load, decisions=(standing,), **WARM)) is None

    done = a_decision(outcome={"appliedAt": NOW.isoformat()}, spares={"ctr": 1})
    there = a_member("ctr", 2, spares=1, capacity=CAPACITY)
    assert decided(observed(there, signals=load, decisions=(done,), **WARM)) is None
    assert kept(decided(observed(there, signals=load, decisions=(done,), policy={"mode": "Auto"}))) == {}


def test_a_spare_that_the_pool_has_not_given_yet_is_no_new_decision() -> None:
    """It has been told; that its pod finds no place changes with every node and not with every look."""
    told = a_member(
        "ctr",
        2,
        capacity=CAPACITY,
        status={"allocation": {"replicas": 2, "spares": 1, "decision": "cpu-a-1", "epoch": 1}},
    )
    done = a_decision(outcome={"appliedAt": NOW.isoformat()}, spares={"ctr": 1})
    assert decided(observed(told, signals=signals(ctr=150.0), decisions=(done,), **WARM)) is None


def test_a_promotion_is_said_and_the_spare_is_had_again_where_there_is_room() -> None:
    ctr, batch = (
        a_member("ctr", 2, spares=1, capacity=CAPACITY),
        a_member("batch", 5, least=0, tier=Tier.OFFLINE),
    )
    body = decided(observed(ctr, batch, signals=signals(ctr=250.0), **WARM))
    assert targets(body) == {"ads/batch": 4, "ads/ctr": 3}
    assert kept(body) == {"ads/ctr": 1}
    assert body is not None
    [up] = [move for move in body["spec"]["moves"] if move["to"] > move["from"]]
    assert up["promoted"] == 1
    assert up["why"].endswith("; from a warm spare")
    assert AllocationDecision.parse(body).spec.moves[1].promoted == 1


def test_a_member_that_is_left_out_keeps_its_spare_and_is_no_reason_to_decide() -> None:
    out = a_member("ctr", 2, spares=1, capacity=CAPACITY, apart="its pods are in another pool")
    other = a_member("other", 1, most=1, capacity=CAPACITY)
    assert decided(observed(out, other, signals=signals(ctr=150.0, other=50.0), **WARM)) is None


def test_a_decision_has_the_value_that_was_measured_before_it() -> None:
    seen = evening()
    snapshot = build_allocation_view(seen).snapshot
    assignment = Solver(time.monotonic).solve(snapshot)
    values = {f"ads/m{number}": ValueRates(10.0 + number, 8.0, 1.5, 0.5 + number) for number in range(150)}
    expected = predict_outcome(snapshot, assignment)
    solved = SolvedAllocation(assignment, expected, DecisionTrigger.INTERVAL, 0.01, values=values)
    spec = AllocationDecision.parse(plan_decision(seen, solved) or {}).spec
    assert spec.value is not None
    assert (spec.value.offered, spec.value.served, spec.value.refused) == (12_675.0, 1_200.0, 225.0)
    assert len(spec.values) == 100
    assert (spec.values[0].inference, spec.values[0].lost) == ("ads/m149", 149.5)
    without = AllocationDecision.parse(decided(seen) or {}).spec
    assert (without.value, without.values) == (None, ())
