"""Connect one command to the API server. Light on imports, because every command is declared with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from tidegate.cli.cluster_options import ClusterOptions
from tidegate.cli.options import KubeOptions

if TYPE_CHECKING:
    from tidegate.kube.client import ClientSettings, KubeClient

_REQUEST_TIMEOUT: Final = timedelta(seconds=30)
_LIST_TIMEOUT: Final = timedelta(minutes=1)


@asynccontextmanager
async def open_client(options: KubeOptions) -> AsyncGenerator[tuple[KubeClient, str]]:
    """Connect to the API server; yield the client and the namespace for commands that name none.

    Raises PermanentError when there are no credentials.
    """
    from tidegate.kube.client import KubeClient
    from tidegate.kube.kubeconfig import find_kubeconfig, read_default_namespace

    _log_to_stderr()
    cluster = options.cluster
    settings = make_client_settings(cluster, "tidegate-cli")
    kubeconfig = cluster.kubeconfig or find_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=cluster.context) as client:
        yield client, options.namespace or read_default_namespace(kubeconfig, cluster.context)


def make_client_settings(cluster: ClusterOptions, component: str) -> ClientSettings:
    """Return the settings of a client with the user and the time limit of the options.

    `component` is the user agent, and the field manager of what the client writes.
    """
    from tidegate.kube.client import ClientSettings
    from tidegate.kube.transport import ImpersonatedUser

    return ClientSettings(
        field_manager=component,
        user_agent=component,
        request_timeout=cluster.request_timeout or _REQUEST_TIMEOUT,
        list_timeout=cluster.request_timeout or _LIST_TIMEOUT,
        impersonated=ImpersonatedUser(cluster.acting_for, cluster.groups) if cluster.acting_for else None,
    )


def _log_to_stderr() -> None:
    """Send warnings and errors of lower layers to stderr, because answers go to stdout."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            processors=[_echo_event], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
        )


def _echo_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
    from structlog import DropEvent

    facts = "".join(f", {name} {value}" for name, value in event.items() if name != "event")
    typer.echo(f"tidegate: {event['event']}{facts}", err=True)
    raise DropEvent
