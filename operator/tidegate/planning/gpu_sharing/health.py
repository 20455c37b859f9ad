"""Plan what to do about the faulty nodes of a pool whose GPUs are shared under MPS, and its condition SharingHealthy.

A faulty node is quarantined, and the MPS daemon is restarted if it does not answer. Everything else is left to people and to
the tools of the driver's vendor: docs/explanation/mps-health.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.faulty_nodes import MAX_FAULTY_NODES, FaultState, FaultyNode, SharingFault
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.gpu_sharing.node_sharing import (
    DAEMON_STARTS,
    Diagnosis,
    NodeAgentState,
    NodeSharing,
    diagnose_node,
)
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import Event, EventType

CHECK_EVERY: Final = timedelta(seconds=10)
"""An agent that falls silent wakes nothing, and neither does the end of a delay."""
LIMIT_PERCENT: Final = 20
"""Share of a pool's nodes that may be restarting or quarantined at once; at least one node."""
_NAMED: Final = 3
"""Nodes that a message names."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When, and how often, the MPS daemon of one node is restarted."""

    after: timedelta
    """How long it must not have answered. Longer than a report counts, so that two reports show it."""
    limit: int
    remembered: timedelta
    """A daemon that fails again within this time after its recovery continues the count."""


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    """How long a fault must last before the status lists it, and before the node is quarantined."""

    report_after: timedelta
    quarantine_after: timedelta


RESTART_POLICY: Final = RestartPolicy(after=timedelta(seconds=30), limit=3, remembered=timedelta(minutes=10))
_NOW: Final = timedelta()
FAULT_POLICIES: Final[Mapping[SharingFault, FaultPolicy]] = {
    # Where its pod runs, restarts come first. This is for a pod that is missing or does not get ready.
    SharingFault.DAEMON_LOST: FaultPolicy(timedelta(minutes=10), timedelta(minutes=10)),
    # It ends by itself when the last process on the GPU has ended, and usually within seconds.
    SharingFault.GPU_FAULT: FaultPolicy(_NOW, timedelta(minutes=1)),
    SharingFault.CLIENT_STUCK: FaultPolicy(_NOW, timedelta(minutes=1)),
    # Every node shows it while it boots, and while the device plugin is updated.
    SharingFault.ALLOCATABLE_GONE: FaultPolicy(timedelta(minutes=3), timedelta(minutes=3)),
    SharingFault.ADMISSION_ERRORS: FaultPolicy(_NOW, _NOW),
}


@dataclass(frozen=True, slots=True)
class TaintNode:
    """Add our taint to a node, or remove it."""

    node: str
    quarantined: bool


@dataclass(frozen=True, slots=True)
class RestartDaemon:
    """Delete the pod of a node's MPS daemon; its DaemonSet creates another one."""

    pod: ObjectKey
    uid: str


SharingAction = TaintNode | RestartDaemon


@dataclass(frozen=True, slots=True)
class FaultSighting:
    """A fault that a node shows, and since when without a break."""

    fault: SharingFault
    since: datetime


@dataclass(frozen=True, slots=True)
class FaultChange:
    """A faulty node that changed its state, for Events and metrics."""

    before: FaultyNode | None
    after: FaultyNode
    detail: str
    time: datetime

    @property
    def is_new(self) -> bool:
        """Return whether the node was healthy before."""
        return self.before is None or self.before.state is FaultState.RECOVERED

    @property
    def fault_duration(self) -> timedelta:
        """Return the time since the fault was first seen."""
        return max(self.time - self.after.since, timedelta())

    @property
    def to_event(self) -> Event:
        """Return the Event of the pool."""
        node, fault = self.after.node, self.after.fault.value
        if self.after.state is FaultState.RECOVERED:
            message = f"node {node} recovered {self.fault_duration.total_seconds():.0f} s after {fault}"
            return Event(EventType.NORMAL, "NodeRecovered", message)
        quarantined = self.after.state is FaultState.QUARANTINED
        reason = Reason.NODE_QUARANTINED.value if quarantined else fault
        return Event(EventType.WARNING, reason, f"node {node} {self.detail}{_explain_state(self.after)}")


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """The outcome of one check of all nodes of a pool."""

    faulty: tuple[FaultyNode, ...]
    actions: tuple[SharingAction, ...]
    verdict: Verdict | None
    """None while a node agent's first report is awaited: the condition stays as it is."""
    first_seen: Mapping[str, FaultSighting]
    changes: tuple[FaultChange, ...]


