"""A cluster for measurements of size: a real control plane, simulated nodes whose pods run at once, and our controllers.

What is simulated is what has no part in the figures: kubelets say of a pod that it is ready as soon as it has a node, and one
stand-in answers for all agents. API server, etcd, scheduler, Kubernetes' controllers and ours are the real programs.
"""

import asyncio
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from tidegate.kube import kinds
from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.control_plane import LOOPBACK, AuditOptions, ControlPlane, ControlPlaneOptions
from tidegate_localcluster.errors import NotReadyError
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.agents import serve_agents
from tidegate_localcluster.fleet_demo.api import ApiServerClient, run_concurrently
from tidegate_localcluster.fleet_demo.kubelet import ReadyPods, SimulatedKubelets
from tidegate_localcluster.fleet_demo.site import (
    make_agent_certificates,
    serves_our_kinds,
    tidegate_process,
    write_kubeconfig,
)
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.ports import find_unused_port
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.programs import CONTROL_PLANE
from tidegate_localcluster.supplies import find_source_root

ADDRESS: Final = "127.84.0.2"
"""Of every pod: another one than that of the fleet demo, so that both may run."""
PLAYERS_WITHIN_S: Final = 60.0
CONTROLLERS: Final = objects.USERS["controllers"]
ARGUMENTS: Final = {
    "kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",),
    # Nobody renews the leases of simulated nodes.
    "kube-controller-manager": ("--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"),
}
AUDIT_POLICY: Final = json.dumps(
    {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [CONTROLLERS]}, {"level": "None"}],
    }
)
_WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ApiRequests:
    """Requests of the controllers to the API server, by verb and resource, without leases and watches."""

    writes: Counter[str]
    reads: Counter[str]
    refused: Counter[str]
    """Reads and writes that were answered with 400 or more."""


class SimulatedCluster:
    """A control plane with nodes and simulated kubelets; see `simulated_cluster`."""

    def __init__(self, files: Path, control_plane: ControlPlane, pki: Pki, api: ApiServerClient) -> None:
        self.files, self.pki = files, pki
        self.control_plane, self.api = control_plane, api

    @contextmanager
    def run_controllers(
        self, arguments: Mapping[str, str] | None = None, *, name: str = "controllers", server: str = ""
    ) -> Generator[ChildProcess]:
        """Run `tidegate controllers` with the chart's rights, and `arguments` as further environment.

        `server` overrides the API server's address; replicas differ by `name`.
        """
        environment = {
            "TIDEGATE_MODELS_HOST_PATH": "/models",
            "TIDEGATE_TLS_DIRECTORY": str(make_agent_certificates(self.pki, self.files / "tls")),
            **(arguments or {}),
        }
        with self._run_process("controllers", name, environment, server) as process:
            yield process

    @contextmanager
    def run_xds(
        self, arguments: Mapping[str, str], *, name: str = "xds", server: str = ""
    ) -> Generator[ChildProcess]:
        """Run `tidegate xds serve` in the same way."""
        with self._run_process("xds", name, arguments, server) as process:
            yield process

    @contextmanager
    def _run_process(
        self, command: str, name: str, arguments: Mapping[str, str], server: str
    ) -> Generator[ChildProcess]:
        server = server or self.control_plane.server_url
        kubeconfig = write_kubeconfig(command, self.pki, server, self.files / f"{name}.kubeconfig")
        environment = {"TIDEGATE_PROBE_PORT": str(find_unused_port(LOOPBACK)), **arguments}
        process = tidegate_process(command, kubeconfig, self.files / f"{name}.log", environment, name=name)
        process.start()
        try:
            yield process
        finally:
            process.stop()

    def count_requests(self) -> ApiRequests:
        """Return all requests of the controllers so far, from the API server's audit log."""
        requests = ApiRequests(Counter(), Counter(), Counter())
        for log in sorted(self.files.glob("audit*.log")):
            for line in log.read_text().splitlines():
                _count_request(json.loads(line), requests)
        return requests

    def component_cpu_s(self, name: str) -> float:
        """Return the CPU seconds that a part of the control plane has used."""
        return process_cpu_s(self.control_plane.pids[name])


@asynccontextmanager
async def simulated_cluster(files: Path, nodes: int) -> AsyncGenerator[SimulatedCluster]:
    """Start a control plane with so many nodes, our kinds and the controllers' rights, in the folder `files`."""
    pki = Pki(files / "pki")
    with _control_plane(files, pki) as control_plane:
        server = control_plane.server_url
        async with ApiServerClient.as_administrator(server, pki) as api:
            await _install_objects(api)
            await run_concurrently(
                partial(api.create, "/api/v1/nodes", objects.make_node(number)) for number in range(nodes)
            )
            with _run_players(server, files / "pki"):
                yield SimulatedCluster(files, control_plane, pki, api)


