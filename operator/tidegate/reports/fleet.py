"""Report the fleet on one screen: healthy and unhealthy objects, and what steers compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride, OverrideAction
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUsage
from tidegate.api.conditions import format_timestamp
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.planning.allocator.decision import sort_newest_first
from tidegate.planning.pools.overrides import select_active
from tidegate.reports.decision import DecisionReport
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.reports.shared import HoldReport, OverrideReport, format_tier_slices, report_pool_holds
from tidegate.reports.state import ObjectReport, ObjectState, StatefulObject, sort_worst_first

MAX_ATTENTION: Final = 20
"""The most unhealthy objects that are listed; the others are counted."""
_MAX_LINES: Final = 10
_MAX_MESSAGE: Final = 160


@dataclass(frozen=True, slots=True)
class FleetObjects:
    """The objects of a cluster; `skipped` lists the kinds that could not be read."""

    inferences: Sequence[Inference] = ()
    accesses: Sequence[ModelAccess] = ()
    features: Sequence[FeatureCompute] = ()
    pools: Sequence[ComputePool] = ()
    overrides: Sequence[ComputeOverride] = ()
    decisions: Sequence[AllocationDecision] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The versions of the control plane, by Deployment."""
    skipped: Sequence[str] = ()
    """What could not be read, and why."""

    def objects_by_kind(self) -> Iterator[tuple[str, Sequence[StatefulObject]]]:
        """Yield each kind that has a state, with its objects."""
        yield Inference.KIND, self.inferences
        yield ModelAccess.KIND, self.accesses
        yield FeatureCompute.KIND, self.features
        yield ComputePool.KIND, self.pools


class KindCount(ApiModel):
    """How many objects of a kind there are, and how they are."""

    kind: str
    total: int
    healthy: int
    progressing: int
    """Objects that start or stop; counted in neither of the other two."""
    unhealthy: int


class PoolLine(ApiModel):
    """One pool's slices, and who has them."""

    pool: str
    mode: PolicyMode
    """The mode of the allocator's last tick, or that of spec.policy before the first."""
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUsage, ...]
    state: ObjectState


