"""The fleet on one screen: how many objects are as they should be, which are not, and what steers compute."""

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
"""How many objects that are not as they should be are listed; the others are counted."""
_MOST_OF_EACH: Final = 10
_LONGEST_MESSAGE: Final = 160


@dataclass(frozen=True, slots=True)
class Fleet:
    """What was read of a cluster; a kind that could not be is in `skipped`."""

    inferences: Sequence[Inference] = ()
    accesses: Sequence[ModelAccess] = ()
    features: Sequence[FeatureCompute] = ()
    pools: Sequence[ComputePool] = ()
    overrides: Sequence[ComputeOverride] = ()
    decisions: Sequence[AllocationDecision] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """By the name of a Deployment of the control plane."""
    skipped: Sequence[str] = ()
    """What could not be read, and why."""

    def served(self) -> Iterator[tuple[str, Sequence[Served]]]:
        """The objects that have a state, kind by kind."""
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
    """Those on their way up or down; part of neither."""
    not_as_it_should_be: int


class PoolLine(ApiModel):
    """One pool's slices, and who has them."""

    pool: str
    mode: PolicyMode
    """As the allocator took it at its last look, or as spec.policy says where it has not looked."""
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUse, ...]
    state: State


class FleetReport(Report):
    """All there is in a namespace, or everywhere."""

    namespace: str | None
    """Absent: all of them."""
    kinds: tuple[KindCount, ...]
    attention: tuple[ObjectReport, ...]
    """Those that are not as they should be, the worst first; at most a few, `attentionMore` has how many more there are."""
    attention_more: int
    pools: tuple[PoolLine, ...]
    newest_decision: DecisionReport | None
    held_by: tuple[HoldReport, ...]
    """What holds whole pools."""
    overrides: tuple[OverrideReport, ...]
    """In force, but for those in heldBy."""
    version: str
    """Of who looks."""
    control_plane: Mapping[str, str]
    """The version of each of its Deployments; empty where they may not be read."""
    skipped: tuple[str, ...]
    """What could not be looked at, and why."""

    @property
    def as_it_should_be(self) -> bool:
        """Whether every object is."""
        return all(each.as_it_should_be == each.total for each in self.kinds)

    @property
    def settled(self) -> bool:
        """Whether every object is, and none is being released."""
        return self.as_it_should_be

    @property
    def hopeless(self) -> bool:
        """Whether waiting alone changes nothing: something is stalled."""
        return any(each.state is State.STALLED for each in self.attention)

    def headline(self) -> str:
        """Where it stands, in a line."""
        there = [each for each in self.kinds if each.total]
        said = ", ".join(f"{each.as_it_should_be}/{each.total} {each.kind}" for each in there)
        worst = next((f"; {each.kind} {each.name} {each.state}" for each in self.attention), "")
        return f"as they should be: {said or 'nothing there'}{worst}"

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has whole messages and every decision's binding rules."""
        yield self._versions()
        yield ""
        yield from columns([["KIND", "TOTAL", "OK", "PROGRESSING", "NOT OK"], *map(_counted, self.kinds)])
        if self.attention:
            yield ""
            yield from columns(
                [["STATE", "KIND", "NAME", "WHY"], *(_listed(each, wide=wide) for each in self.attention)]
            )
            if self.attention_more:
                yield f"and {self.attention_more} more: tidegate get … --sort state lists them all"
        if self.pools:
            yield ""
            tiers = [tier.value for tier in Tier]
            head = ["POOL", "MODE", "NODES", "SLICES", "HEALTHY", "FREE", *(tier.upper() for tier in tiers)]
            yield from columns([head, *(_pooled(each, tiers) for each in self.pools[:SHOWN])])
            if len(self.pools) > SHOWN:
                yield f"and {len(self.pools) - SHOWN} more: tidegate get computepools lists them all"
        yield ""
        yield from self._decided(wide=wide)
        for hold in self.held_by[:_MOST_OF_EACH]:
            yield f"held       {hold.said}"
        for override in self.overrides[:_MOST_OF_EACH]:
            yield f"override   {override.said} ({override.target_kind} {override.target})"
        more = max(len(self.held_by) - _MOST_OF_EACH, 0) + max(len(self.overrides) - _MOST_OF_EACH, 0)
        if more:
            yield f"and {more} more: tidegate get overrides lists them all"
        for each in self.skipped:
            yield f"left out   {each}"

    def names(self) -> Iterator[str]:
        """Those that are not as they should be."""
        return (named(each.kind, each.name.rpartition("/")[2]) for each in self.attention)

    def _versions(self) -> str:
        running = sorted(set(self.control_plane.values()))
        told = ", ".join(running) if running else "not seen"
        where = f"namespace {self.namespace}" if self.namespace is not None else "all namespaces"
        return f"tidegate {self.version}, control plane {told}; {where}"

    def _decided(self, *, wide: bool) -> Iterator[str]:
        newest = self.newest_decision
        if newest is None:
            yield "decided    nothing yet"
            return
        yield f"decided    {newest.name} at {timestamp(newest.at)}: {newest.move_count} moves, {newest.came_to()}"
        for each in newest.binding if wide else ():
            yield f"binds      {each.constraint}"


