"""The first process inside a cluster's namespaces: starts the parts in order, restarts the dead, writes the state.

As process 1 it only reaps orphans; its child does the work. When either ends, the kernel kills all other processes.
For a control plane alone it is an ordinary process without namespaces of its own.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType

import yaml

from tidegate_localcluster import addons, discovery, forwards, network, simulated_nodes
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.commands import run_checked
from tidegate_localcluster.control_plane import (
    COMPONENTS,
    LOOPBACK,
    AuditOptions,
    ControlPlane,
    ControlPlaneOptions,
)
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo.site import ARGUMENTS, FleetSite, SiteProgress
from tidegate_localcluster.image_store import ImageStore
from tidegate_localcluster.namespaces import run_as_init
from tidegate_localcluster.node import Node, NodeSettings, link_tools, make_kube_proxy_process, node_name
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.private_root import PrivateRoot
from tidegate_localcluster.process import wait_until
from tidegate_localcluster.process_group import ProcessGroup
from tidegate_localcluster.readiness import list_requirements, wait_for_requirement
from tidegate_localcluster.state import ClusterPhase, ClusterPlan, ClusterState, Forward, StateDir
from tidegate_localcluster.supplies import find_source_root

WATCH_INTERVAL_S = 0.25
START_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 180.0
FIRST_IMAGES = ("pause", "coredns", "prometheus")
VOLUME_MODE = 0o777


class Supervisor:
    """The supervisor of one cluster: runs it from its plan until SIGTERM."""

    def __init__(self, files: StateDir, plan: ClusterPlan, listeners: Mapping[Forward, int]) -> None:
        """Prepare the start; `listeners` are inherited listening sockets on the machine's 127.0.0.1."""
        self._files, self._plan, self._listeners = files, plan, listeners
        self._pki = Pki(files.pki)
        self._control_plane = _make_control_plane(files, plan, self._pki)
        self._parts = ProcessGroup()
        self._nodes: list[Node] = []
        self._inside: list[tuple[Forward, socket.socket]] = []
        self._steps_s: dict[str, float] = {}
        self._started_at = time.monotonic()
        self._stopping = threading.Event()
        reports = SiteProgress(
            self._record_step, lambda message: self._write_state(ClusterPhase.STARTING, message)
        )
        self._site = (
            FleetSite(files, plan, self._pki, self._parts, reports) if plan.fleet is not None else None
        )

    def run(self) -> int:
        """Start, watch and stop the cluster; return 0 only after an orderly stop."""
        signal.signal(signal.SIGTERM, self._stop_while_starting)
        try:
            self._start_cluster()
            signal.signal(signal.SIGTERM, self._request_stop)
            self._watch_parts()
        except LocalClusterError as error:
            self._write_state(ClusterPhase.FAILED, str(error))
            return 1
        finally:
            # A client that waits sees the failure, and may send SIGTERM while we stop.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._parts.stop()
            self._control_plane.stop()
        self._write_state(ClusterPhase.STOPPED)
        return 0

    def _stop_while_starting(self, number: int, frame: FrameType | None) -> None:
        raise LocalClusterError("stopped while starting")

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()

    def _start_cluster(self) -> None:
        self._write_state(ClusterPhase.STARTING, "starting")
        if self._plan.control_plane_only:
            self._start_control_plane()
        else:
            self._start_nodes()
        self._start_simulated_nodes()
        if self._site is not None:
            self._site.start(self._control_plane.pids)
        with ApiClient.as_administrator(self._files.pki, self._control_plane.server_url) as client:
            for requirement in list_requirements(self._plan):
                wait_for_requirement(requirement, client, self._parts.processes, READY_TIMEOUT_S)
                self._record_step(requirement.description)
        self._write_state(ClusterPhase.READY)

    def _start_nodes(self) -> None:
        network.configure_namespace(self._plan.nodes)
        link_tools(self._plan.binaries)
        self._prepare_nodes()
        for node in self._nodes:
            self._parts.start(node.containerd)
        with ThreadPoolExecutor() as pool:
            first = [pool.submit(self._load_first_images, node) for node in self._nodes]
            self._start_control_plane()
            self._start_forwards()
            _wait_for_loads(first)
            second = [pool.submit(self._load_other_images, node) for node in self._nodes]
            self._start_pods()
            _wait_for_loads(second)
        self._record_step("images")

    def _start_pods(self) -> None:
        server, logs = self._control_plane.server_url, self._files.logs
        for node in self._nodes:
            self._parts.start(node.kubelet)
        self._parts.start(
            make_kube_proxy_process(self._pki, server=server, node=self._nodes[0].settings.name, logs=logs)
        )
        self._parts.start(discovery.make_discovery_process(self._files, server, logs))
        self._apply_addons()

    def _start_control_plane(self) -> None:
        if self._site is not None:
            self._site.prepare()
        self._control_plane.start()
        self._parts.adopt_processes(self._control_plane.processes)
        self._record_step("control plane")

    def _start_forwards(self) -> None:
        # The same ports inside too, so that a kubeconfig and every address are valid on both sides.
        self._inside = [
            (forward, forwards.open_listener(self._plan.ports[forward])) for forward in self._listeners
        ]
        inside = ((forward, listener.fileno()) for forward, listener in self._inside)
        listeners = [*self._listeners.items(), *inside]
        program = self._plan.binaries["forward"]
        self._parts.start(forwards.make_forwards_process(program, listeners, self._files.logs))

    def _prepare_nodes(self) -> None:
        for index in range(self._plan.nodes):
            name = node_name(index)
            settings = NodeSettings(
                name=name,
                network=network.assign_node_network(index),
                cgroup=f"{self._plan.cgroup}/{name}",
                data=self._files.node_folder(name),
                logs=self._files.logs,
                server=f"https://{network.assign_node_network(0).address}:{network.APISERVER_PORT}",
                pause_image=self._plan.images["pause"].ref,
            )
            node = Node(settings, self._pki)
            node.prepare()
            self._nodes.append(node)
        self._record_step("namespaces")

    def _load_first_images(self, node: Node) -> None:
        """Load the images that the cluster itself needs, so that it can start while the others are loaded."""
        wait_until(
            lambda: node.is_runtime_ready,
            description=f"containerd of {node.settings.name} answers",
            processes=[node.containerd],
            timeout_s=START_TIMEOUT_S,
        )
        self._load_images(node, [name for name in self._plan.images if name in FIRST_IMAGES])

    def _load_other_images(self, node: Node) -> None:
        self._load_images(node, [name for name in self._plan.images if name not in FIRST_IMAGES])

    def _load_images(self, node: Node, names: Sequence[str]) -> None:
        node.load_images(self._plan.images[name] for name in names)

    def _apply_addons(self) -> None:
        address = network.assign_node_network(0).address
        values = {
            "DNS_ADDRESS": network.DNS_ADDRESS,
            "DISCOVERY_URL": f"http://{address}:{discovery.PORT}",
            "APISERVER": f"{address}:{network.APISERVER_PORT}",
        }
        names = ["storage", "priority"]
        for name in ("coredns", "prometheus"):
            if name in self._plan.images:
                values[f"{name.upper()}_IMAGE"] = self._plan.images[name].ref
                names.append(name)
        values.update(addons.load_prometheus_rules(find_source_root()))
        text = "\n---\n".join(addons.render_manifest(name, values) for name in names)
        self._run_kubectl("apply", "--server-side", "--filename=-", text=text)
        self._record_step("addons")

    def _start_simulated_nodes(self) -> None:
        if self._plan.simulated_gpu_nodes == 0:
            return
        self._run_kubectl("apply", "--server-side", "--filename=-", text=addons.read_manifest("simulation"))
        stages = self._files.data / "stages.yaml"
        stages.write_text(addons.read_manifest("stages"))
        kwok = simulated_nodes.make_kwok_process(
            self._plan.binaries["kwok"],
            self._pki,
            server=self._control_plane.server_url,
            stages=stages,
            folder=self._files.data,
            logs=self._files.logs,
        )
        self._parts.start(kwok)
        nodes = [
            simulated_nodes.make_simulated_gpu_node(index) for index in range(self._plan.simulated_gpu_nodes)
        ]
        self._run_kubectl("apply", "--filename=-", text=yaml.safe_dump_all(nodes))
        self._record_step("simulated nodes")

    def _run_kubectl(self, *arguments: str, text: str) -> None:
        kubeconfig = f"--kubeconfig={self._control_plane.kubeconfig}"
        run_checked(self._plan.binaries["kubectl"], kubeconfig, *arguments, text=text)

    def _watch_parts(self) -> None:
        while not self._stopping.wait(WATCH_INTERVAL_S):
            if not self._plan.control_plane_only:
                open_volumes(self._files.volumes)
            dead = self._parts.restart_dead()
            if dead:
                self._write_state(ClusterPhase.DEGRADED, f"{', '.join(dead)} died; being restarted")
            else:
                self._write_state(ClusterPhase.READY)
        self._write_state(ClusterPhase.STOPPING)

    def _record_step(self, name: str) -> None:
        self._steps_s[name] = round(time.monotonic() - self._started_at, 2)
        self._write_state(ClusterPhase.STARTING, name)

    def _write_state(self, phase: ClusterPhase, message: str = "") -> None:
        state = ClusterState(
            phase=phase, message=message, parts=self._parts.report_states(), steps_s=self._steps_s
        )
        if ClusterState.read(self._files.state) != state:
            state.write(self._files.state)


