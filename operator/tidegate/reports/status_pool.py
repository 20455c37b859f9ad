"""Report the status of one ComputePool: its slices, its holds, its newest decision, and the Inferences placed in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUsage
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Inference, PoolShare, Tier
from tidegate.api.meta import ApiModel
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.reports.decision import DecisionReport
from tidegate.reports.shared import HoldReport, describe_pool_spares, report_pool_holds
from tidegate.reports.state import ObjectReport, ObjectState
from tidegate.reports.status import RelatedObjects, StatusReport, common_fields, format_field, render_table

_MAX_PLACED: Final = 50


@dataclass(frozen=True, slots=True)
class PoolObjects:
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
    state: ObjectState
    decided: int
    ready: int
    slices: int
    """The desired slices of all replicas together."""


class PoolStatusReport(StatusReport):
    """One ComputePool."""

    kind: Literal["ComputePool"] = "ComputePool"
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUsage, ...]
    policy_mode: PolicyMode
    mode: PolicyMode | None
    """The mode of the allocator's last tick."""
    held_by: tuple[HoldReport, ...]
    shared_spares: tuple[str, ...]
    """The spares that Inferences share, one line each."""
    newest_decision: DecisionReport | None
    placed: tuple[PlacedLine, ...]
    """The worst first, at most fifty; `placedCount` counts all."""
    placed_count: int

    def summary_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield slices, mode and newest decision."""
        del wide
        slices = self.slices
        used = "".join(f", {tier.name} {tier.slices}" for tier in self.tiers)
        yield format_field(
            "slices",
            f"{slices.total} on {self.nodes} nodes, {slices.healthy} healthy, {slices.free} free{used}",
        )
        observed_mode = (
            "" if self.mode in {None, self.policy_mode} else f"; {self.mode} at the allocator's last look"
        )
        yield format_field("mode", f"{self.policy_mode}{observed_mode}")
        for hold in self.held_by:
            yield format_field("held", hold.message)
        for line in self.shared_spares:
            yield format_field("spare", line)
        newest = self.newest_decision
        if newest is not None:
            moves = f"{newest.move_count} moves, {newest.describe_outcome()}"
            yield format_field("decided", f"{newest.name} at {format_timestamp(newest.at)}: {moves}")

    def related_lines(self) -> Iterator[str]:
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
        yield from render_table("INFERENCES PLACED IN IT", rows)
        if self.placed_count > len(self.placed):
            yield f"and {self.placed_count - len(self.placed)} more"


def report_pool(pool: ComputePool, contents: PoolObjects, related: RelatedObjects) -> PoolStatusReport:
    """Report a pool from the objects that belong to it and what was read with it."""
    status, name = pool.status, pool.metadata.name
    placed = sorted(
        (
            _report_placed(inference, share)
            for inference in contents.inferences
            if (share := _find_share(inference, name)) is not None
        ),
        key=lambda line: (line.state.rank, line.inference),
    )
    return PoolStatusReport(
        **common_fields(pool, related),
        nodes=status.nodes,
        slices=status.slices,
        tiers=status.ordered_tiers,
        policy_mode=pool.spec.policy.mode,
        mode=status.mode,
        held_by=report_pool_holds(pool, contents.overrides, related.now),
        shared_spares=describe_pool_spares(pool),
        newest_decision=next(map(DecisionReport.from_decision, sort_newest_first(contents.decisions)), None),
        placed=tuple(placed[:_MAX_PLACED]),
        placed_count=len(placed),
    )


def _find_share(inference: Inference, pool: str) -> PoolShare | None:
    return inference.spec.placement.find_share(pool) if inference.spec.placement is not None else None


def _report_placed(inference: Inference, share: PoolShare) -> PlacedLine:
    pods = inference.count_pool_replicas(share)
    return PlacedLine(
        inference=str(inference.key),
        tier=inference.spec.tier,
        state=ObjectReport.from_object(inference).state,
        decided=pods.replicas - inference.decided_spares,
        ready=pods.ready_replicas,
        slices=share.slices * pods.replicas,
    )
