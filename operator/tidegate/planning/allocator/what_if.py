"""Ask the allocator with other demand, floors or capacity: change a copy of its snapshot, and report the answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    ModelInput,
    PoolInput,
    ReplicaBounds,
    TierRule,
)
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.allocation_decision import AllocationDecisionSpec, PredictedOutcome
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.what_if import InferenceChange, TierChange, WhatIf
from tidegate.planning.allocator.decision import SolvedAllocation, make_decision_spec
from tidegate.planning.allocator.predictions import predict_outcome

_NAMED = 5
_BY = "the question"


def apply_changes(snapshot: AllocationSnapshot, question: WhatIf) -> AllocationSnapshot:
    """Return the snapshot of one pool with the changes of a question.

    Raises InvalidInputError that names what does not exist or is impossible.
    """
    changes = {change.inference: change for change in question.inferences}
    names = {inference.key for inference in snapshot.inferences}
    for name in changes:
        if name not in names:
            raise InvalidInputError(
                "inferences", f"the allocator decides about no {name}; {_list_names(names)}"
            )
    return replace(
        snapshot,
        pools=tuple(_change_pool(pool, question) for pool in snapshot.pools),
        inferences=tuple(
            _change_inference(inference, question.factor, changes.get(inference.key), len(snapshot.steps))
            for inference in snapshot.inferences
        ),
    )


def _change_pool(pool: PoolInput, question: WhatIf) -> PoolInput:
    rules = {rule.tier: rule for rule in pool.tiers}
    for change in question.tiers:
        rules[change.tier] = _change_rule(rules.get(change.tier, TierRule(change.tier)), change)
    if question.without_budget:
        pool = replace(pool, budget=None, hold=False)
    slices = pool.slices if question.slices is None else question.slices
    return replace(pool, slices=slices, tiers=tuple(rules.values()))


def _change_rule(rule: TierRule, change: TierChange) -> TierRule:
    floor = rule.floor if change.floor is None else change.floor
    ceiling = rule.ceiling if change.ceiling is None else change.ceiling
    return TierRule(rule.tier, floor, ceiling)


def _change_inference(
    inference: ModelInput, factor: float, change: InferenceChange | None, steps: int
) -> ModelInput:
    load = _change_load(inference.load, factor, change, steps)
    if change is None:
        return replace(inference, load=load)
    if change.value is not None and load is not None:
        load = replace(load, classes=())
    return replace(
        inference, load=load, bounds=_change_bounds(inference, change), value=change.value or inference.value
    )


def _change_load(
    load: DemandInput | None, factor: float, change: InferenceChange | None, steps: int
) -> DemandInput | None:
    if change is not None and change.demand is not None:
        rates = (change.demand,) * steps
        return DemandInput(rates) if load is None else replace(load, rates=rates, expectation="")
    if load is None:
        return None
    times = factor if change is None or change.factor is None else change.factor
    expectation = load.expectation if times == 1 else ""
    return replace(load, rates=tuple(rate * times for rate in load.rates), expectation=expectation)


def _change_bounds(inference: ModelInput, change: InferenceChange) -> ReplicaBounds:
    bounds = inference.bounds
    if change.min_replicas is not None:
        bounds = replace(bounds, floor=change.min_replicas, floor_source=_BY)
        if bounds.ceiling is not None and bounds.ceiling < bounds.floor and change.max_replicas is None:
            path = f"inferences: {inference.key}: minReplicas"
            raise InvalidInputError(
                path, f"{bounds.floor} is above {bounds.ceiling}, {bounds.ceiling_source}"
            )
    if change.max_replicas is not None:
        bounds = replace(bounds, ceiling=change.max_replicas, ceiling_source=_BY)
        if bounds.floor > change.max_replicas:
            bounds = replace(bounds, floor=change.max_replicas, floor_source=_BY)
    return bounds


def _list_names(names: Collection[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"there are {', '.join(listed[:_NAMED])}{rest}" if listed else "it decides about nothing there"


@dataclass(frozen=True, slots=True)
class InferenceOutcome:
    """One Inference of the question: its demand, what it has, and what it would have."""

    inference: ModelInput
    replicas_before: int
    """Replicas."""
    replicas_after: int

    @property
    def demand(self) -> float | None:
        """Return the requests per second (offline: slices) of the first step; None if unknown."""
        return None if self.inference.load is None else self.inference.load.rates[0]

    def compute_rate(self, replicas: int) -> float:
        """Return the requests per second that this many replicas (offline: slices) answer within the SLO."""
        return self.inference.placements[0].curve.rate_at(replicas)

    @property
    def needed_slices(self) -> int | None:
        """Return the slices that would serve its demand; None if that is unknown, or if no number of them would."""
        if self.demand is None:
            return None
        placement = self.inference.placements[0]
        replicas = placement.curve.replicas_for(self.demand)
        return None if replicas is None else replicas * placement.slices


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The decision that would be made, and what the present replicas serve meanwhile."""

    decision: AllocationDecisionSpec
    now: PredictedOutcome
    outcomes: tuple[InferenceOutcome, ...]
    pool: PoolInput


def build_answer(
    snapshot: AllocationSnapshot,
    assignment: Assignment,
    *,
    pool: str,
    time: datetime,
    mode: PolicyMode,
    seconds: float,
) -> WhatIfAnswer:
    """Build the answer from the changed snapshot and its assignment, solved in this many seconds."""
    solved = SolvedAllocation(
        assignment,
        predict_outcome(snapshot, assignment),
        None,
        seconds,
        choose_warm_spares(snapshot, assignment),
    )
    spec = AllocationDecisionSpec.model_validate(make_decision_spec(pool, time, mode, solved))
    unchanged = replace(assignment, replicas=())
    after = {assigned.inference: assigned.replicas for assigned in assignment.replicas}
    outcomes = tuple(
        InferenceOutcome(
            inference, inference.current_replicas, after.get(inference.key, inference.current_replicas)
        )
        for inference in snapshot.inferences
    )
    return WhatIfAnswer(spec, predict_outcome(snapshot, unchanged), outcomes, snapshot.pools[0])
