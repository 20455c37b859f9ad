"""Explain why an Inference or a ComputePool has what it has: the decision, holds, and unhealthy conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from tidegate.api.allocation_decision import AllocationDecision, DecidedMove
from tidegate.api.compilation import CompiledGraph
from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUsage
from tidegate.api.conditions import ConditionType, format_timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.planning.pools.overrides import select_active_for
from tidegate.reports.compiled_graph import describe_graph
from tidegate.reports.decision import DecisionReport, OutcomeState
from tidegate.reports.report import Report, format_name
from tidegate.reports.shared import (
    ConditionReport,
    HoldReport,
    OverrideReport,
    describe_cover,
    describe_pool_spares,
    report_conditions,
    report_pool_holds,
)


@dataclass(frozen=True, slots=True)
class ExplanationInputs:
    """The objects that explain an Inference or a pool, as read at one time."""

    pool: ComputePool | None
    decisions: Sequence[AllocationDecision]
    """The decisions about the pool, in any order."""
    overrides: Sequence[ComputeOverride]
    now: datetime


class DecisionSource(StrEnum):
    """What decided the number of replicas."""

    SPEC = "spec.replicas"
    ALLOCATOR = "Allocator"
    MINIMUM = "spec.scaling.minReplicas"
    """The allocator has decided nothing yet."""


class ReplicaReport(ApiModel):
    """Numbers of pods."""

    decided: int
    spares: int
    """The desired warm spares: loaded, without requests."""
    existing: int
    ready: int
    least: int | None
    """The range of spec.scaling; absent without it."""
    most: int | None


class InferenceReport(Report):
    """Why an Inference has its number of replicas, and what runs its requests there."""

    kind: Literal["Inference"] = "Inference"
    inference: str
    tier: Tier
    pool: str | None
    """The pool; of several, all of them."""
    pool_summary: str | None = None
    """The ready and planned replicas in each of several pools."""
    replicas: ReplicaReport
    decided_by: DecisionSource
    decision: str | None
    """The AllocationDecision that decided the number."""
    decided_at: datetime | None
    """Absent if that decision has been deleted."""
    move: DecidedMove | None
    """That decision's move of the Inference."""
    newest: DecisionReport | None
    """The pool's newest decision; `binding` lists the rules that limit it."""
    held_by: tuple[HoldReport, ...]
    """The holds of its pool."""
    overrides: tuple[OverrideReport, ...]
    """The active overrides of the Inference."""
    shared_spares: tuple[str, ...]
    """The spares that serve for replicas that are gone, with what they have, or why there is none; empty unless nodeLoss is Shared."""
    graph: CompiledGraph | None
    """What the compiler made of the version's graph; absent without spec.compile, and before it has ended."""
    conditions: tuple[ConditionReport, ...]
    outdated: bool
    """Whether the status describes an older spec."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report; `wide` adds healthy conditions, and graph passes that were left out."""
        location = f"ComputePool {self.pool}" if self.pool else "no ComputePool"
        if self.pool_summary is not None:
            location = f"ComputePools {self.pool_summary} (ready/planned)"
        yield f"Inference {self.inference}, tier {self.tier}, {location}"
        yield _format_line("has", self._describe_replicas())
        yield _format_line("decided", self._describe_decision())
        if self.move is not None:
            yield _format_line("changed", f"{self.move.before} -> {self.move.after}: {self.move.why}")
        for line in self.shared_spares:
            yield _format_line("spare", line)
        yield from self._newest_move()
        if self.newest is not None:
            yield from _decision_lines(self.newest)
        for override in self.overrides:
            yield _format_line("override", override.message)
        for hold in self.held_by:
            yield _format_line("held", hold.message)
        if self.graph is not None:
            for label, text in describe_graph(self.graph, wide=wide):
                yield _format_line(label, text)
        yield from _condition_lines(self.conditions, wide=wide, outdated=self.outdated)

    def object_names(self) -> Iterator[str]:
        """Yield the Inference."""
        yield format_name(Inference.KIND, self.inference.partition("/")[2])

    def _describe_replicas(self) -> str:
        replicas = self.replicas
        range_text = "" if replicas.least is None else f", of {replicas.least} to {replicas.most}"
        spares = f", {replicas.spares} of them to be warm spares" if replicas.spares else ""
        return f"{replicas.existing} replicas, {replicas.ready} ready{spares}{range_text}"

    def _describe_decision(self) -> str:
        if self.decided_by is not DecisionSource.ALLOCATOR:
            return f"{self.replicas.decided} replicas, by {self.decided_by}"
        when = (
            f"at {format_timestamp(self.decided_at)}"
            if self.decided_at is not None
            else "which is not kept any more"
        )
        return f"{self.replicas.decided} replicas, by AllocationDecision {self.decision} {when}"

    def _newest_move(self) -> Iterator[str]:
        """Yield the newest decision's move of the Inference, if another decision gave it what it has."""
        newest = self.newest
        move = newest.find_move(self.inference) if newest is not None else None
        if newest is None or move is None or newest.name == self.decision:
            return
        verb = "would move" if newest.outcome.state is OutcomeState.RECOMMENDED else "moves"
        yield _format_line(
            verb,
            f"{move.before} -> {move.after}: {move.why} (AllocationDecision {newest.name}, {newest.describe_outcome()})",
        )


