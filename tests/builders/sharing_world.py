"""A pool of GPU nodes whose MPS fails, planned again and again on a clock of the test's own; steps change the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from builders.compute_pool import a_compute_pool, node_body
from tidegate.api.meta import ObjectKey
from tidegate.api.repairs import RepairState, SharingFault
from tidegate.planning.node_sharing import SHARING_TAINT, Heard, HelperPod, NodeSharing, SlicePod
from tidegate.planning.nodes import Taint, node_view
from tidegate.planning.sharing_health import SharingPlan, Suspicion, plan_sharing
from tidegate.planning.sharing_repairs import OrderNode, RemovePod, Step, TaintNode
from tidegate_dataplane.contract.sharing import (
    DaemonState,
    MpsClient,
    MpsServer,
    NodeReport,
    OrderOutcome,
    OrderReport,
    ServerStatus,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
LONG_AGO = START - timedelta(hours=1)
HELPERS = ("daemon", "plugin")
SERVER = 4100
MPS = {"slicesPerGPU": 4, "runAsUser": 1000, "cpu": "1", "memory": "1Gi"}


@dataclass
class Gpu:
    """One node: what is really wrong with it, and what would cure it."""

    name: str
    fault: SharingFault | None = None
    cured_by: Callable[[Step], bool] | None = None
    """Whether a step ends the fault; None: nothing does."""
    taint: str | None = None
    ready: bool = True
    cordoned: bool = False
    count: int = 1
    """Of its GPUs."""
    silent: bool = False
    heard_at: datetime | None = None
    """When its agent said its last word; None: just now."""
    blind: bool = False
    """Whether its agent has no control program to ask."""
    pods: dict[str, SlicePod] = field(default_factory=dict[str, SlicePod])
    orders: tuple[OrderReport, ...] = ()
    tolerates: bool = True
    since: datetime | None = None
    """When the node became ready; None: long ago."""
    helpers_since: dict[str, datetime | None] = field(
        default_factory=lambda: dict.fromkeys(HELPERS, LONG_AGO)
    )
    """When its helper pods became ready; None: it is not. Without one there is none."""
    helpers: int = 0
    """How often its helper pods were recreated."""

    def pod(self, name: str, *, leaving: datetime | None = None, refused: bool = False) -> SlicePod:
        uid = f"{self.name}-{name}"
        self.pods[uid] = SlicePod(
            ObjectKey("ads", uid), uid, self.name, "gpu-a", leaving=leaving, refused=refused, ended=refused
        )
        return self.pods[uid]

    def view(self, now: datetime) -> NodeSharing:
        offered = "0" if self.fault is SharingFault.ALLOCATABLE_GONE else "4"
        body = node_body(
            self.name,
            labels={"nvidia.com/gpu.count": str(self.count)},
            ready=self.ready,
            cordoned=self.cordoned,
            **{"nvidia.com/gpu.shared": offered},
        )
        node = replace(node_view(body), ready_since=self.since)
        if self.taint is not None:
            node = replace(node, taints=(Taint(SHARING_TAINT, self.taint, "NoSchedule"),))
        pods = tuple(self.pods.values())
        return NodeSharing(
            node=node,
            configured=True,
            heard=Heard(
                self.report(now), timedelta(minutes=1) if self.silent else now - (self.heard_at or now)
            ),
            pods=pods,
            present=frozenset(pod.uid for pod in pods if not pod.ended),
            daemon=self._helper("daemon"),
            plugin=self._helper("plugin"),
        )

    def _helper(self, kind: str) -> HelperPod | None:
        if kind not in self.helpers_since:
            return None
        key = ObjectKey("nvidia", f"{kind}-{self.name}")
        return HelperPod(
            key, f"{kind}-{self.helpers}", tolerates=self.tolerates, ready_since=self.helpers_since[kind]
        )

    def report(self, now: datetime) -> NodeReport:
        if self.blind:
            words = "nvidia-cuda-mps-control cannot be started: No such file or directory"
            return NodeReport(node=self.name, daemon=DaemonState.UNKNOWN, message=words)
        if self.fault is SharingFault.DAEMON_LOST:
            words = "Cannot find MPS control daemon process"
            return NodeReport(node=self.name, daemon=DaemonState.GONE, message=words, orders=self.orders)
        status = ServerStatus.FAULT if self.fault is SharingFault.GPU_FAULT else ServerStatus.ACTIVE
        pods = [pod for pod in self.pods.values() if not pod.ended]
        since = now - timedelta(minutes=5)
        clients = [
            MpsClient(pid=7000 + at, server=SERVER, pod=pod.uid, since=since) for at, pod in enumerate(pods)
        ]
        if self.fault is SharingFault.CLIENT_STUCK:
            clients.append(MpsClient(pid=6999, server=SERVER, pod="long-gone", since=since))
        servers = (MpsServer(pid=SERVER, status=status),)
        return NodeReport(
            node=self.name,
            daemon=DaemonState.ANSWERS,
            servers=servers,
            clients=tuple(clients),
            orders=self.orders,
        )


class SharingWorld:
    """A pool with so many nodes, looked at every second."""

    def __init__(self, nodes: int = 5) -> None:
        self.now = START
        self.gpus = {f"gpu-{at}": Gpu(f"gpu-{at}") for at in range(nodes)}
        self.pool = a_compute_pool("gpu-a", slice={"cpu": None, "mps": MPS})
        self.suspicions: Mapping[str, Suspicion] = {}
        self.steps: list[tuple[float, Step]] = []
        self.plans: list[SharingPlan] = []

    @property
    def seconds(self) -> float:
        return (self.now - START).total_seconds()

    def view(self, node: str) -> NodeSharing:
        return self.gpus[node].view(self.now)

    def look(self) -> SharingPlan:
        """One look, whose steps are taken."""
        views = [gpu.view(self.now) for gpu in self.gpus.values()]
        plan = plan_sharing(self.pool, views, self.suspicions, self.now)
        self.suspicions = plan.suspicions
        # Through the status' own words, as at the API server.
        status = {**self.pool.status.dump(), "repairs": [repair.dump() for repair in plan.repairs]}
        self.pool = a_compute_pool("gpu-a", slice={"cpu": None, "mps": MPS}, status=status)
        for step in plan.steps:
            self.steps.append((self.seconds, step))
            self._take(step)
        self.plans.append(plan)
        return plan

    def run(self, seconds: float) -> SharingPlan:
        """Looks every second for so long."""
        for _ in range(int(seconds)):
            self.now += timedelta(seconds=1)
            self.look()
        return self.plans[-1]

    def until(self, node: str, state: RepairState | None, within_s: float) -> float:
        """Looks until a repair is in that state; how many seconds that took."""
        began = self.seconds
        while self.state(node) is not state:
            assert self.seconds - began < within_s, (
                f"{node} is {self.state(node)} after {within_s} s, not {state}"
            )
            self.run(1)
        return self.seconds - began

    def state(self, node: str) -> RepairState | None:
        return next((each.state for each in self.pool.status.repairs if each.node == node), None)

    def _take(self, step: Step) -> None:
        gpu = self._gpu_of(step)
        if isinstance(step, TaintNode):
            gpu.taint = step.value.value if step.value is not None else None
        elif isinstance(step, OrderNode):
            gpu.orders = (*gpu.orders, OrderReport(id=step.id, outcome=OrderOutcome.DONE))
        else:
            gpu.pods.pop(step.uid, None)
            if step.key.namespace == "nvidia":
                gpu.helpers += 1
                gpu.helpers_since[step.key.name.split("-")[0]] = self.now
        if gpu.cured_by is not None and gpu.cured_by(step):
            gpu.fault = None

    def _gpu_of(self, step: Step) -> Gpu:
        if not isinstance(step, RemovePod):
            return self.gpus[step.node]
        return next(
            gpu for gpu in self.gpus.values() if step.uid in gpu.pods or step.key.name.endswith(gpu.name)
        )


def removes(what: str) -> Callable[[Step], bool]:
    """Whether a step removes a pod whose name begins so."""
    return lambda step: isinstance(step, RemovePod) and step.key.name.startswith(what)
