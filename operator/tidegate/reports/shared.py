"""Report what several reports share: conditions, active overrides, and what holds a pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Self

from tidegate.api.compute_override import ComputeOverride, OverrideAction, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode, TierUsage
from tidegate.api.conditions import ConditionStatus, ObservedCondition
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.shared_spares import SharedSpareStatus
from tidegate.planning.allocator.freeze import find_freeze
from tidegate.planning.pools.overrides import describe_override, select_active_for
from tidegate.planning.pools.placement import describe_slices


class ConditionReport(ApiModel):
    """One condition, as the object reports it."""

    type: str
    status: ConditionStatus
    reason: str
    message: str
    healthy: bool

    @classmethod
    def from_condition(cls, condition: ObservedCondition) -> Self:
        """Return the report of a condition."""
        return cls(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            healthy=condition.is_healthy,
        )

    def format_line(self) -> str:
        """Format the condition as a line of text."""
        return f"{self.type} is {self.status}, {self.reason}: {self.message}"


class OverrideReport(ApiModel):
    """One ComputeOverride."""

    name: str
    target_kind: OverrideKind
    target: str
    action: OverrideAction
    replicas: int | None
    reason: str
    author: str
    """Empty if the API server does not record it."""
    until: datetime
    message: str

    @classmethod
    def from_override(cls, override: ComputeOverride) -> Self:
        """Return the report of an override."""
        spec = override.spec
        return cls(
            name=override.metadata.name,
            target_kind=spec.target.kind,
            target=str(spec.target.key),
            action=spec.action,
            replicas=spec.replica_count,
            reason=spec.reason,
            author=override.author,
            until=override.end_time,
            message=describe_override(override),
        )


class HoldSource(StrEnum):
    """Something that can hold a pool or an Inference."""

    OVERRIDE = "ComputeOverride"
    MODE = "policy.mode"
    FREEZE = "policy.freeze"


class HoldReport(ApiModel):
    """One thing that holds a pool or an Inference."""

    by: HoldSource
    name: str | None
    """The name of the ComputeOverride."""
    until: datetime | None
    """Absent if the hold has no end."""
    message: str


def format_tier_slices(tiers: Iterable[TierUsage]) -> tuple[str, ...]:
    """Return the cells of the slices that each tier has, in the order of the tiers."""
    used = {tier.name: tier.slices for tier in tiers}
    return tuple(str(used.get(tier, 0)) for tier in Tier)


def describe_spare(spare: SharedSpareStatus) -> str:
    """Return a shared spare in one line: where it is, what it serves, and why."""
    models = ", ".join(
        f"{model.inference} {f'version {model.version}' if model.version else '(not loaded)'}"
        for model in spare.models
    )
    problem = f"; {spare.problem}" if spare.problem else ""
    return f"{spare.namespace}/{spare.name}, {describe_slices(spare.slices)} on node {spare.node}, has {models}: {spare.reason}{problem}"


def describe_cover(inference: Inference, pool: ComputePool | None) -> tuple[str, ...]:
    """Return the spares of a pool that serve for an Inference, one line each, or why none does; empty if it asks for none."""
    shared = pool.status.shared_spares if pool is not None else None
    if shared is None:
        return ()
    lines = [
        describe_spare(spare)
        for spare in shared.spares
        if spare.namespace == inference.key.namespace
        and any(model.inference == inference.key.name for model in spare.models)
    ]
    lines += [f"none: {item.reason}" for item in shared.uncovered if item.inference == str(inference.key)]
    return tuple(lines)


def describe_pool_spares(pool: ComputePool) -> tuple[str, ...]:
    """Return the spares that the Inferences of a pool share, one line each, and those that none serves for."""
    shared = pool.status.shared_spares
    if shared is None:
        return ()
    return (
        *map(describe_spare, shared.spares),
        *(f"none for {item.inference}: {item.reason}" for item in shared.uncovered),
    )


def report_conditions(conditions: Iterable[ObservedCondition]) -> tuple[ConditionReport, ...]:
    """Return the reports of the conditions, in their order."""
    return tuple(ConditionReport.from_condition(condition) for condition in conditions)


def report_holds(overrides: Sequence[ComputeOverride]) -> tuple[HoldReport, ...]:
    """Return the overrides that hold their target."""
    return tuple(
        HoldReport(
            by=HoldSource.OVERRIDE,
            name=override.metadata.name,
            until=override.end_time,
            message=describe_override(override),
        )
        for override in overrides
        if override.spec.hold
    )


def report_pool_holds(
    pool: ComputePool, overrides: Iterable[ComputeOverride], now: datetime
) -> tuple[HoldReport, ...]:
    """Return everything that holds a pool, even if its mode lets nothing move anyway."""
    holds = list(report_holds(select_active_for(overrides, OverrideKind.COMPUTE_POOL, pool.key, now)))
    policy = pool.spec.policy
    if policy.mode is PolicyMode.HOLD:
        message = f"spec.policy.mode of ComputePool {pool.key} is Hold: set it to Auto to let go"
        holds.append(HoldReport(by=HoldSource.MODE, name=None, until=None, message=message))
    frozen = find_freeze(policy.freeze, now)
    if frozen is not None:
        message = f"ComputePool {pool.key}: {frozen.reason}"
        holds.append(HoldReport(by=HoldSource.FREEZE, name=None, until=frozen.until, message=message))
    return tuple(holds)