def open_volumes(folder: Path) -> None:
    """Let pods that are not root write to provisioned volumes, which the controller manager makes 0750."""
    for volume in folder.iterdir():
        with suppress(FileNotFoundError):  # the controller manager deletes volumes meanwhile
            if volume.stat().st_mode & VOLUME_MODE != VOLUME_MODE:
                volume.chmod(VOLUME_MODE)


def _wait_for_loads(loads: Sequence[Future[None]]) -> None:
    for load in loads:
        load.result()


def _make_control_plane(files: StateDir, plan: ClusterPlan, pki: Pki) -> ControlPlane:
    has_nodes = not plan.control_plane_only
    options = ControlPlaneOptions(
        port=network.APISERVER_PORT if has_nodes else plan.ports[Forward.APISERVER],
        hostpath_provisioner=has_nodes,
        service_cidr=str(network.SERVICE_NETWORK),
        audit=prepare_audit(files, plan),
        arguments=ARGUMENTS if plan.fleet is not None else {},
    )
    address = network.assign_node_network(0).address if has_nodes else LOOPBACK
    binaries = {name: plan.binaries[name] for name in COMPONENTS}
    return ControlPlane(files.control_plane, binaries, pki, address, options)


def prepare_audit(files: StateDir, plan: ClusterPlan) -> AuditOptions | None:
    """Write the audit policy of the plan and remove logs of earlier clusters; return the API server's options."""
    if plan.audit_policy is None:
        return None
    for log in files.audit_log.parent.glob(f"{files.audit_log.stem}*{files.audit_log.suffix}"):
        log.unlink()
    files.control_plane.mkdir(mode=0o700, parents=True, exist_ok=True)
    policy = files.control_plane / "audit-policy.yaml"
    policy.write_text(plan.audit_policy)
    return AuditOptions(policy, files.audit_log)


