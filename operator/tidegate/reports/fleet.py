"""Report the fleet on one screen: healthy and unhealthy objects, and what steers compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUse
from tidegate.api.conditions import timestamp
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel
from tidegate.api.model_access import ModelAccess
from tidegate.planning.decision import newest_first
from tidegate.planning.overrides import in_force
from tidegate.reports.decision import DecisionReport
from tidegate.reports.report import Report, columns, named
from tidegate.reports.standing import HoldReport, OverrideAction, OverrideReport, holds_of_pool
from tidegate.reports.state import ObjectReport, Served, State, worst_first

SHOWN: Final = 20
"""The most unhealthy objects that are listed; the others are counted."""
_MOST_OF_EACH: Final = 10
_LONGEST_MESSAGE: Final = 160


@dataclass(frozen=True, slots=True)
class Fleet:
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

    def served(self) -> Iterator[tuple[str, Sequence[Served]]]:
        """Yield each kind that has a state, with its objects."""
        yield Inference.KIND, self.inferences
        yield ModelAccess.KIND, self.accesses
        yield FeatureCompute.KIND, self.features
        yield ComputePool.KIND, self.pools


class KindCount(ApiModel):
    """How many objects of a kind there are, and how they are."""

    kind: str
    total: int
    as_it_should_be: int
    progressing: int
    """Objects that start or stop; counted in neither of the other two."""
    not_as_it_should_be: int


class PoolLine(ApiModel):
    """One pool's slices, and who has them."""

    pool: str
    mode: PolicyMode
    """The mode of the allocator's last tick, or that of spec.policy before the first."""
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUse, ...]
    state: State


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
    """The overrides in force, without those in heldBy."""
    version: str
    """The version of the command line."""
    control_plane: Mapping[str, str]
    """The version of each of its Deployments; empty if the user may not read them."""
    skipped: tuple[str, ...]
    """What could not be checked or read, and why."""

    @property
    def as_it_should_be(self) -> bool:
        """Return whether every object is healthy."""
        return all(count.as_it_should_be == count.total for count in self.kinds)

    @property
    def settled(self) -> bool:
        """Return whether every object is healthy, and no release is under way."""
        return self.as_it_should_be

    @property
    def hopeless(self) -> bool:
        """Return whether waiting alone changes nothing: an object is stalled."""
        return any(report.state is State.STALLED for report in self.attention)

    def headline(self) -> str:
        """Summarise the state in one line."""
        present = [count for count in self.kinds if count.total]
        counts = ", ".join(f"{count.as_it_should_be}/{count.total} {count.kind}" for count in present)
        worst = next((f"; {report.kind} {report.name} {report.state}" for report in self.attention), "")
        return f"as they should be: {counts or 'nothing there'}{worst}"

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report; `wide` adds whole messages and the binding rules of every decision."""
        yield self._versions()
        yield ""
        yield from columns([["KIND", "TOTAL", "OK", "PROGRESSING", "NOT OK"], *map(_counted, self.kinds)])
        if self.attention:
            yield ""
            yield from columns(
                [["STATE", "KIND", "NAME", "WHY"], *(_listed(report, wide=wide) for report in self.attention)]
            )
            if self.attention_more:
                yield f"and {self.attention_more} more: tidegate get … --sort state lists them all"
        if self.pools:
            yield ""
            tiers = [tier.value for tier in Tier]
            head = ["POOL", "MODE", "NODES", "SLICES", "HEALTHY", "FREE", *(tier.upper() for tier in tiers)]
            yield from columns([head, *(_pooled(pool, tiers) for pool in self.pools[:SHOWN])])
            if len(self.pools) > SHOWN:
                yield f"and {len(self.pools) - SHOWN} more: tidegate get computepools lists them all"
        yield ""
        yield from self._decided(wide=wide)
        for hold in self.held_by[:_MOST_OF_EACH]:
            yield f"held       {hold.said}"
        for override in self.overrides[:_MOST_OF_EACH]:
            yield f"override   {override.said} ({override.target_kind} {override.target})"
        omitted = max(len(self.held_by) - _MOST_OF_EACH, 0) + max(len(self.overrides) - _MOST_OF_EACH, 0)
        if omitted:
            yield f"and {omitted} more: tidegate get overrides lists them all"
        for reason in self.skipped:
            yield f"left out   {reason}"

    def names(self) -> Iterator[str]:
        """Yield the objects that need attention."""
        return (named(report.kind, report.name.rpartition("/")[2]) for report in self.attention)

    def _versions(self) -> str:
        running = sorted(set(self.control_plane.values()))
        versions = ", ".join(running) if running else "not seen"
        scope = f"namespace {self.namespace}" if self.namespace is not None else "all namespaces"
        return f"tidegate {self.version}, control plane {versions}; {scope}"

    def _decided(self, *, wide: bool) -> Iterator[str]:
        newest = self.newest_decision
        if newest is None:
            yield "decided    nothing yet"
            return
        yield f"decided    {newest.name} at {timestamp(newest.at)}: {newest.move_count} moves, {newest.came_to()}"
        for binding in newest.binding if wide else ():
            yield f"binds      {binding.constraint}"


def fleet(seen: Fleet, now: datetime, version: str, namespace: str | None) -> FleetReport:
    """Report the objects. `namespace` is the one that was read; None for all."""
    kinds: list[KindCount] = []
    attention: list[ObjectReport] = []
    states: dict[str, State] = {}
    for kind, objects in seen.served():
        reports = [ObjectReport.of(resource) for resource in objects]
        kinds.append(_count(kind, reports))
        attention += (report for report in reports if not report.state.as_it_should_be)
        if kind == ComputePool.KIND:
            states = {report.name: report.state for report in reports}
    worst = worst_first(attention)
    holds = tuple(hold for pool in seen.pools for hold in holds_of_pool(pool, seen.overrides, now))
    holding = {hold.name for hold in holds}
    active = (OverrideReport.of(override) for override in in_force(seen.overrides, now))
    listed = (
        override
        for override in active
        if override.action is not OverrideAction.HOLD or override.name not in holding
    )
    return FleetReport(
        namespace=namespace,
        kinds=tuple(kinds),
        attention=worst[:SHOWN],
        attention_more=max(len(worst) - SHOWN, 0),
        pools=tuple(_pool(pool, states[pool.metadata.name]) for pool in seen.pools),
        newest_decision=next(
            (DecisionReport.of(decision) for decision in newest_first(seen.decisions)), None
        ),
        held_by=holds,
        overrides=tuple(override for override in listed if _is_in(override, namespace)),
        version=version,
        control_plane=dict(seen.versions),
        skipped=tuple(seen.skipped),
    )


def _is_in(override: OverrideReport, namespace: str | None) -> bool:
    """Return whether the override's target is in the namespace; pools are in all."""
    place, slash, _ = override.target.partition("/")
    return namespace is None or not slash or place == namespace