def make_object(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    """Return an object of one of our kinds."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "tidegate.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


async def make_namespace(api: ApiServerClient, name: str) -> None:
    """Create a namespace, and wait until it accepts pods."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await api.create("/api/v1/namespaces", body)
    await wait_for_service_account(api, name)


async def wait_for_service_account(api: ApiServerClient, namespace: str) -> None:
    """Wait until the namespace has its ServiceAccount; pods are rejected before."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    while await api.get(path) is None:  # noqa: ASYNC110  another process makes it
        await asyncio.sleep(0.1)


async def create_system_pods(api: ApiServerClient, gateways: int) -> None:
    """Create pods like the chart's of one xDS server and so many gateways, `gateway-<number>`."""
    await wait_for_service_account(api, objects.SYSTEM_NAMESPACE)
    path = kinds.POD.url_path(objects.SYSTEM_NAMESPACE)
    await api.create(path, _make_system_pod("xds", "tidegate-xds-0"))
    for number in range(gateways):
        await api.create(path, _make_system_pod("gateway", f"gateway-{number}"))


def _make_system_pod(component: str, name: str) -> dict[str, Any]:
    """Return a pod like the chart's, so that the controllers find the process of a component."""
    body = dict(objects.make_gateway_pod())
    labels = {**body["metadata"]["labels"], "app.kubernetes.io/component": component}
    return {**body, "metadata": {**body["metadata"], "name": name, "labels": labels}}


async def wait_leading(cluster: SimulatedCluster, process: ChildProcess) -> None:
    """Wait until these controllers hold the Lease. Raises ProcessDiedError when they exit."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{objects.SYSTEM_NAMESPACE}/leases/{objects.RELEASE}-controllers"
    first = await cluster.api.get(path)
    began = (first or {}).get("spec", {}).get("renewTime")
    while True:
        process.check_running()
        lease = await cluster.api.get(path) or {}
        spec = lease.get("spec", {})
        if spec.get("holderIdentity") and spec.get("renewTime") != began:
            return
        await asyncio.sleep(0.1)


async def wait_listening(process: ChildProcess, host: str, port: int) -> None:
    """Wait until a port of the process takes connections. Raises ProcessDiedError when it exits."""
    while True:
        process.check_running()
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def _control_plane(files: Path, pki: Pki) -> ControlPlane:
    policy = files / "audit-policy.json"
    policy.write_text(AUDIT_POLICY)
    options = ControlPlaneOptions(audit=AuditOptions(policy, files / "audit.log"), arguments=ARGUMENTS)
    binaries = Binaries().ensure(CONTROL_PLANE, lambda line: None)
    return ControlPlane(files / "control-plane", binaries, pki, options=options)


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def process_memory_mib(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process in MiB, now and at its peak."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = {line[0]: int(line[1]) / 1024 for line in lines if line and line[0] in {"VmRSS:", "VmHWM:"}}
    return memory["VmRSS:"], memory["VmHWM:"]


async def _install_objects(api: ApiServerClient) -> None:
    root = find_source_root()
    for manifests in (objects.read_crds(root), objects.make_namespaces(), objects.read_chart_objects(root)):
        await run_concurrently(partial(api.apply, path, body) for path, body in manifests)
    while not await serves_our_kinds(api, root):  # noqa: ASYNC110  another process serves them
        await asyncio.sleep(0.2)


@contextmanager
def _run_players(server: str, pki: Path) -> Generator[None]:
    """Run kubelets and agents in their own processes, so that neither delays the other or the measurement."""
    context = multiprocessing.get_context("spawn")
    started = [context.Event() for _ in range(2)]
    players = (
        context.Process(target=_run_player, args=(_play_kubelets, server, pki, started[0]), daemon=True),
        context.Process(target=_run_player, args=(_play_agents, server, pki, started[1]), daemon=True),
    )
    for player in players:
        player.start()
    try:
        if not all(event.wait(PLAYERS_WITHIN_S) for event in started):
            message = f"the simulated kubelets or agents have not begun within {PLAYERS_WITHIN_S:g} s"
            raise NotReadyError(message)
        yield
    finally:
        for player in players:
            player.terminate()
            player.join()


Play = Callable[[str, Path, Event], Coroutine[Any, Any, None]]


def _run_player(play: Play, server: str, pki: Path, begun: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(play(server, pki, begun))


async def _play_kubelets(server: str, pki: Path, begun: Event) -> None:
    administrator = KeyPair(pki / "admin.crt", pki / "admin.key")
    async with ApiServerClient(server, str(pki / "ca.crt"), administrator) as api:
        begun.set()
        await SimulatedKubelets(api, ReadyPods(), ADDRESS).run()


async def _play_agents(_server: str, pki: Path, begun: Event) -> None:
    async with serve_agents(Pki(pki), ADDRESS):
        begun.set()
        await asyncio.Event().wait()


def _count_request(entry: Mapping[str, Any], requests: ApiRequests) -> None:
    reference = entry.get("objectRef") or {}
    if entry["verb"] == "watch" or reference.get("resource") in {None, "leases"}:
        return
    parts = (reference["resource"], reference.get("subresource"))
    name = f"{entry['verb']} {'/'.join(part for part in parts if part)}"
    (requests.writes if entry["verb"] in _WRITES else requests.reads)[name] += 1
    if entry.get("responseStatus", {}).get("code", 200) >= 400:
        requests.refused[name] += 1
