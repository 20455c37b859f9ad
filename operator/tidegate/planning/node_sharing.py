"""How the GPUs of one node are shared out at this moment, as planners see it, and what is wrong with that."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.api.repairs import SharingFault
from tidegate.planning.nodes import NodeView
from tidegate.resources.names import POOL_LABEL
from tidegate.resources.slices import GPU_COUNT_LABEL, SHARED_GPU
from tidegate_dataplane.contract.sharing import DaemonState, MpsClient, NodeReport, ServerStatus

SHARING_TAINT: Final = "tidegate.io/sharing"
"""Key of the taint on nodes that are being repaired, or are kept out of use."""
SILENT_AFTER: Final = timedelta(seconds=30)
"""A node agent that has said nothing for so long is said to be silent; its answers come every 20 s at least."""
NODE_STARTS: Final = timedelta(minutes=3)
"""So long after a node has become ready its MPS and its slices may still be missing."""
HELPER_STARTS: Final = timedelta(minutes=2)
"""So long after a pod of the device plugin has become ready what it does may still be missing."""
_OUTLIVES: Final = timedelta(seconds=10)
"""So long after its pod should have ended, a process that is still connected is stuck."""
_SHOWN_AT_START: Final = (SharingFault.DAEMON_LOST, SharingFault.ALLOCATABLE_GONE)
_REFUSED: Final = "UnexpectedAdmissionError"


@dataclass(frozen=True, slots=True)
class SlicePod:
    """A pod on slices of a pool, on one node."""

    key: ObjectKey
    uid: str
    node: str
    pool: str
    leaving: datetime | None = None
    """When it should have ended; None while nobody has asked it to."""
    refused: bool = False
    """Whether the kubelet did not admit it, since the device plugin gave it no slice."""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class HelperPod:
    """The device plugin's pod, or its MPS control daemon's, on one node."""

    key: ObjectKey
    uid: str
    leaving: bool = False
    tolerates: bool = True
    """Whether another one would be made on a node that has our taint."""
    ready_since: datetime | None = None
    """None while it is not ready."""

    def starts(self, now: datetime) -> bool:
        """Whether it cannot be expected yet to do its work."""
        return self.leaving or self.ready_since is None or now < self.ready_since + HELPER_STARTS


@dataclass(frozen=True, slots=True)
class Heard:
    """What a node's agent last said, and how long ago that was; before its first word, since when it is asked."""

    report: NodeReport | None
    ago: timedelta


@dataclass(frozen=True, slots=True)
class NodeSharing:
    """One node of a pool whose GPUs are shared under MPS."""

    node: NodeView
    configured: bool
    """Whether its labels say what the pool says."""
    heard: Heard
    pods: Sequence[SlicePod] = ()
    present: frozenset[str] = frozenset()
    """Uids of all pods on the node that have not ended, anybody's."""
    daemon: HelperPod | None = None
    plugin: HelperPod | None = None

    def heard_since(self, moment: datetime, now: datetime) -> bool:
        """Whether its agent has said something after `moment`."""
        return self.heard.report is not None and now - self.heard.ago > moment

    @property
    def taint(self) -> str | None:
        """The value of our taint; None where there is none."""
        found = (taint.value for taint in self.node.taints if taint.key == SHARING_TAINT)
        return next(found, None)

    @property
    def many_gpus(self) -> bool:
        """Whether it has more than one GPU, for all that is known."""
        return self.node.labels.get(GPU_COUNT_LABEL) != "1"

    @property
    def offered(self) -> int:
        """Slices that the device plugin offers."""
        return int(self.node.allocatable.get(SHARED_GPU, Decimal(0)))


class Sight(StrEnum):
    """How well a node can be judged."""

    CLEAR = "Clear"
    PENDING = "Pending"
    """Its agent is being asked for the first time."""
    SILENT = "Silent"
    """Nobody says how MPS is: its agent does not answer, or cannot ask."""
    STARTING = "Starting"
    """What would make it well is only just starting, or does not start."""
    AWAY = "Away"
    """The node is not ready, or being deleted: nothing on it can be judged or repaired."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at one node came to."""

    sight: Sight
    fault: SharingFault | None = None
    detail: str = ""
    """Reads as the end of a sentence that begins with the node."""
    pods: tuple[SlicePod, ...] = ()
    """Those that have to go for it to be well."""
    client: MpsClient | None = None
    """The process that has to go."""
    awaited: SharingFault | None = None
    """Of a node that is STARTING: the fault that it has if it stays so."""


def diagnose(view: NodeSharing, now: datetime) -> Finding:
    """The worst that is wrong with the sharing of a node; what needs no agent is seen without one too."""
    if not view.node.ready or view.node.leaving:
        return Finding(Sight.AWAY)
    sight = _sight(view.heard)
    mps = _mps_fault(view, now) if sight is Sight.CLEAR else None
    seen = [each for each in (mps, *_plugin_faults(view)) if each is not None]
    found = next((each for each in seen if not _starts(each[0], view, now)), None)
    if found is not None:
        return Finding(sight, *found)
    if seen and sight is Sight.CLEAR:
        fault, detail, _, _ = seen[0]
        return Finding(Sight.STARTING, None, f"{detail}; {_how_it_starts(fault, view)}", awaited=fault)
    return Finding(sight, None, _silence(view.heard) if sight is Sight.SILENT else "")


_Found = tuple[SharingFault, str, tuple[SlicePod, ...], MpsClient | None]


def _sight(heard: Heard) -> Sight:
    if heard.ago >= SILENT_AFTER or _blind(heard):
        return Sight.SILENT
    return Sight.PENDING if heard.report is None else Sight.CLEAR


