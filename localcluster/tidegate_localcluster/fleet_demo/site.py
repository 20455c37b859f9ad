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
from tidegate_localcluster.fleet_demo.api import Api, RefusedError, several
from tidegate_localcluster.fleet_demo.simulation import day_of
from tidegate_localcluster.fleet_demo.store import FilledFleet
from tidegate_localcluster.parts import Parts
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.process import Process
from tidegate_localcluster.state import Forward, Plan, StateDir
from tidegate_localcluster.supplies import source_root

_UNUSED: Final = (
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
        f"--controllers={','.join(f'-{name}' for name in _UNUSED)}",
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
    f"/apis/coordination.k8s.io/v1/namespaces/{objects.SYSTEM}/leases/{objects.RELEASE}-controllers"
)
_RETRIED: Final = frozenset({403, 404, 429, 503})

DASHBOARD: Final = "dashboard"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Said:
    """Callbacks for progress: `step` ends a step, `progress` reports within one."""

    step: Say
    progress: Say


@dataclass(frozen=True, slots=True)
class Pool:
    """The pool's status; the decision itself may have a thousand moves and is not read."""

    occupied_slices: int = 0
    """Slices with a pod."""
    decision: str = ""
    """Name of the newest decision."""
    settled: bool = False
    """Whether there is a decision and it is applied."""

    @classmethod
    async def read(cls, api: Api) -> Self:
        """Read the current status."""
        body: Mapping[str, Any] = await api.get(f"{objects.OURS}/computepools/{objects.POOL}") or {}
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

    def __init__(self, files: StateDir, plan: Plan, pki: Pki, parts: Parts, said: Said) -> None:
        """Start processes among `parts`, which stops them."""
        self._files, self._plan, self._pki, self._parts, self._progress = files, plan, pki, parts, said
        self._server = f"https://{LOOPBACK}:{plan.ports[Forward.APISERVER]}"
        self._root = source_root()
        self._day = day_of(files, plan)
        self._store = FilledFleet(plan.home or files.path, self._root, plan)
        self._restored = False

    def prepare(self) -> None:
        """Restore the objects of an earlier fleet of the same kind; called before the control plane starts."""
        self._restored = self._store.restore(self._files)
        if self._restored:
            self._progress.step("restored the filled fleet of an earlier run (--fresh fills it from scratch)")

    def start(self, control_plane: Mapping[str, int]) -> None:
        """Start the fleet, and return once the pool is filled and compute has moved.

        `control_plane` has the process ids of its parts. Raises LocalClusterError.
        """
        asyncio.run(self._start(control_plane))

    async def _start(self, control_plane: Mapping[str, int]) -> None:
        async with Api.of_administrator(self._server, self._pki) as api:
            if self._restored:
                await api.call("DELETE", _LEASE)  # its holder does not run any more
                self._parts.start(self._simulation())
            else:
                await self._install(api)
                self._parts.start(self._simulation())
                await self._populate(api)
            self._parts.start(self._tidegate("controllers"))
            await self._until(self._decides, "the allocator decides", SERVED_WITHIN_S)
            self._progress.step("controllers, and the stand-in for Prometheus")
            # Start the dashboard only now: two processes that start at once take twice as long.
            self._parts.start(self._dashboard())
            first = await self._filled(api)
            self._keep(control_plane["etcd"])
            self._day.begin()
            if self._plan.fleet is not None and self._plan.fleet.speed > 0:
                await self._moved(api, first)
            await self._until(self._open, "the dashboard answers", SERVED_WITHIN_S)
            self._progress.step("dashboard")

    def _keep(self, etcd: int) -> None:
        """Save the filled fleet; on failure the next run takes longer, and this one goes on."""
        try:
            self._store.keep(self._files, etcd)
        except (LocalClusterError, OSError) as error:
            self._progress.progress(f"the filled fleet cannot be saved: {error}")

    async def _install(self, api: Api) -> None:
        for manifests in (objects.definitions(self._root), objects.namespaces(), objects.around(self._root)):
            await several(partial(api.apply, path, body) for path, body in manifests)
        await self._until(
            lambda: served(api, self._root), "the API server serves Tidegate's kinds", SERVED_WITHIN_S
        )
        self._progress.step("kinds, rights and policies of the chart")

    async def _populate(self, api: Api) -> None:
        assert self._plan.fleet is not None  # noqa: S101  this site is of a fleet
        nodes = [objects.node(number) for number in range(self._plan.fleet.nodes)]
        await several(partial(api.create, "/api/v1/nodes", body) for body in nodes)
        self._progress.step(f"{len(nodes):,} simulated GPU nodes")
        models = objects.models_of(self._plan)
        await api.create(f"{objects.OURS}/computepools", objects.pool(len(models)))
        path = f"{objects.OURS}/namespaces/{objects.NAMESPACE}/inferences"
        await several(partial(api.create, path, objects.inference(model)) for model in models)
        self._progress.step(f"{len(models):,} Inferences in three tiers")
        gateways = f"/api/v1/namespaces/{objects.SYSTEM}/pods"
        # Refused until the namespace has its ServiceAccount.
        await self._until(
            lambda: _accepted(api.create(gateways, objects.gateway())),
            f"namespace {objects.SYSTEM} takes pods",
            SERVED_WITHIN_S,
        )

    async def _filled(self, api: Api) -> str:
        """Wait until the pool is filled, and return the name of the decision that filled it."""
        slices, reported_at, status = objects.slices_of(self._plan), time.monotonic(), Pool()

        async def is_filled() -> bool:
            nonlocal status, reported_at
            status = await Pool.read(api)
            if status.settled:
                return True
            if time.monotonic() - reported_at >= 2.0:
                reported_at = time.monotonic()
                self._progress.progress(f"{status.occupied_slices:,} of {slices:,} slices have a pod")
            return False

        await self._until(is_filled, "the pool is filled", FILLED_WITHIN_S)
        self._progress.step(f"the pool is filled: {status.occupied_slices:,} of {slices:,} slices have a pod")
        return status.decision

    async def _moved(self, api: Api, first: str) -> None:
        """Wait until a later decision moves something; a decision without moves does not count."""
        decision_name, count = first, 0

        async def has_moved() -> bool:
            nonlocal decision_name, count
            newest = (await Pool.read(api)).decision
            if newest != decision_name:
                decision = await api.get(f"{objects.OURS}/allocationdecisions/{newest}") or {}
                decision_name, count = newest, int(decision.get("spec", {}).get("moveCount", 0))
            return count > 0

        await self._until(has_moved, "compute moves with the load", MOVED_WITHIN_S)
        self._progress.step(
            f"the day has begun, and compute moves: {count} Inferences by decision {decision_name}"
        )

    async def _until(self, holds: Callable[[], Awaitable[bool]], what: str, timeout_s: float) -> None:
        """Wait until `holds`. Raises ProcessDiedError when a part exits, NotReadyError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not await holds():
            for process in self._parts.processes:
                process.check()
            if time.monotonic() > deadline:
                raise NotReadyError(f"not within {timeout_s:g} s: {what}; see {self._files.logs}")
            await asyncio.sleep(POLL_S)

    async def _decides(self) -> bool:
        """Return whether the controllers lead and the allocator has run for the pool."""
        return await _answers(self._plan.probes["controllers"], f"/allocation/{objects.POOL}")

    def _simulation(self) -> Process:
        return Process(
            "simulation",
            [sys.executable, "-m", "tidegate_localcluster.fleet_demo.simulation", self._files.path],
            log=self._files.logs / "simulation.log",
        )

    def _tidegate(self, name: str) -> Process:
        """Return `tidegate controllers` as in a pod of the chart."""
        ports = self._plan.ports
        environment = {
            "TIDEGATE_PROBE_PORT": str(self._plan.probes[name]),
            "TIDEGATE_PROMETHEUS_URL": f"http://{LOOPBACK}:{ports[Forward.PROMETHEUS]}",
            # The simulated gateways have no metrics page; our own process answers such requests with an error.
            "TIDEGATE_GATEWAY_METRICS_PORT": str(ports[Forward.PROMETHEUS]),
            "TIDEGATE_MODELS_HOST_PATH": "/models",
            "TIDEGATE_TLS_DIRECTORY": str(certificates(self._pki, self._files.data / "tls")),
        }
        kubeconfig = kubeconfig_of(name, self._pki, self._server, self._files.data / f"{name}.kubeconfig")
        return tidegate(name, kubeconfig, self._files.logs / f"{name}.log", environment)

    def _dashboard(self) -> Process:
        """Return the dashboard as a person runs it locally; the address that it prints authenticates."""
        ports = self._plan.ports
        options = {
            "--kubeconfig": str(self._files.kubeconfig),
            "--port": str(ports[Forward.DASHBOARD]),
            "--prometheus": f"http://{LOOPBACK}:{ports[Forward.PROMETHEUS]}",
            "--controllers": f"{LOOPBACK}:{self._plan.probes['controllers']}",
        }
        arguments = [argument for option in options.items() for argument in option]
        return Process(
            DASHBOARD,
            [sys.executable, "-m", "tidegate", "dashboard", "--no-browser", *arguments],
            log=self._files.logs / f"{DASHBOARD}.log",
        )

    async def _open(self) -> bool:
        return entrance(self._files) is not None


def credentials(command: str, pki: Pki) -> KeyPair:
    """Return the credentials of a process of Tidegate, whose user has the rights that the chart gives it."""
    return pki.client(f"tidegate-{command}", user=objects.USERS[command])


def kubeconfig_of(command: str, pki: Pki, server: str, path: Path) -> Path:
    """Write the kubeconfig of a process of Tidegate for `server`, and return its path."""
    return pki.write_kubeconfig(path, server=server, credentials=credentials(command, pki))


def tidegate(
    command: str, kubeconfig: Path, log: Path, environment: Mapping[str, str], *, name: str = ""
) -> Process:
    """Return the process `tidegate <command>`, as in a pod of the chart but on loopback.

    `name` distinguishes replicas.
    """
    common = {
        "KUBECONFIG": str(kubeconfig),
        "POD_NAME": f"tidegate-{name or command}",
        "POD_NAMESPACE": objects.SYSTEM,
        "TIDEGATE_RELEASE": objects.RELEASE,
        "TIDEGATE_LISTEN_ADDRESS": LOOPBACK,
    }
    arguments = [sys.executable, "-m", "tidegate", command]
    return Process(name or command, arguments, log=log, environment={**common, **environment})


def certificates(pki: Pki, folder: Path) -> Path:
    """Return the folder of the client certificate for agents, laid out as the chart's Secret is mounted.

    Creates it unless it exists.
    """
    if folder.exists():
        return folder  # restored: pods carry the authority that was in it
    folder.mkdir(mode=0o700)
    key_pair = pki.client("tidegate-agents", user=objects.USERS["controllers"])
    for name, path in (
        ("ca.crt", pki.authority.certificate),
        ("tls.crt", key_pair.certificate),
        ("tls.key", key_pair.key),
    ):
        (folder / name).write_bytes(path.read_bytes())
        (folder / name).chmod(0o600)
    return folder


def entrance(files: StateDir) -> str | None:
    """Return the newest address that the dashboard has printed, or None."""
    log = files.logs / f"{DASHBOARD}.log"
    if not log.exists():
        return None
    addresses = [line for line in log.read_text().splitlines() if line.startswith("http://")]
    return addresses[-1] if addresses else None


async def _answers(port: int, path: str) -> bool:
    url = f"http://{LOOPBACK}:{port}{path}"
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            return answer.status == 200
    except (OSError, aiohttp.ClientError, TimeoutError):
        return False


async def _accepted(call: Awaitable[object]) -> bool:
    try:
        await call
    except RefusedError as error:
        if error.status not in _RETRIED:
            raise
        return False
    except (OSError, aiohttp.ClientError, TimeoutError):
        return False
    return True


async def served(api: Api, root: Path) -> bool:
    """Return whether the API server serves all our kinds.

    A CRD is served a moment after it was accepted; until then the API server answers 404, then 429.
    """
    for path, _ in objects.definitions(root):
        plural = path.rpartition("/")[2].partition(".")[0]
        try:
            if await api.get(f"{objects.OURS}/{plural}") is None:
                return False
        except RefusedError:
            return False
    return True
