"""A decision on its way: those who give go first, and at no moment is more given than there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.allocator import NOW, a_decision, a_member, observed
from stages.examples import examples
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.inference import Tier
from tidegate.planning.allocator.decision_steps import (
    READY_TIMEOUT,
    DecisionStep,
    TargetReplicas,
    make_failed_outcome,
    plan_next_step,
    revert_targets,
)
from tidegate.planning.allocator.observed_pool import AllocationObserved

AUTO = {"mode": "Auto"}
EXCHANGE = (("batch", 6, 2), ("ctr", 2, 6))


def written(progress: DecisionStep) -> dict[str, int]:
    return {key.name: share.replicas for key, share in progress.writes.items()}


def at(
    ctr: dict[str, Any], batch: dict[str, Any], decision: AllocationDecision, **more: Any
) -> AllocationObserved:
    members = a_member("ctr", **ctr), a_member("batch", least=0, tier=Tier.OFFLINE, **batch)
    return observed(*members, policy=AUTO, decisions=(decision,), **more)


def has(replicas: int, decision: str = "cpu-a-1", spares: int = 0) -> dict[str, Any]:
    return {"allocation": {"replicas": replicas, "spares": spares, "decision": decision, "epoch": 1}}


def test_who_gives_goes_down_at_once_and_who_takes_waits_for_its_slices() -> None:
    decision = a_decision(*EXCHANGE)
    seen = at({"held": 2}, {"held": 6}, decision)
    assert written(plan_next_step(seen, decision)) == {"batch": 2, "ctr": 2}

    draining = at({"held": 2, "status": has(2)}, {"held": 2, "pods": 5, "status": has(2)}, decision)
    assert written(plan_next_step(draining, decision)) == {"ctr": 3}
    gone = at({"held": 3, "status": has(3)}, {"held": 2, "status": has(2)}, decision)
    assert written(plan_next_step(gone, decision)) == {"ctr": 6}


def test_it_is_done_when_pods_answer_and_others_are_gone() -> None:
    decision = a_decision(*EXCHANGE)
    statuses = {"status": has(6)}, {"status": has(2)}
    loading = at({"held": 6, "ready": 5, **statuses[0]}, {"held": 2, **statuses[1]}, decision)
    assert plan_next_step(loading, decision) == DecisionStep(
        {}, None, plan_next_step(loading, decision).reclaimed
    )

    later = NOW + timedelta(seconds=40)
    done = at({"held": 6, **statuses[0]}, {"held": 2, **statuses[1]}, decision, now=later)
    progress = plan_next_step(done, decision)
    outcome = {"appliedAt": "2026-01-01T12:00:40Z", "movedSlices": 8, "reclaimSeconds": 40.0}
    assert progress.outcome == {"outcome": outcome}


def test_slices_are_free_when_they_are_and_not_when_their_next_pods_answer() -> None:
    decision = a_decision(*EXCHANGE)
    statuses = {"status": has(6)}, {"status": has(2)}
    freed = at(
        {"held": 6, "ready": 2, **statuses[0]},
        {"held": 2, **statuses[1]},
        decision,
        now=NOW + timedelta(seconds=7),
    )
    reclaimed = plan_next_step(freed, decision).reclaimed
    assert [item.seconds for item in reclaimed.values()] == [7.0]

    done = at(
        {"held": 6, **statuses[0]}, {"held": 2, **statuses[1]}, decision, now=NOW + timedelta(seconds=40)
    )
    step = plan_next_step(done, decision, reclaimed)
    assert step.reclaimed == reclaimed
    assert step.outcome is not None
    assert (step.outcome["outcome"]["reclaimSeconds"], step.outcome["outcome"]["appliedAt"]) == (
        7.0,
        "2026-01-01T12:00:40Z",
    )


def test_what_an_earlier_decision_could_not_give_is_taken_back() -> None:
    decision = a_decision(name="cpu-a-2")
    seen = at({"held": 2, "status": has(6, "cpu-a-1")}, {"held": 2, "status": has(2)}, decision)
    assert written(plan_next_step(seen, decision)) == {"ctr": 2}
    after = at({"held": 2, "status": has(2, "cpu-a-2")}, {"held": 2, "status": has(2)}, decision)
    assert plan_next_step(after, decision).outcome is not None


def test_a_missing_deployment_is_waited_for() -> None:
    decision = a_decision(*EXCHANGE)
    seen = at(
        {"held": 0, "apart": "its Deployment is not there", "status": has(2)},
        {"held": 2, "status": has(2)},
        decision,
    )
    progress = plan_next_step(seen, decision)
    assert (progress.writes, progress.outcome) == ({}, None)


def test_nobody_waits_for_a_missing_deployment_that_is_to_change_nothing() -> None:
    decision = a_decision(("ctr", 1, 2))
    there = a_member("ctr", 2, status={"allocation": {"replicas": 2, "decision": "cpu-a-1", "epoch": 1}})
    other = a_member("other", 0, apart="its Deployment is not there")
    progress = plan_next_step(observed(there, other, decisions=(decision,)), decision)
    assert progress.outcome is not None


def test_one_that_is_given_up_is_finished() -> None:
    decision = a_decision(*EXCHANGE)
    half = at({"held": 3}, {"held": 2, "pods": 5}, decision)
    outcome = make_failed_outcome(half, decision, "decided anew")["outcome"]
    assert outcome == {"error": "decided anew", "movedSlices": 5}
    assert a_decision(outcome=outcome).is_finished
    assert not a_decision().is_finished


def test_pods_that_never_answer_hold_a_decision_up_for_a_while_only() -> None:
    """Its slices are given all the same: whoever wants to know why looks at the Inference."""
    decision = a_decision(*EXCHANGE)

    def outcome(after: timedelta, ready: int, draining: int = 0) -> Any:
        seen = at(
            {"held": 6, "ready": ready, "status": has(6)},
            {"held": 2, "pods": 2 + draining, "status": has(2)},
            decision,
            now=NOW + after,
        )
        return plan_next_step(seen, decision).outcome

    assert outcome(READY_TIMEOUT, 5) is None
    late = READY_TIMEOUT + timedelta(seconds=1)
    assert outcome(late, 5) == {
        "outcome": {
            "movedSlices": 8,
            "error": "ads/ctr has its 6 replicas, and after 15 minutes 5 of them answer: its conditions say why",
        }
    }
    assert "appliedAt" in outcome(late, 6)["outcome"]
    # What still drains is waited for: its slices are nobody else's until then.
    assert outcome(late, 5, draining=1) is None


def test_where_nothing_is_carried_out_any_more_nobody_waits_for_slices() -> None:
    decision = a_decision(*EXCHANGE)
    seen = at({"held": 3, "status": has(6)}, {"held": 2, "status": has(2)}, decision)
    assert revert_targets(seen) == {seen.members[0].key: TargetReplicas(3)}


def shares(progress: DecisionStep) -> dict[str, tuple[int, int]]:
    return {key.name: (share.replicas, share.spares) for key, share in progress.writes.items()}


def test_a_promotion_takes_the_spare_and_starts_nothing() -> None:
    decision = a_decision(("ctr", 2, 3))
    seen = observed(a_member("ctr", 2, spares=1), slices=(3,), policy=AUTO, decisions=(decision,))
    assert shares(plan_next_step(seen, decision)) == {"ctr": (3, 0)}

    # The pods are the same, so that it is done as soon as that is written.
    told = {"status": has(3)}
    done = observed(a_member("ctr", 2, spares=1, **told), slices=(3,), policy=AUTO, decisions=(decision,))
    progress = plan_next_step(done, decision)
    assert progress.outcome is not None
    assert progress.reclaimed == {}


def test_what_serves_becomes_a_spare_and_gives_no_slice() -> None:
    decision = a_decision(("ctr", 3, 2), spares={"ctr": 1})
    seen = observed(a_member("ctr", 3), policy=AUTO, decisions=(decision,))
    assert shares(plan_next_step(seen, decision)) == {"ctr": (2, 1)}
    after = observed(a_member("ctr", 2, spares=1, status={}), policy=AUTO, decisions=(decision,))
    assert plan_next_step(after, decision).reclaimed == {}


def test_spares_get_what_is_free_when_everybody_else_has_what_they_need() -> None:
    decision = a_decision(("batch", 6, 2), ("ctr", 2, 5), spares={"ctr": 1})
    some = at({"held": 2, "status": has(2)}, {"held": 2, "pods": 5, "status": has(2)}, decision)
    assert shares(plan_next_step(some, decision)) == {"ctr": (3, 0)}
    enough = at({"held": 3, "status": has(3)}, {"held": 2, "status": has(2)}, decision)
    assert shares(plan_next_step(enough, decision)) == {"ctr": (5, 1)}
    waits = at({"held": 5, "status": has(5)}, {"held": 2, "pods": 3, "status": has(2)}, decision)
    assert plan_next_step(waits, decision) == DecisionStep()  # what the batch leaves is not gone yet


def test_a_spare_that_waits_for_room_holds_the_decision_up_and_is_taken_back_with_it() -> None:
    decision = a_decision(spares={"ctr": 1})
    full = at({"held": 2, "status": has(2)}, {"held": 6, "status": has(6)}, decision)
    assert plan_next_step(full, decision) == DecisionStep()
    told = {"allocation": {"replicas": 2, "spares": 1, "decision": "cpu-a-1", "epoch": 1}}
    waits = at({"held": 2, "status": told}, {"held": 6, "status": has(6)}, decision)
    assert {key.name: share for key, share in revert_targets(waits).items()} == {"ctr": TargetReplicas(2)}


def test_whose_spare_is_somebody_elses_now_loses_it_before_that_one_starts() -> None:
    decision = a_decision(spares={"new": 1})
    old, new = a_member("old", 2, spares=1), a_member("new", 2)
    seen = observed(old, new, slices=(5,), policy=AUTO, decisions=(decision,))
    assert shares(plan_next_step(seen, decision)) == {"old": (2, 0)}
    gone = observed(a_member("old", 2, status=has(2)), new, slices=(5,), policy=AUTO, decisions=(decision,))
    assert shares(plan_next_step(gone, decision)) == {"new": (2, 1)}


@dataclass
class World:
    """A pool on which a decision is carried out, by parts that each act when they like."""

    room: int
    slices: dict[str, int]
    held: dict[str, int]
    decided: dict[str, TargetReplicas]
    decision: AllocationDecision
    draining: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    named: dict[str, bool] = field(default_factory=dict)

    def observed(self) -> AllocationObserved:
        members = []
        for name, held in self.held.items():
            by = "cpu-a-1" if self.named.get(name) else "an-earlier-one"
            status = has(self.decided[name].replicas, by, self.decided[name].spares)
            pods = held + self.draining.get(name, 0)
            ready = self.ready.get(name, 0)
            members.append(
                a_member(
                    name,
                    held,
                    pods=pods,
                    ready=ready,
                    slices=self.slices[name],
                    least=1,
                    most=99,
                    status=status,
                )
            )
        return observed(*members, slices=(self.room,), policy=AUTO, decisions=(self.decision,))

    def tick(self) -> DecisionStep:
        progress = plan_next_step(self.observed(), self.decision)
        for key, share in progress.writes.items():
            self.decided[key.name], self.named[key.name] = share, True
        return progress

    def reconcile(self, name: str) -> None:
        wanted = self.decided[name].replicas + self.decided[name].spares
        fewer = self.held[name] - wanted
        self.held[name] = wanted
        if fewer > 0:
            self.draining[name] = self.draining.get(name, 0) + fewer
            self.ready[name] = min(self.ready.get(name, 0), self.held[name])

    def act(self, name: str) -> None:
        """A pod is gone, and one turns ready."""
        self.draining[name] = max(self.draining.get(name, 0) - 1, 0)
        self.ready[name] = min(self.ready.get(name, 0) + 1, self.held[name])

    def serving(self, name: str) -> int:
        """Pods that get requests, those that still load included."""
        told = self.decided[name]
        return self.held[name] - min(told.spares, max(self.held[name] - told.replicas, 0))

    def taken(self) -> int:
        return sum(
            (held + self.draining.get(name, 0)) * self.slices[name] for name, held in self.held.items()
        )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    room = draw(st.integers(6, 24))
    names = ["a", "b", "c", "d"][: draw(st.integers(2, 4))]
    slices = {name: draw(st.integers(1, 2)) for name in names}

    def shares() -> dict[str, int]:
        left, found = room - sum(slices.values()), {}
        for name in names:
            more = draw(st.integers(0, max(left, 0) // slices[name]))
            left -= more * slices[name]
            found[name] = 1 + more
        return found

    if sum(slices.values()) > room:
        room = sum(slices.values())
    before, after = shares(), shares()
    kept: list[dict[str, int]] = []
    for shared in (before, after):
        # Some of the replicas that fit are spares.
        spares = {name: draw(st.integers(0, count - 1)) for name, count in shared.items()}
        for name, count in spares.items():
            shared[name] -= count
        kept.append(spares)
    moves = [(name, before[name], after[name]) for name in names if before[name] != after[name]]
    moves.sort(key=lambda move: move[2] > move[1])
    spec = [
        {"inference": f"ads/{name}", "tier": "realtime", "from": was, "to": now, "slices": slices[name]}
        for name, was, now in moves
    ]
    spared = {name: count for name, count in kept[1].items() if count}
    more: dict[str, Any] = {"spares": spared, "moves": spec}
    told = {name: TargetReplicas(before[name], kept[0][name]) for name in names}
    held = {name: before[name] + kept[0][name] for name in names}
    return World(room, slices, held, told, a_decision(**more), ready=dict(held))


# No deadline: a busy machine is no finding.
@settings(deadline=None, max_examples=examples(60))
@given(world=worlds(), acts=st.lists(st.tuples(st.sampled_from("trp"), st.integers(0, 3)), max_size=60))
def test_whatever_acts_when_no_slice_is_given_twice_and_nobody_loses_what_it_keeps(
    world: World, acts: list[tuple[str, int]]
) -> None:
    names = list(world.held)
    before = {name: world.serving(name) for name in names}
    after = {**before, **{m.inference.partition("/")[2]: m.after for m in world.decision.spec.moves}}
    spares = {each.inference.partition("/")[2]: each.replicas for each in world.decision.spec.spares}
    least = {name: min(before[name], after[name]) for name in names}
    # In any order first, then in turn until it is done; a crash is a tick that did not happen.
    for what, number in [*acts, *[(what, n) for _ in range(40) for what in "trp" for n in range(len(names))]]:
        name = names[number % len(names)]
        {"t": world.tick, "r": lambda n=name: world.reconcile(n), "p": lambda n=name: world.act(n)}[what]()
        assert world.taken() <= world.room
        for each in names:
            assert world.serving(each) >= least[each]
    assert {name: world.serving(name) for name in names} == after
    assert world.held == {name: count + spares.get(name, 0) for name, count in after.items()}
    assert world.tick().outcome is not None
