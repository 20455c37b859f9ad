"""Turn a running control plane into a fleet: objects, processes, the first decision, the start of the day."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.errors import LocalClusterError, NotReadyError
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.api import ApiServerClient, RefusedError, run_concurrently
from tidegate_localcluster.fleet_demo.simulation import open_clock
from tidegate_localcluster.fleet_demo.store import FilledFleet
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.process_group import ProcessGroup
from tidegate_localcluster.state import ClusterPlan, Forward, StateDir
from tidegate_localcluster.supplies import find_source_root

_DISABLED_CONTROLLERS: Final = (
    # No traffic is routed to these pods, and their Services would be followed for nothing.
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    # Pods are never evicted, and each ready pod would cost a write of its disruption budget.
    "disruption-controller",
    # The leases of simulated nodes are not renewed; the nodes are created ready.
    "node-lifecycle-controller",
    "ttl-controller",
)
ARGUMENTS: Final[Mapping[str, Sequence[str]]] = {
    "kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",),
    "kube-controller-manager": (
        f"--controllers={','.join(f'-{name}' for name in _DISABLED_CONTROLLERS)}",
        "--concurrent-replicaset-syncs=10",
        "--concurrent-deployment-syncs=10",
    ),
}
"""Arguments of a control plane without kubelets: controllers that only follow pods would cost most of its CPU."""
FILLED_WITHIN_S: Final = 3600.0
"""Enough on a busy machine too; the progress is printed every few seconds."""
MOVED_WITHIN_S: Final = 60.0
SERVED_WITHIN_S: Final = 90.0
POLL_S: Final = 0.5
_TIMEOUT: Final = aiohttp.ClientTimeout(total=2)
_LEASE: Final = (
    f"/apis/coordination.k8s.io/v1/namespaces/{objects.SYSTEM_NAMESPACE}/leases/{objects.RELEASE}-controllers"
)
_RETRYABLE_STATUSES: Final = frozenset({403, 404, 429, 503})

DASHBOARD: Final = "dashboard"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SiteProgress:
    """Callbacks for progress: `step` ends a step, `progress` reports within one."""

    step: Say
    progress: Say


@dataclass(frozen=True, slots=True)
class PoolProgress:
    """The pool's status; the decision itself may have a thousand moves and is not read."""

    occupied_slices: int = 0
    """Slices with a pod."""
    decision: str = ""
    """Name of the newest decision."""
    settled: bool = False
    """Whether there is a decision and it is applied."""

    @classmethod
    async def read_status(cls, api: ApiServerClient) -> Self:
        """Read the current status."""
        body: Mapping[str, Any] = await api.get(f"{objects.API_PATH}/computepools/{objects.POOL}") or {}
        status = body.get("status") or {}
        slices = status.get("slices") or {}
        allocated: Mapping[str, Any] = next(
            (condition for condition in status.get("conditions") or () if condition["type"] == "Allocated"),
            {},
        )
        return cls(
            occupied_slices=int(slices.get("total", 0)) - int(slices.get("free", 0)),
            decision=str(status.get("lastDecision") or ""),
            settled=bool(status.get("lastDecision")) and allocated.get("status") == "True",
        )


