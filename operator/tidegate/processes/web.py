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
from tidegate.processes.caches import report_sync, settled, start_watches, stores_within
from tidegate.processes.lifecycle import until
from tidegate.processes.spans import exported_spans
from tidegate.resources.names import OURS
from tidegate.runtime.event_loop import measure_event_loop
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.runtime.process_metrics import ProcessMetrics, show_left_out
from tidegate.settings import PodIdentity, Settings
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.prometheus_api import PrometheusApi
from tidegate.web.access.door import AuthMode, Door, ProxyDoor, TokenDoor
from tidegate.web.access.sessions import Seal
from tidegate.web.access.tokens import Tokens
from tidegate.web.app import create_app
from tidegate.web.fleet import Fleet
from tidegate.web.metrics import Counted, WebMetrics
from tidegate.web.parts import Installation, Parts, Sources, make_parts

_CLIENT = ClientSettings(field_manager="tidegate-web", user_agent="tidegate-web")


async def run_web(settings: Settings, pod: PodIdentity, kubeconfig: Path | None) -> None:
    """Run until the process is told to stop. Raises PermanentError if there are no credentials for the API server."""
    registry, probes, fleet = CollectorRegistry(), Probes(), Fleet()
    process, metrics = ProcessMetrics(registry, "web"), WebMetrics(registry)
    watched = (*fleet.stores(), fleet.pods)
    report_sync(probes, watched)
    show_left_out(registry, watched)
    seal = Seal(_key(settings.web_key_file))
    async with (
        exported_spans(settings, "web", pod, registry) as spans,
        await KubeClient.connect(_CLIENT, kubeconfig=kubeconfig, observer=process.count_write) as client,
        await KubeClient.connect(
            _CLIENT, kubeconfig=kubeconfig, anonymous=True, observer=process.count_write
        ) as anonymous,
        ProbeServer(probes, registry).serve(host=settings.listen_address, port=settings.probe_port),
        measure_event_loop(registry),
    ):
        parts = make_parts(
            fleet,
            sources(settings.prometheus_url),
            _door(settings, client, anonymous, seal),
            seal,
            Installation(settings.release, pod.namespace, settings.web_controllers),
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            all_namespaces=not settings.watch_namespaces,
        )
        app = create_app(parts, hosts(settings, pod.namespace), spans.provider)
        app.add_middleware(Counted, metrics=metrics)
        # uvicorn takes SIGTERM and SIGINT itself, and returns when it has closed its connections.
        shown = settings.watch_namespaces
        await until(
            served(app, host=settings.listen_address, port=settings.web_port),
            keep(parts, client, stores_within(fleet.stores(), shown), namespaces=shown),
        )


async def served(
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


async def keep(
    parts: Parts,
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
            *start_watches(tasks, client, (parts.fleet.pods,), namespaces=namespaces, selector=OURS),
        )
        for plural, listing in parts.listings.items():
            tasks.create_task(listing.keep(), name=f"rows-{plural}")
        if parts.nodes.watched:  # the pods of some namespaces do not show what is free on a node
            tasks.create_task(parts.nodes.keep(client), name="nodes")
        if parts.traffic.known:
            tasks.create_task(parts.traffic.keep(lambda: parts.changes.tell("traffic")), name="traffic")
        await settled(reflectors)
        if filled is not None:
            filled.set()


def sources(url: str) -> Sources:
    """Return Prometheus as the source of traffic and history, if its URL is set."""
    if not url:
        return Sources()
    return Sources(Prometheus(url).traffic, PrometheusApi(url).query_range)


def hosts(settings: Settings, namespace: str) -> frozenset[str]:
    """Return the dashboard's host names: its Service's, loopback's, and those of the settings."""
    service = f"{settings.release}-web"
    service_names = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    return frozenset({"localhost", "127.0.0.1", "[::1]", *service_names, *settings.web_hosts})


def _door(settings: Settings, client: KubeClient, anonymous: KubeClient, seal: Seal) -> Door:
    if settings.web_auth == AuthMode.PROXY:
        if settings.web_proxy_secret_file is None:
            message = "web.auth.mode is proxy: name the file with the proxy's secret in TIDEGATE_WEB_PROXY_SECRET_FILE"
            raise PermanentError(message)
        secret = _read(settings.web_proxy_secret_file).decode().strip()
        return ProxyDoor(client, secret, users=settings.web_proxy_users, groups=settings.web_proxy_groups)
    return TokenDoor(Tokens(client, time.monotonic), anonymous, seal)


def _key(path: Path | None) -> bytes:
    """Return the key from the file, or a random one.

    With several replicas a random key would make users sign in again for each of them.
    """
    key = Fernet.generate_key() if path is None else _read(path).strip()
    try:
        Fernet(key)
    except ValueError as error:
        message = f"{path} has no Fernet key: write 32 random bytes in URL-safe base64 to it"
        raise PermanentError(message) from error
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"cannot read {path}: {error}"
        raise PermanentError(message) from error