def _count(kind: str, reports: Iterable[ObjectReport]) -> KindCount:
    states = [report.state for report in reports]
    healthy = sum(state.as_it_should_be for state in states)
    progressing = sum(state in {State.PROGRESSING, State.DELETING} for state in states)
    return KindCount(
        kind=kind,
        total=len(states),
        as_it_should_be=healthy,
        progressing=progressing,
        not_as_it_should_be=len(states) - healthy - progressing,
    )


def _pool(pool: ComputePool, state: State) -> PoolLine:
    status = pool.status
    return PoolLine(
        pool=pool.metadata.name,
        mode=status.mode or pool.spec.policy.mode,
        nodes=status.nodes,
        slices=status.slices,
        tiers=status.tiers,
        state=state,
    )


def _counted(count: KindCount) -> list[str]:
    numbers = (count.total, count.as_it_should_be, count.progressing, count.not_as_it_should_be)
    return [count.kind, *map(str, numbers)]


def _listed(one: ObjectReport, *, wide: bool) -> list[str]:
    text = one.says()
    short = text if wide or len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 1]}…"
    return [one.state.value, one.kind, one.name, " ".join(short.split())]


def _pooled(pool: PoolLine, tiers: Sequence[str]) -> list[str]:
    used = {tier.name: tier.slices for tier in pool.tiers}
    counts = (pool.nodes, pool.slices.total, pool.slices.healthy, pool.slices.free)
    return [pool.pool, pool.mode.value, *map(str, counts), *(str(used.get(tier, 0)) for tier in tiers)]
