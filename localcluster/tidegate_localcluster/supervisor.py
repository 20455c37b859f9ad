"""The first process inside a cluster's namespaces: starts the parts in order, restarts the dead, keeps the state.

As process 1 it only reaps orphans; its child does the work. When either ends, the kernel ends everything else.
For a control plane alone it is an ordinary process without namespaces of its own.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import yaml

from tidegate_localcluster import addons, discovery, fleet, forwards, network
from tidegate_localcluster.api_client import ApiClient, condition
from tidegate_localcluster.control_plane import COMPONENTS, LOOPBACK, ControlPlane, ControlPlaneOptions
from tidegate_localcluster.errors import LocalClusterError, ProcessDiedError
from tidegate_localcluster.namespaces import PrivateRoot, run_as_init, run_checked
from tidegate_localcluster.node import Node, NodeSettings, kube_proxy, link_tools
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.process import Process, wait_until
from tidegate_localcluster.state import Forward, Part, Phase, Plan, State, StateDir

WATCH_INTERVAL_S = 0.25
START_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 180.0
RESTART_PAUSE_S = 1.0
OPEN_TO_PODS = 0o777


class Supervisor:
    """Runs one cluster from its plan until it is told to stop."""

    def __init__(self, state_dir: StateDir, plan: Plan, listeners: Mapping[Forward, int]) -> None:
        """Prepare; `listeners` are inherited listening sockets on the machine's 127.0.0.1."""
        self.state_dir, self.plan, self.listeners = state_dir, plan, listeners
        self.pki = Pki(state_dir.pki)
        self.nodes: list[Node] = []
        self.parts: list[Process] = []
        self.endings: dict[str, str] = {}
        self.restarts: dict[str, int] = {}
        self.restarted_at: dict[str, float] = {}
        self.steps_s: dict[str, float] = {}
        self.started_at = time.monotonic()
        self.stopping = threading.Event()
        self.inside: list[tuple[Forward, socket.socket]] = []
        self.control_plane = self._control_plane()

    def run(self) -> int:
        """Start, watch, stop; the exit status is 0 only after an orderly stop."""
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        try:
            self._start()
            self._watch()
        except LocalClusterError as error:
            self._write(Phase.FAILED, str(error))
            return 1
        finally:
            self._stop()
        self._write(Phase.STOPPED)
        return 0

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping.set()

    # -- start ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._write(Phase.STARTING, "starting")
        if self.plan.control_plane_only:
            self._start_control_plane()
            self._start_fleet()
        else:
            self._start_whole()
        self._write(Phase.READY)

    def _start_whole(self) -> None:
        network.configure_namespace(self.plan.nodes)
        link_tools(self.plan.binaries)
        self._prepare_nodes()
        for node in self.nodes:
            self._run(node.containerd)
        with ThreadPoolExecutor() as pool:
            loads = [pool.submit(self._load_images, node) for node in self.nodes]
            self._start_control_plane()
            self._start_forwards()
            for load in loads:
                load.result()
        self._step("images")
        for node in self.nodes:
            self._run(node.kubelet)
        self._run(
            kube_proxy(
                self.pki,
                server=self.control_plane.server,
                node=self.nodes[0].settings,
                logs=self.state_dir.logs,
            )
        )
        self._run(discovery.discovery_process(self.state_dir, self.control_plane.server, self.state_dir.logs))
        self._apply_addons()
        self._start_fleet()
        self._wait_ready()

    def _control_plane(self) -> ControlPlane:
        whole = not self.plan.control_plane_only
        binaries = {name: self.plan.binaries[name] for name in COMPONENTS}
        options = ControlPlaneOptions(
            port=network.APISERVER_PORT if whole else self.plan.ports[Forward.APISERVER],
            hostpath_provisioner=whole,
            service_cidr=str(network.SERVICE_NETWORK),
        )
        address = network.node_network(0).address if whole else LOOPBACK
        return ControlPlane(self.state_dir.control_plane, binaries, self.pki, address, options)

    def _start_control_plane(self) -> None:
        self.control_plane.start()
        self.parts.extend(self.control_plane.processes)
        self._step("control plane")

    def _start_forwards(self) -> None:
        # The same ports inside too, so that a kubeconfig and every address mean the same on both sides.
        self.inside = [(forward, forwards.listen(self.plan.ports[forward])) for forward in self.listeners]
        listeners = [*self.listeners.items(), *((forward, found.fileno()) for forward, found in self.inside)]
        self._run(forwards.forwards_process(self.plan.binaries["forward"], listeners, self.state_dir.logs))

    def _prepare_nodes(self) -> None:
        for index in range(self.plan.nodes):
            name = f"node-{index}"
            settings = NodeSettings(
                name=name,
                network=network.node_network(index),
                cgroup=f"{self.plan.cgroup}/{name}",
                data=self.state_dir.node(name),
                logs=self.state_dir.logs,
                server=f"https://{network.node_network(0).address}:{network.APISERVER_PORT}",
                pause_image=self.plan.images["pause"].ref,
            )
            node = Node(settings, self.pki)
            node.prepare()
            self.nodes.append(node)
        self._step("namespaces")

    def _load_images(self, node: Node) -> None:
        wait_until(
            lambda: node.runtime_ready,
            what=f"containerd of {node.settings.name} answers",
            processes=[node.containerd],
            timeout_s=START_TIMEOUT_S,
        )
        for image in self.plan.images.values():
            node.load_image(image.archive, image.ref)

    def _apply_addons(self) -> None:
        address = network.node_network(0).address
        values = {
            "DNS_ADDRESS": network.DNS_ADDRESS,
            "DISCOVERY_URL": f"http://{address}:{discovery.PORT}",
            "APISERVER": f"{address}:{network.APISERVER_PORT}",
        }
        names = ["storage"]
        for name in ("coredns", "prometheus"):
            if name in self.plan.images:
                values[f"{name.upper()}_IMAGE"] = self.plan.images[name].ref
                names.append(name)
        text = "\n---\n".join(addons.manifest(name, values) for name in names)
        self._kubectl("apply", "--server-side", "--filename=-", text=text)
        self._step("addons")

    def _start_fleet(self) -> None:
        if self.plan.simulated_gpu_nodes == 0:
            return
        self._kubectl("apply", "--server-side", "--filename=-", text=addons.document("simulation"))
        stages = self.state_dir.data / "stages.yaml"
        stages.write_text(addons.document("stages"))
        self._run(
            fleet.kwok(
                self.plan.binaries["kwok"],
                self.pki,
                server=self.control_plane.server,
                stages=stages,
                folder=self.state_dir.data,
                logs=self.state_dir.logs,
            )
        )
        nodes = [fleet.simulated_gpu_node(index) for index in range(self.plan.simulated_gpu_nodes)]
        self._kubectl("apply", "--filename=-", text=yaml.safe_dump_all(nodes))
        self._step("simulated nodes")

    def _kubectl(self, *arguments: str, text: str) -> None:
        command = [
            str(self.plan.binaries["kubectl"]),
            f"--kubeconfig={self.control_plane.kubeconfig}",
            *arguments,
        ]
        run_checked(command, text=text)

    def _wait_ready(self) -> None:
        client = ApiClient(
            self.control_plane.server, authority=self.pki.authority.certificate, credentials=self.pki.admin()
        )
        for what, question in readiness(client, self.plan).items():
            wait_until(_quietly(question), what=what, processes=self.parts, timeout_s=READY_TIMEOUT_S)
            self._step(what)

    # -- watch ---------------------------------------------------------------------------------------------

    def _run(self, process: Process) -> None:
        process.start()
        self.parts.append(process)

    def _watch(self) -> None:
        while not self.stopping.wait(WATCH_INTERVAL_S):
            self._open_volumes()
            dead = [part for part in self.parts if not part.running]
            for part in dead:
                self._revive(part)
            if dead:
                names = ", ".join(part.name for part in dead)
                self._write(Phase.DEGRADED, f"{names} died; being restarted")
            elif self.stopping.is_set():
                return
            else:
                self._write(Phase.READY)

    def _revive(self, part: Process) -> None:
        try:
            part.check()
        except ProcessDiedError as error:
            self.endings[part.name] = str(error).splitlines()[0]
        now = time.monotonic()
        if now - self.restarted_at.get(part.name, 0.0) < RESTART_PAUSE_S:
            return
        if part.log.exists():
            part.log.replace(part.log.with_suffix(".previous.log"))
        self.restarted_at[part.name] = now
        self.restarts[part.name] = self.restarts.get(part.name, 0) + 1
        part.start()

    def _open_volumes(self) -> None:
        """Let pods that are not root write to provisioned volumes, which the controller manager makes 0750."""
        if self.plan.control_plane_only:
            return
        for volume in self.state_dir.volumes.iterdir():
            if volume.stat().st_mode & OPEN_TO_PODS != OPEN_TO_PODS:
                volume.chmod(OPEN_TO_PODS)

    # -- stop and state ------------------------------------------------------------------------------------

    def _stop(self) -> None:
        control_plane = set(self.control_plane.processes)
        for part in reversed([part for part in self.parts if part not in control_plane]):
            part.stop(timeout_s=3.0)
        self.control_plane.stop()

    def _step(self, name: str) -> None:
        self.steps_s[name] = round(time.monotonic() - self.started_at, 2)
        self._write(Phase.STARTING, name)

    def _write(self, phase: Phase, message: str = "") -> None:
        parts = {
            part.name: Part(
                pid=part.pid,
                restarts=self.restarts.get(part.name, 0),
                last_ending=self.endings.get(part.name),
            )
            for part in self.parts
        }
        state = State(phase=phase, message=message, parts=parts, steps_s=self.steps_s)
        if State.read(self.state_dir.state) != state:
            state.write(self.state_dir.state)