def fleet(seen: Fleet, now: datetime, version: str, namespace: str | None) -> FleetReport:
    """What there is. `namespace`: the one that was read; None for all."""
    kinds: list[KindCount] = []
    attention: list[ObjectReport] = []
    states: dict[str, State] = {}
    for kind, objects in seen.served():
        reports = [ObjectReport.of(each) for each in objects]
        kinds.append(_count(kind, reports))
        attention += (each for each in reports if not each.state.as_it_should_be)
        if kind == ComputePool.KIND:
            states = {each.name: each.state for each in reports}
    worst = worst_first(attention)
    held = tuple(hold for pool in seen.pools for hold in holds_of_pool(pool, seen.overrides, now))
    holding = {hold.name for hold in held}
    alive = (OverrideReport.of(each) for each in in_force(seen.overrides, now))
    ours = (each for each in alive if each.action is not OverrideAction.HOLD or each.name not in holding)
    return FleetReport(
        namespace=namespace,
        kinds=tuple(kinds),
        attention=worst[:SHOWN],
        attention_more=max(len(worst) - SHOWN, 0),
        pools=tuple(_pool(each, states[each.metadata.name]) for each in seen.pools),
        newest_decision=next((DecisionReport.of(each) for each in newest_first(seen.decisions)), None),
        held_by=held,
        overrides=tuple(each for each in ours if _is_in(each, namespace)),
        version=version,
        control_plane=dict(seen.versions),
        skipped=tuple(seen.skipped),
    )


def _is_in(override: OverrideReport, namespace: str | None) -> bool:
    """Whether its target lies there; pools are everywhere."""
    place, slash, _ = override.target.partition("/")
    return namespace is None or not slash or place == namespace


def _count(kind: str, reports: Iterable[ObjectReport]) -> KindCount:
    states = [each.state for each in reports]
    well = sum(each.as_it_should_be for each in states)
    moving = sum(each in {State.PROGRESSING, State.DELETING} for each in states)
    return KindCount(
        kind=kind,
        total=len(states),
        as_it_should_be=well,
        progressing=moving,
        not_as_it_should_be=len(states) - well - moving,
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
    said = one.says()
    short = said if wide or len(said) <= _LONGEST_MESSAGE else f"{said[: _LONGEST_MESSAGE - 1]}…"
    return [one.state.value, one.kind, one.name, " ".join(short.split())]


def _pooled(pool: PoolLine, tiers: Sequence[str]) -> list[str]:
    used = {each.name: each.slices for each in pool.tiers}
    counts = (pool.nodes, pool.slices.total, pool.slices.healthy, pool.slices.free)
    return [pool.pool, pool.mode.value, *map(str, counts), *(str(used.get(tier, 0)) for tier in tiers)]
