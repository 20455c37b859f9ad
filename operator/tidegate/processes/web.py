"""`tidegate web`: the dashboard and the REST API over caches of our kinds."""

import asyncio
import socket
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from cryptography.fernet import Fernet
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tidegate.errors import PermanentError
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.store import ObjectStore
from tidegate.resources.names import MANAGED_SELECTOR
from tidegate.runtime.caches import report_sync, start_watches, stores_within, wait_until_settled
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.lifecycle import run_until
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_left_out
from tidegate.runtime.spans import export_spans
from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.prometheus_api import PrometheusApi
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.web.access.authenticators import Authenticator, AuthMode, ProxyAuthenticator, TokenAuthenticator
from tidegate.web.access.sessions import SessionSeal
from tidegate.web.access.tokens import TokenReviewer
from tidegate.web.app import create_app
from tidegate.web.app_state import AppState, InstallationRef, PrometheusSources, make_app_state
from tidegate.web.caches import FleetCaches
from tidegate.web.links import ToolLinks
from tidegate.web.metrics import RequestMetricsMiddleware, WebMetrics

_CLIENT = ClientSettings(field_manager="tidegate-web", user_agent="tidegate-web")


async def run_web(settings: ControlPlaneSettings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, fleet = CollectorRegistry(), Probes(), FleetCaches()
    process, metrics = ProcessMetrics(registry, "web"), WebMetrics(registry)
    watched = (*fleet.list_stores(), fleet.pods)
    report_sync(probes, watched)
    show_left_out(registry, watched)
    seal = SessionSeal(_load_key(settings.web_key_file))
    async with (
        export_spans(settings, "web", pod, registry) as spans,
        await KubeClient.connect(_CLIENT, kubeconfig=kubeconfig, observer=process.count_write) as client,
        await KubeClient.connect(
            _CLIENT, kubeconfig=kubeconfig, anonymous=True, observer=process.count_write
        ) as anonymous,
        ProbeServer(probes, registry).serve(host=settings.listen_address, port=settings.probe_port),
        measure_event_loop(registry),
    ):
        parts = make_app_state(
            fleet,
            make_sources(settings.prometheus_url),
            _make_authenticator(settings, client, anonymous, seal),
            seal,
            InstallationRef(settings.release, pod.namespace, settings.web_controllers),
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            all_namespaces=not settings.watch_namespaces,
            links=ToolLinks(settings.web_grafana_url, settings.web_logs_url),
        )
        app = create_app(parts, allowed_hosts(settings, pod.namespace), spans.provider)
        app.add_middleware(RequestMetricsMiddleware, metrics=metrics)
        # uvicorn takes SIGTERM and SIGINT itself, and returns when it has closed its connections.
        shown = settings.watch_namespaces
        await run_until(
            serve_app(app, host=settings.listen_address, port=settings.web_port),
            fill_caches(parts, client, stores_within(fleet.list_stores(), shown), namespaces=shown),
        )


async def serve_app(
    app: FastAPI, listener: socket.socket | None = None, *, host: str = "", port: int = 0
) -> None:
    """Serve on `listener`, or on a host's port, until a signal; open connections get a second to close."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve(None if listener is None else [listener])


async def fill_caches(
    parts: AppState,
    client: KubeClient,
    stores: Iterable[ObjectStore],
    *,
    namespaces: Collection[str] = (),
    filled: asyncio.Event | None = None,
) -> None:
    """Fill the caches of the fleet and of its pods, and keep the views that are derived from them current.

    With `namespaces`, cache those only. `filled` is set once each cache has synced or was refused.
    """
    async with asyncio.TaskGroup() as tasks:
        reflectors = (
            *start_watches(tasks, client, stores, namespaces=namespaces),
            *start_watches(
                tasks, client, (parts.fleet.pods,), namespaces=namespaces, selector=MANAGED_SELECTOR
            ),
        )
        for plural, listing in parts.listings.items():
            tasks.create_task(listing.refresh_forever(), name=f"rows-{plural}")
        if parts.nodes.watched:  # the pods of some namespaces do not show what is free on a node
            tasks.create_task(parts.nodes.watch_nodes(client), name="nodes")
        if parts.traffic.is_configured:
            tasks.create_task(
                parts.traffic.refresh_forever(lambda: parts.changes.publish("traffic")), name="traffic"
            )
        await wait_until_settled(reflectors)
        if filled is not None:
            filled.set()


def make_sources(url: str) -> PrometheusSources:
    """Return Prometheus as the source of traffic and history, if its URL is set."""
    if not url:
        return PrometheusSources()
    return PrometheusSources(
        Prometheus(url).read_traffic, PrometheusApi(url).query_range, PrometheusRecording(url)
    )


def allowed_hosts(settings: ControlPlaneSettings, namespace: str) -> frozenset[str]:
    """Return the dashboard's host names: its Service's, loopback's, and those of the settings."""
    service = f"{settings.release}-web"
    service_names = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    return frozenset({"localhost", "127.0.0.1", "[::1]", *service_names, *settings.web_hosts})


def _make_authenticator(
    settings: ControlPlaneSettings, client: KubeClient, anonymous: KubeClient, seal: SessionSeal
) -> Authenticator:
    if settings.web_auth == AuthMode.PROXY:
        if settings.web_proxy_secret_file is None:
            message = "web.auth.mode is proxy: name the file with the proxy's secret in TIDEGATE_WEB_PROXY_SECRET_FILE"
            raise PermanentError(message)
        secret = _read_file(settings.web_proxy_secret_file).decode().strip()
        return ProxyAuthenticator(
            client, secret, users=settings.web_proxy_users, groups=settings.web_proxy_groups
        )
    return TokenAuthenticator(TokenReviewer(client, time.monotonic), anonymous, seal)


def _load_key(path: Path | None) -> bytes:
    """Return the key from the file, or a random one.

    With several replicas a random key would make users sign in again for each of them.
    """
    key = Fernet.generate_key() if path is None else _read_file(path).strip()
    try:
        Fernet(key)
    except ValueError as error:
        message = f"{path} has no Fernet key: write 32 random bytes in URL-safe base64 to it"
        raise PermanentError(message) from error
    return key


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"cannot read {path}: {error}"
        raise PermanentError(message) from error
