"""Starts, stops and inspects one local cluster from the machine that it runs on."""

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tidegate_localcluster import forwards
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.cgroups import CgroupTree
from tidegate_localcluster.commands import run_checked
from tidegate_localcluster.errors import LocalClusterError, NotReadyError
from tidegate_localcluster.leftovers import ClusterTraces, Leftovers, find_leftovers
from tidegate_localcluster.namespaces import (
    ClusterNamespaces,
    find_supervisors,
    start_detached,
    supervisor_command,
)
from tidegate_localcluster.node import CONTAINERD_SOCKET, NAMESPACE_FOLDER, TOOLS_FOLDER, node_name
from tidegate_localcluster.pki import Pki
from tidegate_localcluster.state import (
    FLEET_PROCESSES,
    ClusterPhase,
    ClusterPlan,
    ClusterState,
    FleetSettings,
    Forward,
    Image,
    StateDir,
)

READY_TIMEOUT_S = 300.0
FLEET_TIMEOUT_S = 3900.0
"""A fleet demo that starts for the first time fills its pool pod by pod."""
STOP_TIMEOUT_S = 15.0
PODS_CPU_WEIGHT = 10
"""In processes; with the default, 1, a build or a busy client beside the cluster would starve its pods."""
POLL_INTERVAL_S = 0.1

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of `up`."""

    name: str = "default"
    nodes: int = 1
    simulated_gpu_nodes: int = 0
    control_plane_only: bool = False
    fleet: FleetSettings | None = None
    """A fleet demo on the control plane alone."""
    audit_policy: str | None = None
    """An audit policy (audit.k8s.io/v1, YAML); the API server logs to `StateDir.audit_log`."""


@dataclass(frozen=True, slots=True)
class Supplies:
    """The programs and the images of a cluster, each by name."""

    binaries: Mapping[str, Path]
    images: Mapping[str, Image] = field(default_factory=dict[str, Image])
    image_store: Path | None = None
    home: Path | None = None
    """The cache folder of filled fleets."""


class LocalCluster:
    """The cluster whose files lie in one state folder; several processes may use it at once."""

    def __init__(self, state_dir: Path) -> None:
        """Point to the cluster's folder; create and start nothing."""
        self.files = StateDir(state_dir)

    # -- up ------------------------------------------------------------------------------------------------

    def bring_up(self, options: ClusterOptions, supplies: Supplies, progress: Progress) -> None:
        """Start the cluster and wait until it is ready; return at once when it is ready already.

        Raises LocalClusterError with the failed part and the end of its log; then nothing runs. Raises
        NotReadyError after the timeout; then the cluster continues to start.
        """
        with self._hold_lock():
            if self.find_supervisor() is None:
                self._clean_up(progress)
                self._start_supervisor(options, supplies)
            else:
                self._check_same_options(options)
                progress(f"cluster {options.name} runs already")
            try:
                self._wait_ready(progress)
            except NotReadyError:
                raise
            except LocalClusterError:
                self._stop_processes(progress)
                raise

    def find_supervisor(self) -> int | None:
        """Return the host pid of the supervisor; None when the cluster does not run."""
        namespace = self.find_namespaces()
        if namespace is not None:
            return namespace.pid
        return next(iter(find_supervisors(self.files.path)), None)

    def find_namespaces(self) -> ClusterNamespaces | None:
        """Return the cluster's namespaces; None when it does not run, or is a control plane alone."""
        return ClusterNamespaces.find(self.files.path)

    def _check_same_options(self, options: ClusterOptions) -> None:
        plan = self.read_plan()
        running = ClusterOptions(
            name=plan.name,
            nodes=plan.nodes,
            simulated_gpu_nodes=plan.simulated_gpu_nodes,
            control_plane_only=plan.control_plane_only,
            fleet=_without_fresh(plan.fleet),
            audit_policy=plan.audit_policy,
        )
        if running != replace(options, fleet=_without_fresh(options.fleet)):
            raise LocalClusterError(
                f"the cluster in {self.files.path} runs with other options ({running}); "
                "run `tidegate local down` first, or name another --state-dir"
            )

    def _start_supervisor(self, options: ClusterOptions, supplies: Supplies) -> None:
        files = self.files
        for folder in (files.logs, files.models, files.data):
            folder.mkdir(parents=True, exist_ok=True)
        # Pods that are not root read the models; nobody else reads the data.
        files.models.chmod(0o755)
        files.data.chmod(0o700)
        files.state.unlink(missing_ok=True)
        with ExitStack() as stack:
            listeners = self._open_listeners(stack)
            plan = ClusterPlan(
                name=options.name,
                nodes=options.nodes,
                simulated_gpu_nodes=options.simulated_gpu_nodes,
                control_plane_only=options.control_plane_only,
                cgroup=cgroup_name(options.name, files.path),
                ports={forward: listener.getsockname()[1] for forward, listener in listeners.items()},
                binaries=supplies.binaries,
                images=supplies.images,
                image_store=supplies.image_store,
                fleet=options.fleet,
                audit_policy=options.audit_policy,
                home=supplies.home,
                probes=self._reserve_probe_ports(stack) if options.fleet is not None else {},
            )
            plan.write(files.plan)
            pki = Pki(files.pki)
            server = f"https://127.0.0.1:{plan.ports[Forward.APISERVER]}"
            pki.write_kubeconfig(
                files.kubeconfig, server=server, credentials=pki.issue_admin(), cluster=options.name
            )
            if options.control_plane_only:
                stack.close()
                self._start_on_machine()
            else:
                self._start_in_namespaces(plan, listeners)

    def _open_listeners(self, stack: ExitStack) -> Mapping[Forward, socket.socket]:
        """Return listening sockets on the ports of the last start, or on others if these are taken."""
        previous = ClusterPlan.read(self.files.plan)
        previous_ports = previous.ports if previous is not None else {}
        listeners: dict[Forward, socket.socket] = {}
        for forward in Forward:
            try:
                listener = forwards.open_listener(previous_ports.get(forward, 0))
            except OSError:
                listener = forwards.open_listener(0)
            listeners[forward] = stack.enter_context(listener)
        return listeners

    @staticmethod
    def _reserve_probe_ports(stack: ExitStack) -> Mapping[str, int]:
        """Return a port for the probes of each process of a fleet demo, reserved until `stack` closes."""
        listeners = {name: stack.enter_context(forwards.open_listener(0)) for name in FLEET_PROCESSES}
        return {name: listener.getsockname()[1] for name, listener in listeners.items()}

    def _start_on_machine(self) -> None:
        log = self.files.logs / "supervisor.log"
        log.unlink(missing_ok=True)
        start_detached(supervisor_command(self.files.path), log=log)

    def _start_in_namespaces(self, plan: ClusterPlan, listeners: Mapping[Forward, socket.socket]) -> None:
        tree = CgroupTree.detect()
        if tree is None:
            raise LocalClusterError("no cgroup file system is mounted on /sys/fs/cgroup; mount one")
        for index in range(plan.nodes):
            tree.create(f"{plan.cgroup}/{node_name(index)}")
        tree.set_cpu_weight(plan.cgroup, PODS_CPU_WEIGHT)
        pairs = [f"{forward}={listener.fileno()}" for forward, listener in listeners.items()]
        log = self.files.logs / "supervisor.log"
        log.unlink(missing_ok=True)
        ClusterNamespaces.start(
            [*supervisor_command(self.files.path), *pairs],
            self.files.path,
            log=log,
            descriptors=[listener.fileno() for listener in listeners.values()],
        )

    def _wait_ready(self, progress: Progress) -> None:
        timeout_s = READY_TIMEOUT_S if self.read_plan().fleet is None else FLEET_TIMEOUT_S
        deadline = time.monotonic() + timeout_s
        reported: set[str] = set()
        while True:
            state = self.read_state()
            if state is not None and state.phase is ClusterPhase.READY:
                return
            if state is not None and state.phase in {ClusterPhase.FAILED, ClusterPhase.STOPPED}:
                raise LocalClusterError(f"the cluster did not start: {state.message}")
            if self.find_supervisor() is None:
                log = self.files.logs / "supervisor.log"
                raise LocalClusterError(f"the supervisor ended; the end of {log}:\n{log.read_text()[-2000:]}")
            for line in (*state.steps_s, state.message) if state is not None else ():
                if line not in reported:
                    reported.add(line)
                    progress(line)
            if time.monotonic() > deadline:
                raise NotReadyError(
                    f"the cluster is not ready after {timeout_s:g} s and continues to start: "
                    "see `tidegate local status` and `tidegate local logs`"
                )
            time.sleep(POLL_INTERVAL_S)

    # -- down ----------------------------------------------------------------------------------------------

    def tear_down(self, progress: Progress) -> Leftovers:
        """Stop the cluster and remove its data and cgroups; return what is left, normally nothing.

        Models, logs, certificates and port numbers stay for the next `up`.
        """
        with self._hold_lock():
            traces = self._record_traces()
            self._stop_processes(progress)
            plan = ClusterPlan.read(self.files.plan)
            return find_leftovers(self.files.path, plan.cgroup if plan is not None else None, traces)

    def kill_fleet(self) -> None:
        """Kill the processes of a fleet demo; an `up` that waits for it fails."""
        pid = self.find_supervisor()
        if pid is not None:
            _kill_process_tree(pid)

    def remove_files(self) -> None:
        """Remove the whole folder of a cluster that is down, also what `down` leaves for the next `up`."""
        if self.find_supervisor() is not None:
            raise LocalClusterError(f"the cluster in {self.files.path} runs; end it first")
        run_checked("rm", "-rf", "--one-file-system", self.files.path)

    def _stop_processes(self, progress: Progress) -> None:
        namespace, pid = self.find_namespaces(), self.find_supervisor()
        if namespace is not None:
            # The data is removed too, so no process needs time to save it.
            progress("stopping")
            namespace.kill()
        elif pid is not None:
            progress("stopping")
            plan = ClusterPlan.read(self.files.plan)
            if plan is not None and plan.fleet is not None:
                _kill_process_tree(pid)
            else:
                _terminate_process(pid)
        if namespace is not None and not namespace.wait_until_ended():
            raise LocalClusterError(
                f"process {namespace.pid} cannot be ended; it may hang in the kernel: see dmesg"
            )
        self._clean_up(progress)

    def _record_traces(self) -> ClusterTraces:
        namespace, state = self.find_namespaces(), self.read_state()
        if namespace is not None:
            return ClusterTraces.from_pids(namespace.map_processes().values(), namespace.pid)
        parts = state.parts.values() if state is not None else ()
        # Without a supervisor these ids may belong to other processes by now.
        return ClusterTraces.from_pids(
            [part.pid for part in parts if part.pid] if self.find_supervisor() else (), None
        )

    def _clean_up(self, progress: Progress) -> None:
        """Remove the cgroups, data and state of a cluster that does not run, however it ended."""
        plan = ClusterPlan.read(self.files.plan)
        tree = CgroupTree.detect()
        if plan is not None and tree is not None and tree.list_existing_folders(plan.cgroup):
            progress("removing cgroups")
            tree.remove(plan.cgroup)
        if self.files.data.exists():
            progress("removing data")
            # rm is several times faster than shutil on a busy machine, and never enters a leftover mount.
            run_checked("rm", "-rf", "--one-file-system", self.files.data)
        self.files.state.unlink(missing_ok=True)

    # -- status --------------------------------------------------------------------------------------------

    def read_plan(self) -> ClusterPlan:
        """Return the plan that the cluster was started with; raises LocalClusterError when it never was."""
        plan = ClusterPlan.read(self.files.plan)
        if plan is None:
            raise LocalClusterError(
                f"there is no cluster in {self.files.path}; `tidegate local up` makes one"
            )
        return plan

    def read_state(self) -> ClusterState | None:
        """Return the state that the supervisor wrote last; None before its first."""
        return ClusterState.read(self.files.state)

    def read_status(self) -> Mapping[str, object]:
        """Return the document of `tidegate local status -o json`; addresses are None until they are served."""
        plan, state = self.read_plan(), self.read_state()
        running = self.find_supervisor() is not None
        phase = state.phase if state is not None and running else ClusterPhase.STOPPED
        reachable = (
            self._find_services(plan)
            if running and phase is not ClusterPhase.STARTING
            else frozenset[Forward]()
        )

        def address(forward: Forward, scheme: str = "") -> str | None:
            return f"{scheme}127.0.0.1:{plan.ports[forward]}" if forward in reachable else None

        return {
            "state": phase.value,
            "message": state.message if state is not None and running else "",
            "kubeconfig": str(self.files.kubeconfig),
            "models": str(self.files.models),
            "gateway": {"grpc": address(Forward.GATEWAY), "http": address(Forward.GATEWAY, "http://")},
            "dashboard": address(Forward.DASHBOARD, "http://"),
            "prometheus": address(Forward.PROMETHEUS, "http://"),
            "pids": self._find_host_pids(state) if running else {},
            "parts": {
                name: {"restarts": part.restarts, "last_ending": part.last_ending}
                for name, part in (state.parts if state is not None else {}).items()
            },
            "images": {name: image.ref for name, image in plan.images.items()},
        }

    def _find_services(self, plan: ClusterPlan) -> frozenset[Forward]:
        if plan.fleet is not None:
            return frozenset({Forward.DASHBOARD, Forward.PROMETHEUS})
        if plan.control_plane_only:
            return frozenset()
        server = f"https://127.0.0.1:{plan.ports[Forward.APISERVER]}"
        with ApiClient.as_administrator(self.files.pki, server) as client:
            try:
                return frozenset(
                    forward
                    for forward, service in forwards.SERVICE_PORTS.items()
                    if client.get(service.api_path) is not None
                )
            except OSError:
                return frozenset()

    def _find_host_pids(self, state: ClusterState | None) -> Mapping[str, int]:
        """Return the host process ids, by part."""
        namespace = self.find_namespaces()
        parts = {} if state is None else {name: part.pid for name, part in state.parts.items() if part.pid}
        if namespace is None:
            return parts
        host_pids = namespace.map_processes()
        running = {name: host_pids[pid] for name, pid in parts.items() if pid in host_pids}
        return {"init": namespace.pid, **running}

    def find_log_files(self) -> Mapping[str, Path]:
        """Return the log file of every part by name, also of parts that have ended."""
        folders = (self.files.logs, self.files.control_plane / "logs")
        return {log.stem: log for folder in folders if folder.exists() for log in folder.glob("*.log")}

    def wait_until_ended(self) -> None:
        """Wait until the cluster has ended, by itself or by another `down`."""
        while (pid := self.find_supervisor()) is not None:
            psutil.Process(pid).wait()

    # -- inside --------------------------------------------------------------------------------------------

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` in the cluster's namespaces.

        Raises LocalClusterError when the cluster has none: it does not run, or is a control plane alone.
        """
        namespace = self.find_namespaces()
        if namespace is None:
            raise LocalClusterError(
                f"the cluster in {self.files.path} has no namespaces: it does not run, or is a control plane alone"
            )
        return namespace.wrap_command(command, directory=Path.cwd())

    def load_image(self, archive: Path, ref: str | None = None) -> None:
        """Load an OCI or Docker archive into every node, under `ref` or the names in the archive.

        Raises LocalClusterError with containerd's message.
        """
        namespace = self.find_namespaces()
        if namespace is None:
            raise LocalClusterError(
                f"the cluster in {self.files.path} does not run; `tidegate local up` starts it"
            )
        for index in range(self.read_plan().nodes):
            inside = [
                "nsenter",
                f"--mount={NAMESPACE_FOLDER}/{node_name(index)}",
                "--",
                f"{TOOLS_FOLDER}/ctr",
            ]
            inside += ["--address", CONTAINERD_SOCKET, "--namespace", "k8s.io", "images", "import", "--local"]
            inside += ["--index-name", ref] if ref is not None else []
            with archive.open("rb") as source:
                result = subprocess.run(
                    namespace.wrap_command([*inside, "-"]),
                    stdin=source,
                    capture_output=True,
                    text=True,
                    check=False,
                )
            if result.returncode != 0:
                raise LocalClusterError(f"{archive} into {node_name(index)}: {result.stderr.strip()}")
        if ref is not None:
            self._record_image(Image(ref=ref, archive=archive))

    def _record_image(self, image: Image) -> None:
        """Record the newest image of each name for `status`."""
        name = image.ref.rpartition(":")[0].rpartition("/")[2]
        plan = self.read_plan()
        plan.model_copy(update={"images": {**plan.images, name: image}}).write(self.files.plan)

    @contextmanager
    def _hold_lock(self) -> Generator[None]:
        """Hold the lock that allows one `up` or `down` at a time; the kernel releases it when we die."""
        self.files.path.mkdir(parents=True, exist_ok=True)
        with self.files.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _without_fresh(fleet: FleetSettings | None) -> FleetSettings | None:
    """Return `fleet` without `fresh`, which says how to start it and not what runs."""
    return None if fleet is None else fleet.model_copy(update={"fresh": False})


def cgroup_name(name: str, state_dir: Path) -> str:
    """Return the name of a cluster's cgroup: readable, and unique per state folder."""
    return f"tidegate-{name}-{hashlib.sha256(str(state_dir).encode()).hexdigest()[:8]}"


def _kill_process_tree(pid: int) -> None:
    """Kill a process and all its descendants: most die with it, the others are killed one by one."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        process.kill()
    except psutil.NoSuchProcess:
        return
    _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_S / 3)
    for survivor in alive:
        with suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(alive, timeout=STOP_TIMEOUT_S)


def _terminate_process(pid: int) -> None:
    """Send SIGTERM, and SIGKILL if the process has not ended in time."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        os.kill(pid, signal.SIGKILL)
