"""`tidegate xds`: the same objects and pods as the controllers see, as configuration for the gateways."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.planning.fleet import backend_of_pod, fleet_state
from tidegate.planning.pods import pod_view
from tidegate.processes.caches import report_sync, start_watches, synced
from tidegate.processes.lifecycle import terminated, until
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate.routing import planner
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.fleet import FleetState
from tidegate.routing.snapshot import SnapshotBuilder
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.settings import Settings
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.ledger import AckLedger
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.report_server import report_application
from tidegate.xds.server import XdsServer

_GATHER_S: Final = 0.01
"""Changes that come this close together, as in a rollout, are one snapshot."""


class Sources:
    """The caches that routing is made from."""

    def __init__(self) -> None:
        self.inferences = Parsed(Inference, ObjectStore(kinds.INFERENCE))
        self.features = Parsed(FeatureCompute, ObjectStore(kinds.FEATURE_COMPUTE))
        self.accesses = Parsed(ModelAccess, ObjectStore(kinds.MODEL_ACCESS))
        self.pods = ObjectStore(kinds.POD)

    def stores(self) -> tuple[ObjectStore, ...]:
        """Every cache."""
        return self.inferences.store, self.features.store, self.accesses.store, self.pods

    def fleet(self) -> FleetState:
        """What routing starts from, at this moment."""
        pods = []
        for body in self.pods:
            metadata = body["metadata"]
            backend = backend_of_pod(metadata["namespace"], metadata.get("labels") or {})
            if backend is not None:
                pods.append((backend, pod_view(body)))
        return fleet_state(self.accesses.all(), self.inferences.all(), self.features.all(), pods)


@dataclass(frozen=True, slots=True)
class Publisher:
    """Rebuilds the snapshot whenever a cache has changed."""

    sources: Sources
    cache: SnapshotCache
    builder: SnapshotBuilder
    metrics: XdsMetrics

    async def run(self) -> None:
        """Never pushes before every cache is full: an empty snapshot would empty the gateways."""
        changed = asyncio.Event()
        for store in self.sources.stores():
            store.subscribe(lambda _key: changed.set())
        await synced(self.sources.stores())
        while True:
            changed.clear()
            started = time.perf_counter()
            self.cache.set(self.builder.build(planner.plan(self.sources.fleet())))
            self.metrics.build_seconds.observe(time.perf_counter() - started)
            await changed.wait()
            await asyncio.sleep(_GATHER_S)


async def run_xds(settings: Settings, kubeconfig: Path | None) -> None:
    """Runs until told to stop. Raises PermanentError when there are no credentials for the API server."""
    registry, probes, sources, cache = CollectorRegistry(), Probes(), Sources(), SnapshotCache()
    metrics, ledger = XdsMetrics(registry), AckLedger(cache)
    report_sync(probes, sources.stores())
    probes.add_readiness("snapshot", lambda: None if cache.snapshot else "no snapshot yet")
    server = XdsServer(cache, ledger, metrics)
    publisher = Publisher(sources, cache, SnapshotBuilder(ListenerSettings()), metrics)
    client_settings = ClientSettings(field_manager="tidegate-xds", user_agent="tidegate-xds")
    async with (
        await KubeClient.connect(client_settings, kubeconfig=kubeconfig) as client,
        ProbeServer(probes, registry).serve(host="0.0.0.0", port=settings.probe_port),  # noqa: S104
    ):

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                *custom, pods = sources.stores()
                start_watches(tasks, client, custom)
                start_watches(tasks, client, [pods], selector=f"{MANAGED_BY}={MANAGER}")
                tasks.create_task(publisher.run())
                tasks.create_task(_serve_report(ledger, settings.report_port))
                await synced(sources.stores())
                await server.start(f"0.0.0.0:{settings.xds_port}")

        try:
            await until(terminated(), work())
        finally:
            await server.stop()


async def _serve_report(ledger: AckLedger, port: int) -> None:
    runner = web.AppRunner(report_application(ledger), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
