"""A pool of GPU nodes whose MPS fails, checked every second of a simulated clock; planned actions change the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from builders.compute_pool import a_compute_pool, node_body
from tidegate.api.compute_pool import ComputePool
from tidegate.api.faulty_nodes import FaultState, FaultyNode, SharingFault
from tidegate.api.meta import ObjectKey
from tidegate.planning.gpu_sharing.health import (
    FaultSighting,
    RestartDaemon,
    SharingAction,
    SharingPlan,
    plan_sharing,
)
from tidegate.planning.gpu_sharing.node_sharing import (
    SHARING_TAINT,
    DaemonPod,
    NodeAgentReport,
    NodeSharing,
    SlicePod,
)
from tidegate.planning.pools.nodes import Taint, parse_node
from tidegate_dataplane.contract.sharing import (
    DaemonState,
    MpsClient,
    MpsServer,
    NodeReport,
    ServerStatus,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
LONG_AGO = START - timedelta(hours=1)
SERVER = 4100
MPS = {"slicesPerGPU": 4, "runAsUser": 1000, "cpu": "1", "memory": "1Gi"}


@dataclass
class Gpu:
    """One node, and the fault that it has."""

    name: str
    fault: SharingFault | None = None
    restart_helps: bool = False
    tainted: bool = False
    ready: bool = True
    cordoned: bool = False
    silent: bool = False
    reported_at: datetime | None = None
    """Time of its agent's last report; None: now."""
    blind: bool = False
    """Whether its agent has no control program."""
    pods: list[SlicePod] = field(default_factory=list[SlicePod])
    has_daemon: bool = True
    daemon_ready_since: datetime | None = LONG_AGO
    restarts: int = 0

    def add_pod(
        self, name: str, *, ends_by: datetime | None = None, refused_at: datetime | None = None
    ) -> None:
        self.pods.append(SlicePod(f"{self.name}-{name}", self.name, ends_by, refused_at))

    def view(self, now: datetime) -> NodeSharing:
        offered = "0" if self.fault is SharingFault.ALLOCATABLE_GONE else "4"
        body = node_body(
            self.name, ready=self.ready, cordoned=self.cordoned, **{"nvidia.com/gpu.shared": offered}
        )
        taints = (Taint(SHARING_TAINT, "Quarantined", "NoSchedule"),) if self.tainted else ()
        age = timedelta(minutes=1) if self.silent else now - (self.reported_at or now)
        daemon = DaemonPod(
            ObjectKey("nvidia", f"daemon-{self.name}"),
            f"{self.name}-{self.restarts}",
            ready_since=self.daemon_ready_since,
        )
        return NodeSharing(
            node=replace(parse_node(body), taints=taints),
            configured=True,
            agent=NodeAgentReport(self._report(now), age),
            pods=tuple(self.pods),
            pod_uids=frozenset(pod.uid for pod in self.pods if pod.refused_at is None),
            daemon=daemon if self.has_daemon else None,
        )

    def _report(self, now: datetime) -> NodeReport:
        if self.blind:
            message = "nvidia-cuda-mps-control cannot be started: No such file or directory"
            return NodeReport(node=self.name, daemon=DaemonState.UNKNOWN, message=message)
        if self.fault is SharingFault.DAEMON_LOST:
            message = "Cannot find MPS control daemon process"
            return NodeReport(node=self.name, daemon=DaemonState.GONE, message=message)
        status = ServerStatus.FAULT if self.fault is SharingFault.GPU_FAULT else ServerStatus.ACTIVE
        pods = [pod.uid for pod in self.pods if pod.refused_at is None]
        if self.fault is SharingFault.CLIENT_STUCK:
            pods.append("deleted")
        since = now - timedelta(minutes=5)
        return NodeReport(
            node=self.name,
            daemon=DaemonState.ANSWERS,
            servers=(MpsServer(pid=SERVER, status=status),),
            clients=tuple(
                MpsClient(pid=7000 + number, server=SERVER, pod=uid, since=since)
                for number, uid in enumerate(pods)
            ),
        )


class SharingWorld:
    """A pool with GPU nodes."""

    def __init__(self, nodes: int = 5) -> None:
        self.now = START
        self.gpus = {f"gpu-{number}": Gpu(f"gpu-{number}") for number in range(nodes)}
        self.pool: ComputePool = a_compute_pool("gpu-a", slice={"cpu": None, "mps": MPS})
        self.first_seen: Mapping[str, FaultSighting] = {}
        self.actions: list[tuple[float, SharingAction]] = []
        self.plans: list[SharingPlan] = []

    @property
    def seconds(self) -> float:
        return (self.now - START).total_seconds()

    @property
    def message(self) -> str:
        """Of the condition SharingHealthy."""
        verdict = self.plans[-1].verdict
        assert verdict is not None
        return verdict.message

    def check(self) -> SharingPlan:
        """Plan once, and carry the actions out."""
        views = [gpu.view(self.now) for gpu in self.gpus.values()]
        plan = plan_sharing(self.pool, views, self.first_seen, self.now)
        self.first_seen = plan.first_seen
        # Through the status as the API server keeps it.
        status = {**self.pool.status.dump(), "faultyNodes": [entry.dump() for entry in plan.faulty]}
        self.pool = a_compute_pool("gpu-a", slice={"cpu": None, "mps": MPS}, status=status)
        for action in plan.actions:
            self.actions.append((self.seconds, action))
            self._apply(action)
        self.plans.append(plan)
        return plan

    def run(self, seconds: float) -> SharingPlan:
        """Check every second for so long."""
        for _ in range(int(seconds)):
            self.now += timedelta(seconds=1)
            self.check()
        return self.plans[-1]

    def run_until(self, node: str, state: FaultState | None, within_s: float) -> float:
        """Check until a node is in that state; return how many seconds that took."""
        began = self.seconds
        while self.state(node) is not state:
            assert self.seconds - began < within_s, (
                f"{node}: {self.state(node)} after {within_s} s, not {state}"
            )
            self.run(1)
        return self.seconds - began

    def entry(self, node: str) -> FaultyNode | None:
        return next((entry for entry in self.pool.status.faulty_nodes if entry.node == node), None)

    def state(self, node: str) -> FaultState | None:
        entry = self.entry(node)
        return entry.state if entry is not None else None

    def _apply(self, action: SharingAction) -> None:
        if not isinstance(action, RestartDaemon):
            self.gpus[action.node].tainted = action.quarantined
            return
        gpu = self.gpus[action.pod.name.removeprefix("daemon-")]
        assert action.uid == f"{gpu.name}-{gpu.restarts}"
        gpu.restarts += 1
        gpu.daemon_ready_since = self.now
        if gpu.restart_helps:
            gpu.fault = None
