"""`tidegate dashboard`: the dashboard on the user's machine, with the rights of their kubeconfig.

It needs no installation of the dashboard in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import tempfile
import time
import webbrowser
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import typer
from cryptography.fernet import Fernet
from fastapi import FastAPI

from tidegate.cli.cluster_options import ClusterOptions
from tidegate.cli.connection import make_client_settings
from tidegate.errors import PermanentError, TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.kubeconfig import find_kubeconfig, read_default_namespace
from tidegate.processes.web import fill_caches, make_sources, serve_app
from tidegate.recorded.record import RECORD, read_fleet
from tidegate.recorded.server import make_kubeconfig, serve_recorded_cluster
from tidegate.runtime.lifecycle import run_until
from tidegate.services.installation import find_release
from tidegate.web.access.authenticators import LocalAuthenticator
from tidegate.web.access.identity import Identity
from tidegate.web.access.rights import AccessReviews, Action
from tidegate.web.access.sessions import SessionSeal
from tidegate.web.app import create_app
from tidegate.web.app_state import InstallationRef, make_app_state
from tidegate.web.caches import FleetCaches

_WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_LOOPBACK = "127.0.0.1"
_QUIET_S = 2.0
"""A start that takes longer prints a message."""


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """The cluster, the identity, and the port of the dashboard."""

    cluster: ClusterOptions
    namespace: str | None = None
    """Namespace to show; None: all, or the context's namespace if the user may not list all."""
    installation_namespace: str | None = None
    """Namespace of the installation; None: the only one."""
    port: int = 0
    browser: bool = True
    prometheus: str = ""
    controllers: str = ""
    """host:port of the controllers' probes if they do not run as pods."""


async def run_dashboard(options: DashboardOptions) -> None:
    """Run until Ctrl-C. Raises TidegateError if the cluster does not answer, or the port is taken."""
    # The terminal shows only the address. A refused watch is visible as an empty list, with its reason.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    settings = make_client_settings(options.cluster, "tidegate-web")
    kubeconfig, context = options.cluster.kubeconfig or find_kubeconfig(), options.cluster.context
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=context) as client:
        identity = await _read_identity(client)
        shown = options.namespace
        if shown is None:
            shown = await _choose_namespace(client, identity, read_default_namespace(kubeconfig, context))
        release, namespace = await find_release(client, options.installation_namespace)
        ticket, seal = secrets.token_urlsafe(32), SessionSeal(Fernet.generate_key())
        parts = make_app_state(
            FleetCaches(),
            make_sources(options.prometheus),
            LocalAuthenticator(client, identity, ticket, seal),
            seal,
            InstallationRef(release, namespace, options.controllers),
            now=lambda: datetime.now(UTC),
            monotonic=time.monotonic,
            all_namespaces=not shown,
        )
        app = create_app(parts, {_LOOPBACK, "localhost"})
        filled = asyncio.Event()
        with _open_listener(options.port) as listener:
            entrance = f"http://{_LOOPBACK}:{listener.getsockname()[1]}/enter?ticket={ticket}"
            welcome = f"the dashboard{_namespace_suffix(shown)}, with the rights of {identity.user}; Ctrl-C ends it:\n{entrance}"
            await run_until(
                _serve_when_filled(app, listener, entrance, welcome, filled, options),
                fill_caches(
                    parts,
                    client,
                    parts.fleet.list_stores(),
                    namespaces=(shown,) if shown else (),
                    filled=filled,
                ),
            )


async def run_recorded_dashboard(options: DashboardOptions, record: Path | None = None) -> None:
    """Run the dashboard over a recorded fleet, as if it had been recorded now, until Ctrl-C.

    Without `record`, it is the fleet that this package has. Raises PermanentError if it cannot be read.
    """
    fleet = read_fleet(record or RECORD, now=datetime.now(UTC))
    async with serve_recorded_cluster(fleet) as address:
        with tempfile.TemporaryDirectory(prefix="tidegate-recorded-") as folder:
            kubeconfig = Path(folder) / "kubeconfig"
            kubeconfig.write_text(make_kubeconfig(address))
            await run_dashboard(
                replace(
                    options,
                    cluster=ClusterOptions(kubeconfig),
                    prometheus=f"http://{address}",
                    controllers=address,
                )
            )


async def _choose_namespace(client: KubeClient, identity: Identity, default: str) -> str:
    """Return the namespace to show: empty for all, or `default` if the user may not list all."""
    rights = AccessReviews(lambda _: client, time.monotonic)
    if await rights.is_allowed(identity, Action("list", INFERENCE.plural)):
        return ""
    typer.echo(
        f"you may not list Inferences in all namespaces: those of {default} are shown; another with -n",
        err=True,
    )
    return default


def _namespace_suffix(namespace: str) -> str:
    return f" of namespace {namespace}" if namespace else ""


async def _serve_when_filled(
    app: FastAPI,
    listener: socket.socket,
    entrance: str,
    welcome: str,
    filled: asyncio.Event,
    options: DashboardOptions,
) -> None:
    """Serve once all caches have synced: a partial view of the cluster is a wrong one."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(filled.wait(), _QUIET_S)
    if not filled.is_set():
        typer.echo("reading the cluster's objects …", err=True)
        await filled.wait()
    typer.echo(welcome)
    if options.browser and sys.stdout.isatty():
        loop = asyncio.get_running_loop()
        # In a thread: a text browser blocks until it has the page, which this loop serves.
        loop.call_later(0.5, lambda: loop.run_in_executor(None, webbrowser.open, entrance))
    await serve_app(app, listener)


def _open_listener(port: int) -> socket.socket:
    try:
        return socket.create_server((_LOOPBACK, port))
    except OSError as error:
        message = f"cannot listen on {_LOOPBACK}:{port}: {error.strerror}; choose another with --port"
        raise PermanentError(message) from error


async def _read_identity(client: KubeClient) -> Identity:
    """Return the user of the kubeconfig, as the API server sees it."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    try:
        answer = await client.post_review(_WHO_AM_I, body)
    except TidegateError as error:
        message = f"the API server did not identify you: {error}"
        raise PermanentError(message) from error
    user: dict[str, Any] = (answer.get("status") or {}).get("userInfo") or {}
    return Identity(user.get("username", ""), tuple(user.get("groups") or ()))