def count_allowed_disruptions(nodes: int) -> int:
    """Return how many of a pool's nodes may be restarting or quarantined at once."""
    return max(nodes * LIMIT_PERCENT // 100, 1)


def plan_sharing(
    pool: ComputePool, views: Sequence[NodeSharing], seen_before: Mapping[str, FaultSighting], now: datetime
) -> SharingPlan:
    """Plan what to do about the nodes of a pool; `seen_before` is `first_seen` of the last plan."""
    before = {entry.node: entry for entry in pool.status.faulty_nodes}
    diagnoses = {view.node.name: diagnose_node(view, now) for view in views}
    first_seen = _find_first_seen(diagnoses, before, seen_before, now)
    out = {
        view.node.name
        for view in views
        if _is_out_of_use(before.get(view.node.name), view, diagnoses[view.node.name])
    }
    limit = count_allowed_disruptions(len(views))
    faulty: list[FaultyNode] = []
    actions: list[SharingAction] = []
    changes: list[FaultChange] = []
    # Nodes that are acted on keep their place; then come those that failed first, and those that have recovered.
    for view in sorted(
        views, key=lambda view: _make_sort_key(before.get(view.node.name), view, first_seen, now)
    ):
        name, diagnosis = view.node.name, diagnoses[view.node.name]
        old = before.get(name)
        allowed = len(out - {name}) < limit
        new = _update_entry(old, view, diagnosis, first_seen.get(name), now, allowed=allowed)
        if len(faulty) >= MAX_FAULTY_NODES:
            new = None
        actions.extend(_plan_actions(old, new, view))
        if new is None:
            continue
        faulty.append(new)
        if new.state in (FaultState.RESTARTING, FaultState.QUARANTINED):
            out.add(name)
        if old is None or (old.state, old.restarts) != (new.state, new.restarts):
            changes.append(FaultChange(old, new, diagnosis.detail, now))
    return SharingPlan(
        faulty=tuple(sorted(faulty, key=lambda entry: entry.node)),
        actions=tuple(actions),
        verdict=judge_sharing(faulty, diagnoses),
        first_seen=first_seen,
        changes=tuple(changes),
    )


def _find_first_seen(
    diagnoses: Mapping[str, Diagnosis],
    before: Mapping[str, FaultyNode],
    seen_before: Mapping[str, FaultSighting],
    now: datetime,
) -> Mapping[str, FaultSighting]:
    """Return since when each node shows its fault, from the status where it lists the fault."""
    result: dict[str, FaultSighting] = {}
    for node, diagnosis in diagnoses.items():
        if diagnosis.fault is None:
            continue
        entry, sighting = before.get(node), seen_before.get(node)
        if entry is not None and entry.state is not FaultState.RECOVERED and entry.fault is diagnosis.fault:
            result[node] = FaultSighting(entry.fault, entry.since)
        elif sighting is not None and sighting.fault is diagnosis.fault:
            result[node] = sighting
        else:
            result[node] = FaultSighting(diagnosis.fault, now.replace(microsecond=0))
    return result


def _make_sort_key(
    entry: FaultyNode | None, view: NodeSharing, first_seen: Mapping[str, FaultSighting], now: datetime
) -> tuple[bool, bool, datetime, str]:
    sighting = first_seen.get(view.node.name)
    listed = entry is not None and entry.state is not FaultState.RECOVERED
    return not listed, sighting is None, sighting.since if sighting is not None else now, view.node.name


def _is_out_of_use(entry: FaultyNode | None, view: NodeSharing, diagnosis: Diagnosis) -> bool:
    """Return whether a node counts against the limit.

    A node that is down, or does not show whether its restart helped, must not keep other nodes from a restart.
    """
    if diagnosis.agent is NodeAgentState.NODE_DOWN:
        return False
    if view.has_taint or (entry is not None and entry.state is FaultState.QUARANTINED):
        return True
    restarting = entry is not None and entry.state is FaultState.RESTARTING
    return restarting and diagnosis.agent is not NodeAgentState.SILENT


def _update_entry(
    entry: FaultyNode | None,
    view: NodeSharing,
    diagnosis: Diagnosis,
    sighting: FaultSighting | None,
    now: datetime,
    *,
    allowed: bool,
) -> FaultyNode | None:
    """Return a node's entry in the status; None for a node without one."""
    if sighting is None:
        # Without a report, nothing shows that the fault has gone.
        return _recover_entry(entry, now) if diagnosis.agent is NodeAgentState.REPORTING else entry
    # The person who cordoned a node decides about it.
    state = None if view.node.cordoned else _find_due_state(entry, view, sighting, now)
    if state is None or (entry is not None and entry.state is FaultState.QUARANTINED):
        return entry
    if state is not FaultState.DETECTED and not allowed:
        state = FaultState.WAITING
    restarts = entry.restarts if entry is not None else 0
    restarted_at = entry.restarted_at if entry is not None else None
    if state is FaultState.RESTARTING:
        restarts, restarted_at = restarts + 1, now.replace(microsecond=0)
    return FaultyNode(
        node=view.node.name,
        fault=sighting.fault,
        state=state,
        since=sighting.since,
        restarts=restarts,
        restarted_at=restarted_at,
    )


def _recover_entry(entry: FaultyNode | None, now: datetime) -> FaultyNode | None:
    if entry is None:
        return None
    if entry.recovered_at is None:
        return entry.model_copy(
            update={"state": FaultState.RECOVERED, "recovered_at": now.replace(microsecond=0)}
        )
    return entry if now < entry.recovered_at + RESTART_POLICY.remembered else None


def _find_due_state(
    entry: FaultyNode | None, view: NodeSharing, sighting: FaultSighting, now: datetime
) -> FaultState | None:
    """Return the action for a fault that has lasted this long; None if it needs none yet."""
    lasted = now - sighting.since
    if (
        sighting.fault is SharingFault.DAEMON_LOST
        and lasted >= RESTART_POLICY.after
        and _has_started(entry, view, now)
    ):
        used_up = entry is not None and entry.restarts >= RESTART_POLICY.limit
        return FaultState.QUARANTINED if used_up else FaultState.RESTARTING
    policy = FAULT_POLICIES[sighting.fault]
    if lasted >= policy.quarantine_after:
        return FaultState.QUARANTINED
    return FaultState.DETECTED if lasted >= policy.report_after else None


def _has_started(entry: FaultyNode | None, view: NodeSharing, now: datetime) -> bool:
    """Return whether the daemon has had its time since its pod was ready, and since we last restarted it.

    The cache may still show the pod that we deleted.
    """
    restarted_at = entry.restarted_at if entry is not None else None
    if view.daemon is None or not view.daemon.has_started(now):
        return False
    return restarted_at is None or now >= restarted_at + DAEMON_STARTS


def _plan_actions(
    old: FaultyNode | None, new: FaultyNode | None, view: NodeSharing
) -> Iterable[SharingAction]:
    quarantined = new is not None and new.state is FaultState.QUARANTINED
    if quarantined is not view.has_taint:
        yield TaintNode(view.node.name, quarantined)
    restarts = old.restarts if old is not None else 0
    if new is not None and new.restarts > restarts and view.daemon is not None:
        yield RestartDaemon(view.daemon.key, view.daemon.uid)


def judge_sharing(faulty: Sequence[FaultyNode], diagnoses: Mapping[str, Diagnosis]) -> Verdict | None:
    """Return the condition SharingHealthy; None while a node agent's first report is awaited.

    The first of the groups that has a node gives the reason.
    """
    entries = {entry.node: entry for entry in faulty}
    quarantined = {entry.node for entry in faulty if entry.state is FaultState.QUARANTINED}
    silent = {node for node, item in diagnoses.items() if item.agent is NodeAgentState.SILENT}

    def nodes_with(fault: SharingFault) -> set[str]:
        return {node for node, item in diagnoses.items() if item.fault is fault} - quarantined

    groups = (
        *((nodes_with(fault), Reason(fault.value), f"show {fault.value}") for fault in SharingFault),
        (quarantined, Reason.NODE_QUARANTINED, "are quarantined"),
        (silent - quarantined, Reason.NODE_AGENT_SILENT, "have a silent node agent"),
    )
    all_nodes = "1 node" if len(diagnoses) == 1 else f"{len(diagnoses)} nodes"
    reason = next((reason for nodes, reason, _ in groups if nodes), None)
    if reason is None:
        pending = any(item.agent is NodeAgentState.PENDING for item in diagnoses.values())
        return None if pending else Verdict(True, Reason.SHARING_HEALTHY, f"MPS answers on {all_nodes}")
    counts = ", ".join(f"{len(nodes)} of {all_nodes} {text}" for nodes, _, text in groups if nodes)
    named = dict.fromkeys(node for nodes, _, _ in groups for node in sorted(nodes))
    texts = [_describe_node(node, diagnoses[node], entries.get(node)) for node in named]
    rest = f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return Verdict(False, reason, f"{counts}: {'; '.join(texts[:_NAMED])}{rest}")


def _describe_node(node: str, diagnosis: Diagnosis, entry: FaultyNode | None) -> str:
    if entry is None or entry.state is FaultState.RECOVERED:
        return f"node {node} {diagnosis.detail}"
    if diagnosis.fault is not None:
        return f"node {node} {diagnosis.detail}{_explain_state(entry)}"
    silence = f", and {diagnosis.detail}" if diagnosis.detail else ""
    return f"node {node} showed {entry.fault.value}{_explain_state(entry)}{silence}"


def _explain_state(entry: FaultyNode) -> str:
    if entry.state is FaultState.RESTARTING:
        return f" (MPS daemon restarted, {entry.restarts} of {RESTART_POLICY.limit})"
    if entry.state is FaultState.WAITING:
        return " (waits: too many nodes of the pool are restarting or quarantined)"
    return " (quarantined while it lasts)" if entry.state is FaultState.QUARANTINED else ""