def main(arguments: Sequence[str]) -> int:
    """Run the cluster of the state folder in the first argument; the others are `forward=descriptor` pairs."""
    files = StateDir(Path(arguments[0]))
    plan = ClusterPlan.read(files.plan)
    if plan is None:
        raise LocalClusterError(f"{files.plan} does not exist; `tidegate local up` writes it")
    pairs = [argument.partition("=") for argument in arguments[1:]]
    listeners = {Forward(name): int(number) for name, _, number in pairs}
    if plan.control_plane_only:
        return Supervisor(files, plan, listeners).run()
    if os.getpid() != 1:
        raise LocalClusterError(
            "the supervisor of a whole cluster must be the first process of a pid namespace"
        )
    seed_nodes(files, plan)
    enter_private_root(files)
    return run_as_init(lambda: Supervisor(files, plan, listeners).run())


def seed_nodes(files: StateDir, plan: ClusterPlan) -> None:
    """Give the nodes the images that are unpacked already; the missing ones are loaded later.

    Call it before the root is swapped (see ImageStore). A store that cannot be used costs only time.
    """
    if plan.image_store is None:
        return

    def report_progress(line: str) -> None:
        ClusterState(phase=ClusterPhase.STARTING, message=line).write(files.state)

    store = ImageStore(plan.image_store, plan.binaries)
    try:
        for index in range(plan.nodes):
            store.seed_node(plan.images, files.node_folder(node_name(index)) / "containerd", report_progress)
    except (LocalClusterError, OSError) as error:
        print(f"the image store cannot be used: {error}", file=sys.stderr)  # noqa: T201  into supervisor.log


def enter_private_root(files: StateDir) -> None:
    """Replace the machine's root by the cluster's own; the state folder stays the real one."""
    for folder in (files.models, files.volumes):
        folder.mkdir(parents=True, exist_ok=True)
    files.model_cache.mkdir(exist_ok=True)
    files.model_cache.chmod(0o1777)  # pods of any namespace create a folder of their own in it
    PrivateRoot(
        scratch=files.scratch,
        binds={
            str(files.path): files.path,
            "/models": files.models,
            "/tmp/hostpath_pv": files.volumes,  # noqa: S108  where the controller manager's provisioner puts them
        },
    ).enter()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
