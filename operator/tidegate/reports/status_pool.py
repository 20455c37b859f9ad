"""Report the status of one ComputePool: its slices, its holds, its newest decision, and the Inferences placed in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUse
from tidegate.api.conditions import timestamp
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.planning.decision import newest_first
from tidegate.reports.decision import DecisionReport
from tidegate.reports.standing import HoldReport, holds_of_pool
from tidegate.reports.state import ObjectReport, State
from tidegate.reports.status import Beside, StatusReport, field, parts, table

_PLACED: Final = 50


@dataclass(frozen=True, slots=True)
class InPool:
    """The objects that belong to a pool."""

    inferences: Sequence[Inference] = ()
    """The Inferences of all namespaces, whatever their pool."""
    decisions: Sequence[AllocationDecision] = ()
    """The decisions about the pool."""
    overrides: Sequence[ComputeOverride] = ()


class PlacedLine(ApiModel):
    """One Inference that is placed in the pool."""

    inference: str
    tier: Tier
    state: State
    decided: int
    ready: int
    slices: int
    """The desired slices of all replicas together."""


class PoolStatusReport(StatusReport):
    """One ComputePool."""

    kind: Literal["ComputePool"] = "ComputePool"
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUse, ...]
    policy_mode: PolicyMode
    mode: PolicyMode | None
    """The mode of the allocator's last tick."""
    held_by: tuple[HoldReport, ...]
    newest_decision: DecisionReport | None
    placed: tuple[PlacedLine, ...]
    """The worst first, at most fifty; `placedCount` counts all."""
    placed_count: int

    def summary(self, *, wide: bool) -> Iterator[str]:
        """Yield slices, mode and newest decision."""
        del wide
        slices = self.slices
        used = "".join(f", {tier.name} {tier.slices}" for tier in self.tiers)
        yield field(
            "slices",
            f"{slices.total} on {self.nodes} nodes, {slices.healthy} healthy, {slices.free} free{used}",
        )
        observed_mode = (
            "" if self.mode in {None, self.policy_mode} else f"; {self.mode} at the allocator's last look"
        )
        yield field("mode", f"{self.policy_mode}{observed_mode}")
        for hold in self.held_by:
            yield field("held", hold.said)
        newest = self.newest_decision
        if newest is not None:
            moves = f"{newest.move_count} moves, {newest.came_to()}"
            yield field("decided", f"{newest.name} at {timestamp(newest.at)}: {moves}")

    def related(self) -> Iterator[str]:
        """Yield the Inferences that are placed in the pool."""
        rows = [["INFERENCE", "TIER", "STATE", "READY", "SLICES"]]
        rows += [
            [
                line.inference,
                line.tier.value,
                line.state.value,
                f"{line.ready}/{line.decided}",
                str(line.slices),
            ]
            for line in self.placed
        ]
        yield from table("INFERENCES PLACED IN IT", rows)
        if self.placed_count > len(self.placed):
            yield f"and {self.placed_count - len(self.placed)} more"


def pool_status(one: ComputePool, within: InPool, beside: Beside) -> PoolStatusReport:
    """Report a pool from the objects that belong to it and what was read with it."""
    status, name = one.status, one.metadata.name
    placed = sorted(
        (_placed(inference) for inference in within.inferences if _pool_of(inference) == name),
        key=lambda line: (line.state.badness, line.inference),
    )
    return PoolStatusReport(
        **parts(one, beside),
        nodes=status.nodes,
        slices=status.slices,
        tiers=status.tiers,
        policy_mode=one.spec.policy.mode,
        mode=status.mode,
        held_by=holds_of_pool(one, within.overrides, beside.now),
        newest_decision=next(map(DecisionReport.of, newest_first(within.decisions)), None),
        placed=tuple(placed[:_PLACED]),
        placed_count=len(placed),
    )


def _pool_of(one: Inference) -> str | None:
    return one.spec.placement.pool if one.spec.placement is not None else None


def _placed(one: Inference) -> PlacedLine:
    slices_per_replica = one.spec.placement.slices if one.spec.placement is not None else 0
    return PlacedLine(
        inference=str(one.key),
        tier=one.spec.tier,
        state=ObjectReport.of(one).state,
        decided=one.decided_replicas,
        ready=one.status.ready_replicas,
        slices=slices_per_replica * (one.decided_replicas + one.decided_spares),
    )
