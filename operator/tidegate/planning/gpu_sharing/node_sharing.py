"""How the GPUs of one node are shared under MPS, and which fault the node shows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from tidegate.api.faulty_nodes import SharingFault
from tidegate.api.meta import ObjectKey
from tidegate.planning.pools.nodes import NodeView
from tidegate.resources.names import POOL_LABEL
from tidegate.resources.slices import SHARED_GPU
from tidegate_dataplane.contract.sharing import DaemonState, MpsClient, NodeReport, ServerStatus

SHARING_TAINT: Final = "tidegate.io/sharing"
"""Key of the taint on quarantined nodes."""
SILENT_AFTER: Final = timedelta(seconds=30)
"""Age at which a node agent's report no longer counts; an agent repeats its report every 20 s."""
DAEMON_STARTS: Final = timedelta(minutes=2)
"""Time that a new MPS daemon has to answer, from the moment its pod is ready."""
_STUCK_AFTER: Final = timedelta(seconds=10)
"""Time that a process has to disconnect, from the moment its pod should have ended."""
_REFUSALS_COUNT_FOR: Final = timedelta(minutes=10)
"""A pod that the kubelet refused stays in the API server, so an old refusal must not count for ever."""
_REFUSED: Final = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class SlicePod:
    """A pod on slices of a pool, on one node."""

    uid: str
    node: str
    ends_by: datetime | None = None
    """When its grace period ends; None unless it is being deleted."""
    refused_at: datetime | None = None
    """When the kubelet refused it because the device plugin gave it no slice; None if it did not."""


@dataclass(frozen=True, slots=True)
class DaemonPod:
    """The pod of one node's MPS control daemon."""

    key: ObjectKey
    uid: str
    terminating: bool = False
    ready_since: datetime | None = None
    """None while it is not ready."""

    def has_started(self, now: datetime) -> bool:
        """Return whether the daemon has had the time to start."""
        return (
            not self.terminating and self.ready_since is not None and now >= self.ready_since + DAEMON_STARTS
        )


@dataclass(frozen=True, slots=True)
class NodeAgentReport:
    """The last report of a node's agent, and its age; without a report, how long we have been waiting for one."""

    report: NodeReport | None
    age: timedelta


@dataclass(frozen=True, slots=True)
class NodeSharing:
    """One node of a pool whose GPUs are shared under MPS."""

    node: NodeView
    configured: bool
    """Whether its labels match the pool's slices."""
    agent: NodeAgentReport
    pods: tuple[SlicePod, ...] = ()
    pod_uids: frozenset[str] = frozenset()
    """Of all pods on the node that have not ended, of any owner."""
    daemon: DaemonPod | None = None

    @property
    def has_taint(self) -> bool:
        """Return whether it has our taint."""
        return any(taint.key == SHARING_TAINT for taint in self.node.taints)


class NodeAgentState(StrEnum):
    """Whether a node's agent reports how MPS is."""

    REPORTING = "Reporting"
    PENDING = "Pending"
    """Its first report is awaited."""
    SILENT = "Silent"
    """It does not report, or cannot run MPS' control program."""
    NODE_DOWN = "NodeDown"
    """The node is not ready, or is being deleted: its report means nothing."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The worst fault that a node shows."""

    agent: NodeAgentState
    fault: SharingFault | None = None
    detail: str = ""
    """The end of a sentence that begins with the node."""


def diagnose_node(view: NodeSharing, now: datetime) -> Diagnosis:
    """Return the worst fault of a node. Faults that the API server shows are found without an agent too."""
    if not view.node.ready or view.node.terminating:
        return Diagnosis(NodeAgentState.NODE_DOWN)
    agent = _agent_state(view.agent)
    fault, detail = next(_find_faults(view, agent, now), (None, ""))
    if fault is not None and view.node.cordoned:
        detail += " (left alone while it is cordoned)"
    if fault is None and agent is NodeAgentState.SILENT:
        detail = _explain_silence(view.agent)
    return Diagnosis(agent, fault, detail)


def _agent_state(agent: NodeAgentReport) -> NodeAgentState:
    if agent.age >= SILENT_AFTER:
        return NodeAgentState.SILENT
    if agent.report is None:
        return NodeAgentState.PENDING
    blind = agent.report.daemon is DaemonState.UNKNOWN
    return NodeAgentState.SILENT if blind else NodeAgentState.REPORTING


