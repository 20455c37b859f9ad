"""Health of a pool whose GPUs are shared under MPS: what is wrong on which node, what is done about it, and what is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.reasons import Reason
from tidegate.api.repairs import MAX_REPAIRS, NodeRepair, RepairState, SharingFault
from tidegate.planning.node_sharing import SILENT_AFTER, Finding, NodeSharing, diagnose
from tidegate.planning.plan import Event, EventType
from tidegate.planning.serving_status import Verdict
from tidegate.planning.sharing_repairs import (
    ATTEMPTS,
    LIMIT_PERCENT,
    TOLD_BY_AGENTS,
    TREATMENTS,
    Step,
    ends,
    kept_away,
    left_over,
    next_repair,
    out_of_use,
    steps_of,
    waits_for,
)
from tidegate.planning.sharing_status import sharing_verdict

_DOUBTED_FOR: Final = timedelta(seconds=1)
"""So soon an agent that was asked again has answered."""
LOOK_EVERY: Final = timedelta(seconds=10)
"""A node agent that falls silent tells nobody."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A fault that a node shows, and since when without a break."""

    fault: SharingFault
    since: datetime


class TurnKind(StrEnum):
    """What a repair has come to."""

    BEGUN = "Begun"
    TRIED_AGAIN = "TriedAgain"
    RECOVERED = "Recovered"
    QUARANTINED = "Quarantined"


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of one node's repair, for events and metrics."""

    node: str
    fault: SharingFault
    kind: TurnKind
    after: timedelta
    """Since the fault was first seen."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """What one look at all nodes of a pool came to."""

    repairs: tuple[NodeRepair, ...]
    steps: tuple[Step, ...]
    verdict: Verdict | None
    """None while some node's agent has not been heard for the first time: what was said stays."""
    suspicions: Mapping[str, Suspicion]
    turns: tuple[Turn, ...]
    doubted: frozenset[str]
    """Nodes whose agents should say again what they have just said."""
    requeue_after: timedelta

    @property
    def events(self) -> tuple[Event, ...]:
        """One for each turn."""
        return tuple(_event(turn) for turn in self.turns)