class FleetReport(Report):
    """All objects of a namespace, or of all namespaces."""

    namespace: str | None
    """Absent means all."""
    kinds: tuple[KindCount, ...]
    attention: tuple[ObjectReport, ...]
    """The unhealthy objects, the worst first; the list is bounded, and `attentionMore` counts the others."""
    attention_more: int
    pools: tuple[PoolLine, ...]
    newest_decision: DecisionReport | None
    held_by: tuple[HoldReport, ...]
    """The holds of whole pools."""
    overrides: tuple[OverrideReport, ...]
    """The active overrides, without those in heldBy."""
    version: str
    """The version of the command line."""
    control_plane: Mapping[str, str]
    """The version of each of its Deployments; empty if the user may not read them."""
    skipped: tuple[str, ...]
    """What could not be checked or read, and why."""

    @property
    def healthy(self) -> bool:
        """Return whether every object is healthy."""
        return all(count.healthy == count.total for count in self.kinds)

    @property
    def settled(self) -> bool:
        """Return whether every object is healthy, and no release is under way."""
        return self.healthy

    @property
    def stalled(self) -> bool:
        """Return whether waiting alone changes nothing: an object is stalled."""
        return any(report.state is ObjectState.STALLED for report in self.attention)

    def headline(self) -> str:
        """Summarise the state in one line."""
        present = [count for count in self.kinds if count.total]
        counts = ", ".join(f"{count.healthy}/{count.total} {count.kind}" for count in present)
        worst = next((f"; {report.kind} {report.name} {report.state}" for report in self.attention), "")
        return f"healthy: {counts or 'no objects'}{worst}"

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report; `wide` adds whole messages and the binding rules of every decision."""
        yield self._version_line()
        yield ""
        yield from align_columns(
            [["KIND", "TOTAL", "OK", "PROGRESSING", "NOT OK"], *map(_render_count, self.kinds)]
        )
        if self.attention:
            yield ""
            yield from align_columns(
                [
                    ["STATE", "KIND", "NAME", "WHY"],
                    *(_render_object(report, wide=wide) for report in self.attention),
                ]
            )
            if self.attention_more:
                yield f"and {self.attention_more} more: tidegate get … --sort state lists them all"
        if self.pools:
            yield ""
            head = ["POOL", "MODE", "NODES", "SLICES", "HEALTHY", "FREE", *(tier.upper() for tier in Tier)]
            yield from align_columns([head, *(_render_pool(pool) for pool in self.pools[:MAX_ATTENTION])])
            if len(self.pools) > MAX_ATTENTION:
                yield f"and {len(self.pools) - MAX_ATTENTION} more: tidegate get computepools lists them all"
        yield ""
        yield from self._decision_lines(wide=wide)
        for hold in self.held_by[:_MAX_LINES]:
            yield f"held       {hold.message}"
        for override in self.overrides[:_MAX_LINES]:
            yield f"override   {override.message} ({override.target_kind} {override.target})"
        omitted = max(len(self.held_by) - _MAX_LINES, 0) + max(len(self.overrides) - _MAX_LINES, 0)
        if omitted:
            yield f"and {omitted} more: tidegate get overrides lists them all"
        for reason in self.skipped:
            yield f"left out   {reason}"

    def object_names(self) -> Iterator[str]:
        """Yield the objects that need attention."""
        return (format_name(report.kind, report.name.rpartition("/")[2]) for report in self.attention)

    def _version_line(self) -> str:
        running = sorted(set(self.control_plane.values()))
        versions = ", ".join(running) if running else "not seen"
        scope = f"namespace {self.namespace}" if self.namespace is not None else "all namespaces"
        return f"tidegate {self.version}, control plane {versions}; {scope}"

    def _decision_lines(self, *, wide: bool) -> Iterator[str]:
        newest = self.newest_decision
        if newest is None:
            yield "decided    nothing yet"
            return
        yield f"decided    {newest.name} at {format_timestamp(newest.at)}: {newest.move_count} moves, {newest.describe_outcome()}"
        for binding in newest.binding if wide else ():
            yield f"binds      {binding.constraint}"


def report_fleet(
    fleet_objects: FleetObjects, now: datetime, version: str, namespace: str | None
) -> FleetReport:
    """Report the objects. `namespace` is the namespace that was read; None for all."""
    kinds: list[KindCount] = []
    attention: list[ObjectReport] = []
    states: dict[str, ObjectState] = {}
    for kind, objects in fleet_objects.objects_by_kind():
        reports = [ObjectReport.from_object(resource) for resource in objects]
        kinds.append(_count_states(kind, reports))
        attention += (report for report in reports if not report.state.healthy)
        if kind == ComputePool.KIND:
            states = {report.name: report.state for report in reports}
    worst = sort_worst_first(attention)
    holds = tuple(
        hold for pool in fleet_objects.pools for hold in report_pool_holds(pool, fleet_objects.overrides, now)
    )
    holding = {hold.name for hold in holds}
    active = (
        OverrideReport.from_override(override) for override in select_active(fleet_objects.overrides, now)
    )
    listed = (
        override
        for override in active
        if override.action is not OverrideAction.HOLD or override.name not in holding
    )
    return FleetReport(
        namespace=namespace,
        kinds=tuple(kinds),
        attention=worst[:MAX_ATTENTION],
        attention_more=max(len(worst) - MAX_ATTENTION, 0),
        pools=tuple(_report_pool(pool, states[pool.metadata.name]) for pool in fleet_objects.pools),
        newest_decision=next(
            (
                DecisionReport.from_decision(decision)
                for decision in sort_newest_first(fleet_objects.decisions)
            ),
            None,
        ),
        held_by=holds,
        overrides=tuple(override for override in listed if _is_in_namespace(override, namespace)),
        version=version,
        control_plane=dict(fleet_objects.versions),
        skipped=tuple(fleet_objects.skipped),
    )


def _is_in_namespace(override: OverrideReport, namespace: str | None) -> bool:
    """Return whether the override's target is in the namespace; pools are in all."""
    place, slash, _ = override.target.partition("/")
    return namespace is None or not slash or place == namespace


def _count_states(kind: str, reports: Iterable[ObjectReport]) -> KindCount:
    states = [report.state for report in reports]
    healthy = sum(state.healthy for state in states)
    progressing = sum(state in {ObjectState.PROGRESSING, ObjectState.DELETING} for state in states)
    return KindCount(
        kind=kind,
        total=len(states),
        healthy=healthy,
        progressing=progressing,
        unhealthy=len(states) - healthy - progressing,
    )


def _report_pool(pool: ComputePool, state: ObjectState) -> PoolLine:
    status = pool.status
    return PoolLine(
        pool=pool.metadata.name,
        mode=pool.effective_mode,
        nodes=status.nodes,
        slices=status.slices,
        tiers=status.ordered_tiers,
        state=state,
    )


def _render_count(count: KindCount) -> list[str]:
    numbers = (count.total, count.healthy, count.progressing, count.unhealthy)
    return [count.kind, *map(str, numbers)]


def _render_object(report: ObjectReport, *, wide: bool) -> list[str]:
    text = report.explain_state()
    short = text if wide or len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 1]}…"
    return [report.state.value, report.kind, report.name, " ".join(short.split())]


def _render_pool(pool: PoolLine) -> list[str]:
    counts = (pool.nodes, pool.slices.total, pool.slices.healthy, pool.slices.free)
    return [pool.pool, pool.mode.value, *map(str, counts), *format_tier_slices(pool.tiers)]