def _explain_silence(agent: NodeAgentReport) -> str:
    if agent.report is not None and agent.age < SILENT_AFTER:
        return (
            f"has a node agent that cannot ask MPS ({agent.report.message}): set nodeAgent.runtimeClassName in Tidegate's "
            "Helm values to the RuntimeClass of the driver's programs"
        )
    return "has a node agent that does not report: check its pod there"


def _find_faults(
    view: NodeSharing, agent: NodeAgentState, now: datetime
) -> Iterator[tuple[SharingFault, str]]:
    """Yield a node's faults and how they show, the worst first."""
    # A node that is not configured need not have a daemon or slices: the condition SharingConfigured reports it.
    if view.configured and agent is NodeAgentState.REPORTING and view.agent.report is not None:
        yield from _find_mps_faults(view.agent.report, view, now)
    if view.configured and view.node.allocatable.get(SHARED_GPU, Decimal(0)) == 0:
        yield SharingFault.ALLOCATABLE_GONE, f"offers no {SHARED_GPU}"
    if any(pod.refused_at is not None and now < pod.refused_at + _REFUSALS_COUNT_FOR for pod in view.pods):
        yield SharingFault.ADMISSION_ERRORS, f"refused pods of the pool ({_REFUSED})"


def _find_mps_faults(
    report: NodeReport, view: NodeSharing, now: datetime
) -> Iterator[tuple[SharingFault, str]]:
    if report.daemon is not DaemonState.ANSWERS:
        detail = f"has no MPS control daemon that answers ({report.message})"
        yield SharingFault.DAEMON_LOST, f"{detail}{_explain_daemon(view.daemon, now)}"
    if any(server.status is ServerStatus.FAULT for server in report.servers):
        yield SharingFault.GPU_FAULT, "has an MPS server in FAULT"
    for client in report.clients:
        if _is_stuck(client, view, now):
            detail = f"has process {client.pid} connected to MPS, whose pod {client.pod} should have ended"
            yield SharingFault.CLIENT_STUCK, detail


def _explain_daemon(daemon: DaemonPod | None, now: datetime) -> str:
    if daemon is None:
        return "; the daemon has no pod there: check its DaemonSet"
    if daemon.ready_since is None:
        return f"; its pod {daemon.key} is not ready: check its logs"
    return "" if daemon.has_started(now) else f"; its pod {daemon.key} has just started"


def _is_stuck(client: MpsClient, view: NodeSharing, now: datetime) -> bool:
    if not client.pod:
        return False
    pod = next((pod for pod in view.pods if pod.uid == client.pod), None)
    if pod is not None and pod.ends_by is not None:
        return now > pod.ends_by + _STUCK_AFTER
    return client.pod not in view.pod_uids and now > client.since + _STUCK_AFTER


def parse_slice_pod(body: Mapping[str, Any]) -> SlicePod | None:
    """Read a pod of ours; return None if it has no node or no slices."""
    metadata, status = body["metadata"], body.get("status") or {}
    node = (body.get("spec") or {}).get("nodeName")
    if not node or POOL_LABEL not in (metadata.get("labels") or {}):
        return None
    ends_by = metadata.get("deletionTimestamp")
    refused = status.get("phase") == "Failed" and status.get("reason") == _REFUSED and not ends_by
    refused_at = (status.get("startTime") or metadata["creationTimestamp"]) if refused else None
    return SlicePod(
        uid=metadata["uid"],
        node=node,
        ends_by=datetime.fromisoformat(ends_by) if ends_by else None,
        refused_at=datetime.fromisoformat(refused_at) if refused_at else None,
    )


def parse_daemon_pod(body: Mapping[str, Any], daemon_set: str) -> DaemonPod | None:
    """Read a pod of the MPS control daemon; return None if another DaemonSet owns it.

    The labels do not tell them apart: the device plugin's DaemonSets share theirs.
    """
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    if not any(owner["kind"] == "DaemonSet" and owner["name"] == daemon_set for owner in owners):
        return None
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready = next((item for item in conditions if item["type"] == "Ready" and item["status"] == "True"), None)
    since = (ready.get("lastTransitionTime") or metadata["creationTimestamp"]) if ready is not None else None
    return DaemonPod(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata["uid"],
        terminating="deletionTimestamp" in metadata,
        ready_since=datetime.fromisoformat(since) if since is not None else None,
    )