class FleetSite:
    """Installs and starts a fleet demo on a control plane."""

    def __init__(
        self, files: StateDir, plan: ClusterPlan, pki: Pki, parts: ProcessGroup, site_progress: SiteProgress
    ) -> None:
        """Start processes among `parts`, which stops them."""
        self._files, self._plan, self._pki, self._parts, self._progress = (
            files,
            plan,
            pki,
            parts,
            site_progress,
        )
        self._server = f"https://{LOOPBACK}:{plan.ports[Forward.APISERVER]}"
        self._root = find_source_root()
        self._day = open_clock(files, plan)
        self._store = FilledFleet(plan.home or files.path, self._root, plan)
        self._restored = False

    def prepare(self) -> None:
        """Restore the objects of an earlier fleet of the same kind; called before the control plane starts."""
        self._restored = self._store.restore_data(self._files)
        if self._restored:
            self._progress.step("restored the filled fleet of an earlier run (--fresh fills it from scratch)")

    def start(self, control_plane: Mapping[str, int]) -> None:
        """Start the fleet, and return once the pool is filled and compute has moved.

        `control_plane` has the process ids of its parts. Raises LocalClusterError.
        """
        asyncio.run(self._start_fleet(control_plane))

    async def _start_fleet(self, control_plane: Mapping[str, int]) -> None:
        async with ApiServerClient.as_administrator(self._server, self._pki) as api:
            if self._restored:
                await api.call("DELETE", _LEASE)  # its holder does not run any more
                self._parts.start(self._simulation_process())
            else:
                await self._install_chart_objects(api)
                self._parts.start(self._simulation_process())
                await self._create_fleet(api)
            self._parts.start(self._tidegate_process("controllers"))
            await self._wait_until(self._is_deciding, "the allocator decides", SERVED_WITHIN_S)
            self._progress.step("controllers, and the stand-in for Prometheus")
            # Start the dashboard only now: two processes that start at once take twice as long.
            self._parts.start(self._dashboard_process())
            first = await self._wait_filled(api)
            self._save_filled(control_plane["etcd"])
            self._day.start_day()
            if self._plan.fleet is not None and self._plan.fleet.speed > 0:
                await self._wait_moved(api, first)
            await self._wait_until(self._has_dashboard_address, "the dashboard answers", SERVED_WITHIN_S)
            self._progress.step("dashboard")

    def _save_filled(self, etcd: int) -> None:
        """Save the filled fleet; on failure the next run takes longer, and this one goes on."""
        try:
            self._store.save_data(self._files, etcd)
        except (LocalClusterError, OSError) as error:
            self._progress.progress(f"the filled fleet cannot be saved: {error}")

    async def _install_chart_objects(self, api: ApiServerClient) -> None:
        for manifests in (
            objects.read_crds(self._root),
            objects.make_namespaces(),
            objects.read_chart_objects(self._root),
        ):
            await run_concurrently(partial(api.apply, path, body) for path, body in manifests)
        await self._wait_until(
            lambda: serves_our_kinds(api, self._root),
            "the API server serves Tidegate's kinds",
            SERVED_WITHIN_S,
        )
        self._progress.step("kinds, rights and policies of the chart")

    async def _create_fleet(self, api: ApiServerClient) -> None:
        assert self._plan.fleet is not None  # noqa: S101  this site is of a fleet
        nodes = [objects.make_node(number) for number in range(self._plan.fleet.nodes)]
        await run_concurrently(partial(api.create, "/api/v1/nodes", body) for body in nodes)
        self._progress.step(f"{len(nodes):,} simulated GPU nodes")
        models = objects.list_models(self._plan)
        await api.create(f"{objects.API_PATH}/computepools", objects.make_pool(len(models)))
        path = f"{objects.API_PATH}/namespaces/{objects.NAMESPACE}/inferences"
        await run_concurrently(partial(api.create, path, objects.make_inference(model)) for model in models)
        self._progress.step(f"{len(models):,} Inferences in three tiers")
        gateways = f"/api/v1/namespaces/{objects.SYSTEM_NAMESPACE}/pods"
        # Refused until the namespace has its ServiceAccount.
        await self._wait_until(
            lambda: _was_accepted(api.create(gateways, objects.make_gateway_pod())),
            f"namespace {objects.SYSTEM_NAMESPACE} takes pods",
            SERVED_WITHIN_S,
        )

    async def _wait_filled(self, api: ApiServerClient) -> str:
        """Wait until the pool is filled, and return the name of the decision that filled it."""
        slices, reported_at, status = objects.count_slices(self._plan), time.monotonic(), PoolProgress()

        async def is_filled() -> bool:
            nonlocal status, reported_at
            status = await PoolProgress.read_status(api)
            if status.settled:
                return True
            if time.monotonic() - reported_at >= 2.0:
                reported_at = time.monotonic()
                self._progress.progress(f"{status.occupied_slices:,} of {slices:,} slices have a pod")
            return False

        await self._wait_until(is_filled, "the pool is filled", FILLED_WITHIN_S)
        self._progress.step(f"the pool is filled: {status.occupied_slices:,} of {slices:,} slices have a pod")
        return status.decision

    async def _wait_moved(self, api: ApiServerClient, first: str) -> None:
        """Wait until a later decision moves something; a decision without moves does not count."""
        decision_name, count = first, 0

        async def has_moved() -> bool:
            nonlocal decision_name, count
            newest = (await PoolProgress.read_status(api)).decision
            if newest != decision_name:
                decision = await api.get(f"{objects.API_PATH}/allocationdecisions/{newest}") or {}
                decision_name, count = newest, int(decision.get("spec", {}).get("moveCount", 0))
            return count > 0

        await self._wait_until(has_moved, "compute moves with the load", MOVED_WITHIN_S)
        self._progress.step(
            f"the day has begun, and compute moves: {count} Inferences by decision {decision_name}"
        )

    async def _wait_until(
        self, holds: Callable[[], Awaitable[bool]], description: str, timeout_s: float
    ) -> None:
        """Wait until `holds`. Raises ProcessDiedError when a part exits, NotReadyError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not await holds():
            for process in self._parts.processes:
                process.check_running()
            if time.monotonic() > deadline:
                raise NotReadyError(f"not within {timeout_s:g} s: {description}; see {self._files.logs}")
            await asyncio.sleep(POLL_S)

    async def _is_deciding(self) -> bool:
        """Return whether the controllers lead and the allocator has run for the pool."""
        return await _is_answering(self._plan.probes["controllers"], f"/allocation/{objects.POOL}")

    def _simulation_process(self) -> ChildProcess:
        return ChildProcess(
            "simulation",
            [sys.executable, "-m", "tidegate_localcluster.fleet_demo.simulation", self._files.path],
            log=self._files.logs / "simulation.log",
        )

    def _tidegate_process(self, name: str) -> ChildProcess:
        """Return `tidegate controllers` as in a pod of the chart."""
        ports = self._plan.ports
        environment = {
            "TIDEGATE_PROBE_PORT": str(self._plan.probes[name]),
            "TIDEGATE_PROMETHEUS_URL": f"http://{LOOPBACK}:{ports[Forward.PROMETHEUS]}",
            # The simulated gateways have no metrics page; our own process answers such requests with an error.
            "TIDEGATE_GATEWAY_METRICS_PORT": str(ports[Forward.PROMETHEUS]),
            "TIDEGATE_MODELS_HOST_PATH": "/models",
            "TIDEGATE_TLS_DIRECTORY": str(make_agent_certificates(self._pki, self._files.data / "tls")),
        }
        kubeconfig = write_kubeconfig(name, self._pki, self._server, self._files.data / f"{name}.kubeconfig")
        return tidegate_process(name, kubeconfig, self._files.logs / f"{name}.log", environment)

    def _dashboard_process(self) -> ChildProcess:
        """Return the dashboard as a person runs it locally; the address that it prints authenticates."""
        ports = self._plan.ports
        options = {
            "--kubeconfig": str(self._files.kubeconfig),
            "--port": str(ports[Forward.DASHBOARD]),
            "--prometheus": f"http://{LOOPBACK}:{ports[Forward.PROMETHEUS]}",
            "--controllers": f"{LOOPBACK}:{self._plan.probes['controllers']}",
        }
        arguments = [argument for option in options.items() for argument in option]
        return ChildProcess(
            DASHBOARD,
            [sys.executable, "-m", "tidegate", "dashboard", "--no-browser", *arguments],
            log=self._files.logs / f"{DASHBOARD}.log",
        )

    async def _has_dashboard_address(self) -> bool:
        return read_dashboard_address(self._files) is not None


def make_credentials(command: str, pki: Pki) -> KeyPair:
    """Return the credentials of a process of Tidegate, whose user has the rights that the chart gives it."""
    return pki.issue_client(f"tidegate-{command}", user=objects.USERS[command])


def write_kubeconfig(command: str, pki: Pki, server: str, path: Path) -> Path:
    """Write the kubeconfig of a process of Tidegate for `server`, and return its path."""
    return pki.write_kubeconfig(path, server=server, credentials=make_credentials(command, pki))


def tidegate_process(
    command: str, kubeconfig: Path, log: Path, environment: Mapping[str, str], *, name: str = ""
) -> ChildProcess:
    """Return the process `tidegate <command>`, as in a pod of the chart but on loopback.

    `name` distinguishes replicas.
    """
    common = {
        "KUBECONFIG": str(kubeconfig),
        "POD_NAME": f"tidegate-{name or command}",
        "POD_NAMESPACE": objects.SYSTEM_NAMESPACE,
        "TIDEGATE_RELEASE": objects.RELEASE,
        "TIDEGATE_LISTEN_ADDRESS": LOOPBACK,
    }
    subcommand = ["serve"] if command == "xds" else []
    arguments = [sys.executable, "-m", "tidegate", command, *subcommand]
    return ChildProcess(name or command, arguments, log=log, environment={**common, **environment})


def make_agent_certificates(pki: Pki, folder: Path) -> Path:
    """Return the folder of the client certificate for agents, laid out as the chart's Secret is mounted.

    Creates it unless it exists.
    """
    if folder.exists():
        return folder  # restored: pods carry the authority that was in it
    folder.mkdir(mode=0o700)
    key_pair = pki.issue_client("tidegate-agents", user=objects.USERS["controllers"])
    for name, path in (
        ("ca.crt", pki.authority.certificate),
        ("tls.crt", key_pair.certificate),
        ("tls.key", key_pair.key),
    ):
        (folder / name).write_bytes(path.read_bytes())
        (folder / name).chmod(0o600)
    return folder


def read_dashboard_address(files: StateDir) -> str | None:
    """Return the newest address that the dashboard has printed, or None."""
    log = files.logs / f"{DASHBOARD}.log"
    if not log.exists():
        return None
    addresses = [line for line in log.read_text().splitlines() if line.startswith("http://")]
    return addresses[-1] if addresses else None


async def _is_answering(port: int, path: str) -> bool:
    url = f"http://{LOOPBACK}:{port}{path}"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            return answer.status == 200
    except (OSError, aiohttp.ClientError, TimeoutError):
        return False


async def _was_accepted(call: Awaitable[object]) -> bool:
    try:
        await call
    except RefusedError as error:
        if error.status not in _RETRYABLE_STATUSES:
            raise
        return False
    except (OSError, aiohttp.ClientError, TimeoutError):
        return False
    return True


async def serves_our_kinds(api: ApiServerClient, root: Path) -> bool:
    """Return whether the API server serves all our kinds.

    A CRD is served a moment after it was accepted; until then the API server answers 404, then 429.
    """
    for path, _ in objects.read_crds(root):
        plural = path.rpartition("/")[2].partition(".")[0]
        try:
            if await api.get(f"{objects.API_PATH}/{plural}") is None:
                return False
        except RefusedError:
            return False
    return True