def _blind(heard: Heard) -> bool:
    return heard.report is not None and heard.report.daemon is DaemonState.UNKNOWN


def _silence(heard: Heard) -> str:
    if heard.ago < SILENT_AFTER and heard.report is not None:
        return (
            f"has a node agent that cannot ask MPS ({heard.report.message}): have the driver's programs put into its "
            "container, see nodeAgent.runtimeClassName in Tidegate's Helm values"
        )
    return "has no node agent that answers: look at its pod there"


def _mps_fault(view: NodeSharing, now: datetime) -> _Found | None:
    report = view.heard.report
    # Where MPS is not configured there need not be a daemon: SharingConfigured says so.
    if report is None or not view.configured:
        return None
    running = tuple(pod for pod in view.pods if not pod.ended)
    if report.daemon is not DaemonState.ANSWERS:
        detail = f"has no MPS control daemon that answers ({report.message})"
        return SharingFault.DAEMON_LOST, detail, running, None
    faulted = {server.pid for server in report.servers if server.status is ServerStatus.FAULT}
    if faulted:
        hit = _pods_of(running, [each for each in report.clients if each.server in faulted])
        return SharingFault.GPU_FAULT, "has an MPS server in FAULT", hit, None
    stuck = next((each for each in report.clients if _is_stuck(each, view, now)), None)
    if stuck is not None:
        detail = f"has process {stuck.pid} connected to MPS, whose pod {stuck.pod} should have ended"
        return SharingFault.CLIENT_STUCK, detail, running, stuck
    return None


def _plugin_faults(view: NodeSharing) -> Iterator[_Found]:
    if view.configured and view.offered == 0:
        yield SharingFault.ALLOCATABLE_GONE, f"offers no {SHARED_GPU} any more", (), None
    refused = tuple(pod for pod in view.pods if pod.refused)
    if refused:
        yield SharingFault.ADMISSION_ERRORS, f"refused pods of the pool ({_REFUSED})", refused, None


def _starts(fault: SharingFault, view: NodeSharing, now: datetime) -> bool:
    """Whether a fault is what every node shows that boots, or whose device plugin is being updated."""
    if fault not in _SHOWN_AT_START:
        return False
    booted = view.node.ready_since is None or now >= view.node.ready_since + NODE_STARTS
    helper = _responsible(fault, view)
    return not booted or helper is None or helper.starts(now)


def _responsible(fault: SharingFault, view: NodeSharing) -> HelperPod | None:
    return view.daemon if fault is SharingFault.DAEMON_LOST else view.plugin


def _how_it_starts(fault: SharingFault, view: NodeSharing) -> str:
    helper = _responsible(fault, view)
    whose = "MPS control daemon" if fault is SharingFault.DAEMON_LOST else "device plugin"
    if helper is None:
        return f"no pod of its {whose} is there: look at the DaemonSet"
    if helper.ready_since is None:
        return f"pod {helper.key} of its {whose} is not ready: look at its logs"
    return f"pod {helper.key} of its {whose} has just started, or the node has"


def _pods_of(pods: Sequence[SlicePod], clients: Sequence[MpsClient]) -> tuple[SlicePod, ...]:
    """The pods of these clients, or all where some client's pod is not known."""
    uids = {each.pod for each in clients}
    return tuple(pods) if "" in uids else tuple(pod for pod in pods if pod.uid in uids)


def _is_stuck(client: MpsClient, view: NodeSharing, now: datetime) -> bool:
    if not client.pod:
        return False
    pod = next((each for each in view.pods if each.uid == client.pod), None)
    if pod is not None and pod.leaving is not None:
        return now > pod.leaving + _OUTLIVES
    return client.pod not in view.present and now > client.since + _OUTLIVES


def slice_pod(body: Mapping[str, Any]) -> SlicePod | None:
    """Reads a pod of ours; None while it has no node, and where it has no slices."""
    metadata, status = body["metadata"], body.get("status") or {}
    labels, node = metadata.get("labels") or {}, (body.get("spec") or {}).get("nodeName")
    if not node or POOL_LABEL not in labels:
        return None
    leaving = metadata.get("deletionTimestamp")
    ended = status.get("phase") in ("Succeeded", "Failed")
    return SlicePod(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        uid=metadata["uid"],
        node=node,
        pool=labels[POOL_LABEL],
        leaving=datetime.fromisoformat(leaving) if leaving else None,
        refused=ended and status.get("reason") == _REFUSED and not leaving,
        ended=ended,
    )


def helper_pod(body: Mapping[str, Any], daemon_set: str) -> HelperPod | None:
    """Reads a pod of the device plugin; None where it is not of this DaemonSet.

    By owner, since the plugin's DaemonSets share their labels.
    """
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    if not any(each["kind"] == "DaemonSet" and each["name"] == daemon_set for each in owners):
        return None
    key = ObjectKey(metadata.get("namespace", ""), metadata["name"])
    tolerations = (body.get("spec") or {}).get("tolerations") or ()
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready = next((each for each in conditions if each["type"] == "Ready" and each["status"] == "True"), None)
    since = (ready.get("lastTransitionTime") or metadata["creationTimestamp"]) if ready is not None else None
    return HelperPod(
        key=key,
        uid=metadata["uid"],
        leaving="deletionTimestamp" in metadata,
        tolerates=any(map(_tolerates_repairs, tolerations)),
        ready_since=datetime.fromisoformat(since) if since is not None else None,
    )


def _tolerates_repairs(toleration: Mapping[str, Any]) -> bool:
    """Whatever value the taint has."""
    exists = toleration.get("operator") == "Exists" and toleration.get("key", "") in ("", SHARING_TAINT)
    return exists and toleration.get("effect", "") in ("", "NoSchedule")