class PoolReport(Report):
    """Why the slices of a ComputePool are assigned as they are."""

    kind: Literal["ComputePool"] = "ComputePool"
    pool: str
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUsage, ...]
    policy_mode: PolicyMode
    """The mode of spec.policy."""
    mode: PolicyMode | None
    """The mode of the allocator's last tick; Hold also if something else holds the pool."""
    held_by: tuple[HoldReport, ...]
    newest: DecisionReport | None
    shared_spares: tuple[str, ...]
    """The spares that Inferences share, one line each."""
    conditions: tuple[ConditionReport, ...]
    outdated: bool

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report; `wide` adds healthy conditions."""
        slices = self.slices
        yield f"ComputePool {self.pool}, {self.nodes} nodes"
        used = "".join(f", {tier.name} {tier.slices}" for tier in self.tiers)
        yield _format_line("slices", f"{slices.total}, {slices.healthy} healthy, {slices.free} free{used}")
        observed_mode = (
            "" if self.mode in {None, self.policy_mode} else f"; {self.mode} at the allocator's last look"
        )
        yield _format_line("mode", f"{self.policy_mode}{observed_mode}")
        for hold in self.held_by:
            yield _format_line("held", hold.message)
        for line in self.shared_spares:
            yield _format_line("spare", line)
        for condition in self.conditions:
            if condition.type == ConditionType.EVENTS_PLANNED and condition.healthy:
                yield _format_line("events", condition.message)
        if self.newest is None:
            yield _format_line("decided", "nothing yet")
        else:
            newest = self.newest
            yield _format_line(
                "decided",
                f"AllocationDecision {newest.name} at {format_timestamp(newest.at)}, {newest.describe_outcome()}",
            )
            for move in newest.moves:
                yield _format_line("moves", f"{move.inference} {move.before} -> {move.after}: {move.why}")
            yield from _decision_lines(newest)
        yield from _condition_lines(self.conditions, wide=wide, outdated=self.outdated)

    def object_names(self) -> Iterator[str]:
        """Yield the pool."""
        yield format_name(ComputePool.KIND, self.pool)


def explain_inference(inference: Inference, inputs: ExplanationInputs) -> InferenceReport:
    """Explain an Inference by its pool, that pool's decisions, and all overrides."""
    status, spec = inference.status, inference.spec
    decider = DecisionSource.SPEC
    if spec.scaling is not None:
        decider = DecisionSource.MINIMUM if status.allocation is None else DecisionSource.ALLOCATOR
    decision = (
        status.allocation.decision if status.allocation is not None and spec.scaling is not None else None
    )
    deciding = next(
        (candidate for candidate in inputs.decisions if candidate.metadata.name == decision), None
    )
    overrides = select_active_for(inputs.overrides, OverrideKind.INFERENCE, inference.key, inputs.now)
    return InferenceReport(
        inference=str(inference.key),
        tier=spec.tier,
        pool=spec.placement.pool_names if spec.placement is not None else None,
        pool_summary=status.pool_summary,
        replicas=ReplicaReport(
            decided=inference.decided_replicas,
            spares=inference.decided_spares,
            existing=status.replicas,
            ready=status.ready_replicas,
            least=spec.scaling.min_replicas if spec.scaling is not None else None,
            most=spec.scaling.max_replicas if spec.scaling is not None else None,
        ),
        decided_by=decider,
        decision=decision or None,
        decided_at=deciding.spec.at if deciding is not None else None,
        move=DecisionReport.from_decision(deciding).find_move(str(inference.key))
        if deciding is not None
        else None,
        newest=_newest_decision(inputs),
        held_by=report_pool_holds(inputs.pool, inputs.overrides, inputs.now)
        if inputs.pool is not None
        else (),
        overrides=tuple(OverrideReport.from_override(override) for override in overrides),
        shared_spares=describe_cover(inference, inputs.pool),
        graph=status.graph,
        conditions=report_conditions(status.conditions),
        outdated=status.observed_generation < inference.metadata.generation,
    )


def explain_pool(pool: ComputePool, inputs: ExplanationInputs) -> PoolReport:
    """Explain a pool by its decisions and all overrides."""
    status = pool.status
    return PoolReport(
        pool=pool.metadata.name,
        nodes=status.nodes,
        slices=status.slices,
        tiers=status.ordered_tiers,
        policy_mode=pool.spec.policy.mode,
        mode=status.mode,
        held_by=report_pool_holds(pool, inputs.overrides, inputs.now),
        newest=_newest_decision(inputs),
        shared_spares=describe_pool_spares(pool),
        conditions=report_conditions(status.conditions),
        outdated=status.observed_generation < pool.metadata.generation,
    )


def _newest_decision(inputs: ExplanationInputs) -> DecisionReport | None:
    return next(
        (DecisionReport.from_decision(decision) for decision in sort_newest_first(inputs.decisions)), None
    )


def _decision_lines(decision: DecisionReport) -> Iterator[str]:
    for binding in decision.binding:
        price = f", worth {binding.price:g} per second and unit" if binding.price else ""
        yield _format_line("binds", f"{binding.constraint}{price}")
    for rule in decision.not_kept:
        yield _format_line("not kept", f"{rule.rule} of {rule.subject}: {rule.message}")


def _condition_lines(conditions: Sequence[ConditionReport], *, wide: bool, outdated: bool) -> Iterator[str]:
    if outdated:
        yield _format_line(
            "outdated", "its status is of an older spec: the controllers have not observed the newest"
        )
    for condition in conditions:
        if not condition.healthy:
            yield _format_line("unhealthy", condition.format_line())
        elif wide:
            yield _format_line("healthy", condition.format_line())


def _format_line(label: str, text: str) -> str:
    return f"  {label:12}{text}"