def readiness(client: ApiClient, plan: Plan) -> Mapping[str, Callable[[], bool]]:
    """What must hold before a whole cluster counts as ready, each as a question."""
    questions: dict[str, Callable[[], bool]] = {}
    for index in range(plan.nodes):
        questions[f"node-{index} is Ready"] = _condition_question(
            client, f"/api/v1/nodes/node-{index}", "Ready"
        )
    for index in range(plan.simulated_gpu_nodes):
        path = f"/api/v1/nodes/gpu-sim-{index}"
        questions[f"gpu-sim-{index} is Ready"] = _condition_question(client, path, "Ready")
    for name, namespace in (("coredns", "kube-system"), ("prometheus", "monitoring")):
        if name in plan.images:
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
            questions[f"{name} is Available"] = _condition_question(client, path, "Available")
    return questions


def _condition_question(client: ApiClient, path: str, kind: str) -> Callable[[], bool]:
    def answer() -> bool:
        found = client.get(path)
        return found is not None and condition(found, kind)

    return answer


def _quietly(question: Callable[[], bool]) -> Callable[[], bool]:
    def answer() -> bool:
        try:
            return question()
        except OSError:
            return False

    return answer


def main(arguments: Sequence[str]) -> int:
    """Run the cluster of the state folder given first; the rest are `forward=descriptor` pairs."""
    state_dir = StateDir(Path(arguments[0]))
    plan = Plan.read(state_dir.plan)
    if plan is None:
        raise LocalClusterError(f"{state_dir.plan} does not exist; `tidegate local up` writes it")
    pairs = [argument.partition("=") for argument in arguments[1:]]
    listeners = {Forward(name): int(number) for name, _, number in pairs}
    if plan.control_plane_only:
        return Supervisor(state_dir, plan, listeners).run()
    if os.getpid() != 1:
        raise LocalClusterError(
            "the supervisor of a whole cluster must be the first process of a pid namespace"
        )
    enter_private_root(state_dir)
    return run_as_init(lambda: Supervisor(state_dir, plan, listeners).run())


def enter_private_root(state_dir: StateDir) -> None:
    """Swap the machine's root for the cluster's own; the state folder stays the real one."""
    for folder in (state_dir.models, state_dir.volumes):
        folder.mkdir(parents=True, exist_ok=True)
    PrivateRoot(
        scratch=state_dir.scratch,
        binds={
            str(state_dir.path): state_dir.path,
            "/models": state_dir.models,
            "/tmp/hostpath_pv": state_dir.volumes,  # noqa: S108  where the controller manager's provisioner puts them
        },
    ).enter()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