def limit(nodes: int) -> int:
    """How many of a pool's nodes may be out of use for repairs that cost running pods."""
    return max(nodes * LIMIT_PERCENT // 100, 1)


def plan_sharing(
    pool: ComputePool, views: Sequence[NodeSharing], before: Mapping[str, Suspicion], now: datetime
) -> SharingPlan:
    """What is to be done on the nodes of a pool; `before` are the suspicions of the last look."""
    known = {repair.node: repair for repair in pool.status.repairs}
    findings = {view.node.name: diagnose(view, now) for view in views}
    suspicions = _suspicions(findings, before, now)
    out = {
        view.node.name
        for view in views
        if out_of_use(known.get(view.node.name), view, findings[view.node.name], now)
    }
    most = limit(len(views))
    repairs: list[NodeRepair] = []
    steps: list[Step] = []
    for view in sorted(views, key=lambda one: _turn_order(one, known, suspicions, now)):
        name, finding = view.node.name, findings[view.node.name]
        suspicion = suspicions.get(name)
        allowed = len(out - {name}) < most
        seen = suspicion.since if suspicion is not None else None
        repair = next_repair(known.get(name), view, finding, seen, now, allowed=allowed)
        if repair is None or (name not in known and len(repairs) >= MAX_REPAIRS):
            (out.add if out_of_use(None, view, finding, now) else out.discard)(name)
            steps.extend(left_over(view))
            continue
        (out.add if out_of_use(repair, view, finding, now) else out.discard)(name)
        repairs.append(repair)
        steps.extend(steps_of(repair, view, finding, now))
    kept = _kept(repairs)
    return SharingPlan(
        repairs=kept,
        steps=tuple(steps),
        verdict=sharing_verdict(
            kept,
            findings,
            _waits(kept, views),
            _lacking_toleration(kept, views),
            now,
        ),
        suspicions=suspicions,
        turns=_turns(known, kept, findings, now),
        doubted=frozenset(node for node, each in suspicions.items() if _is_doubted(each, now)),
        requeue_after=_soonest(kept, suspicions, now),
    )


def _suspicions(
    findings: Mapping[str, Finding], before: Mapping[str, Suspicion], now: datetime
) -> Mapping[str, Suspicion]:
    found: dict[str, Suspicion] = {}
    for node, finding in findings.items():
        if finding.fault is not None:
            known = before.get(node)
            same = known is not None and known.fault is finding.fault
            found[node] = known if known is not None and same else Suspicion(finding.fault, now)
    return found


def _is_doubted(suspicion: Suspicion, now: datetime) -> bool:
    return suspicion.since == now and suspicion.fault in TOLD_BY_AGENTS


def _turn_order(
    view: NodeSharing, known: Mapping[str, NodeRepair], suspicions: Mapping[str, Suspicion], now: datetime
) -> tuple[bool, datetime, str]:
    """Nodes that are being repaired come first, then those that have failed for longest."""
    name = view.node.name
    repair, suspicion = known.get(name), suspicions.get(name)
    since = repair.since if repair is not None else suspicion.since if suspicion is not None else now
    return (repair is None or repair.state is RepairState.RECOVERED, since, name)


def _kept(repairs: Sequence[NodeRepair]) -> tuple[NodeRepair, ...]:
    """What is under way before what has recovered; then by node, so that a settled status stays as it is."""
    ranked = sorted(repairs, key=lambda one: (one.state is RepairState.RECOVERED, one.since, one.node))
    return tuple(sorted(ranked[:MAX_REPAIRS], key=lambda one: one.node))


def _soonest(repairs: Sequence[NodeRepair], suspicions: Mapping[str, Suspicion], now: datetime) -> timedelta:
    """When something may have to be done that no change tells of."""
    under_way = [repair for repair in repairs if repair.state is not RepairState.RECOVERED]
    busy = {repair.node for repair in under_way}
    moments = [
        *(ends(repair) for repair in under_way if repair.state is RepairState.REPAIRING),
        *(
            max(each.since + TREATMENTS[each.fault].confirm, _heard_again(each, now))
            for node, each in suspicions.items()
            if node not in busy
        ),
    ]
    ahead = [moment - now for moment in moments if moment > now]
    return min([*ahead, LOOK_EVERY]) + timedelta(milliseconds=50)


def _heard_again(suspicion: Suspicion, now: datetime) -> datetime:
    """When an agent should have repeated itself; again and again, until it has or is silent."""
    waited = suspicion.fault in TOLD_BY_AGENTS and now < suspicion.since + SILENT_AFTER
    return now + _DOUBTED_FOR if waited else suspicion.since


def _waits(repairs: Sequence[NodeRepair], views: Sequence[NodeSharing]) -> Mapping[str, str]:
    by_name = {view.node.name: view for view in views}
    return {
        each.node: waits_for(each, by_name[each.node])
        for each in repairs
        if each.state is RepairState.WAITING
    }


def _lacking_toleration(repairs: Sequence[NodeRepair], views: Sequence[NodeSharing]) -> frozenset[str]:
    """Nodes whose repair lacks a toleration of the device plugin."""
    by_name = {view.node.name: view for view in views}
    return frozenset(
        each.node
        for each in repairs
        if each.state is RepairState.WAITING and kept_away(each, by_name[each.node])
    )


def _turns(
    before: Mapping[str, NodeRepair],
    repairs: Sequence[NodeRepair],
    findings: Mapping[str, Finding],
    now: datetime,
) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for repair in repairs:
        kind = _turn(before.get(repair.node), repair)
        if kind is not None:
            detail = findings[repair.node].detail
            turns.append(Turn(repair.node, repair.fault, kind, max(now - repair.since, timedelta()), detail))
    return tuple(turns)


def _turn(before: NodeRepair | None, after: NodeRepair) -> TurnKind | None:
    was = before.state if before is not None else None
    if after.state is was and before is not None and before.attempts == after.attempts:
        return None
    if after.state is RepairState.REPAIRING:
        new = before is None or was in (RepairState.RECOVERED, RepairState.WAITING)
        return TurnKind.BEGUN if new else TurnKind.TRIED_AGAIN
    if after.state is RepairState.RECOVERED:
        return TurnKind.RECOVERED
    return TurnKind.QUARANTINED if after.state is RepairState.QUARANTINED else None


def _event(turn: Turn) -> Event:
    seconds = f"{turn.after.total_seconds():.0f} s"
    if turn.kind is TurnKind.RECOVERED:
        return Event(
            EventType.NORMAL, "NodeRecovered", f"node {turn.node} is well {seconds} after {turn.fault.value}"
        )
    if turn.kind is TurnKind.QUARANTINED:
        message = (
            f"node {turn.node} is kept out of use: {turn.fault.value} after {ATTEMPTS} attempts, {seconds}"
        )
        return Event(EventType.WARNING, Reason.NODE_QUARANTINED.value, message)
    again = " again" if turn.kind is TurnKind.TRIED_AGAIN else ""
    message = f"node {turn.node} {turn.detail}: its repair begins{again}"
    return Event(EventType.WARNING, turn.fault.value, message)
