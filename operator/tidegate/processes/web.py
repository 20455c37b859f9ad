"""`tidegate web`: the dashboard and the REST API over caches of our kinds."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.processes.caches import report_sync, start_watches
from tidegate.processes.lifecycle import until
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.settings import Settings
from tidegate.telemetry.prometheus import Prometheus, Traffic
from tidegate.web.app import create_app


class CachedFleet:
    """The objects as the caches hold them; implements web.read_model.Fleet."""

    def __init__(self) -> None:
        self._inferences = Parsed(Inference, ObjectStore(kinds.INFERENCE))
        self._features = Parsed(FeatureCompute, ObjectStore(kinds.FEATURE_COMPUTE))
        self._accesses = Parsed(ModelAccess, ObjectStore(kinds.MODEL_ACCESS))

    def stores(self) -> tuple[ObjectStore, ...]:
        """Every cache."""
        return self._inferences.store, self._features.store, self._accesses.store

    def inferences(self) -> tuple[Inference, ...]:
        """See Fleet."""
        return self._inferences.all()

    def accesses(self) -> tuple[ModelAccess, ...]:
        """See Fleet."""
        return self._accesses.all()

    def features(self) -> tuple[FeatureCompute, ...]:
        """See Fleet."""
        return self._features.all()


async def run_web(settings: Settings, kubeconfig: Path | None) -> None:
    """Runs until told to stop. Raises PermanentError when there are no credentials for the API server."""
    registry, probes, fleet = CollectorRegistry(), Probes(), CachedFleet()
    report_sync(probes, fleet.stores())
    prometheus = Prometheus(settings.prometheus_url) if settings.prometheus_url else None

    async def traffic() -> Mapping[str, Traffic]:
        return await prometheus.traffic() if prometheus is not None else {}

    app = create_app(fleet, traffic)
    config = uvicorn.Config(
        app,
        host="0.0.0.0",  # noqa: S104
        port=settings.web_port,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    client_settings = ClientSettings(field_manager="tidegate-web", user_agent="tidegate-web")
    async with (
        await KubeClient.connect(client_settings, kubeconfig=kubeconfig) as client,
        ProbeServer(probes, registry).serve(host="0.0.0.0", port=settings.probe_port),  # noqa: S104
    ):

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                start_watches(tasks, client, fleet.stores())

        # uvicorn takes SIGTERM and SIGINT itself, and returns when it has closed its connections.
        await until(uvicorn.Server(config).serve(), work())
