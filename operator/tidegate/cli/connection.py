"""Connect one command to the API server. Light on imports, because every command is declared with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from tidegate.cli.options import KubeOptions

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient

_REQUEST_TIMEOUT: Final = timedelta(seconds=30)


@asynccontextmanager
async def open_client(options: KubeOptions) -> AsyncGenerator[tuple[KubeClient, str]]:
    """Connect to the API server; yield the client and the namespace for commands that name none.

    Raises PermanentError when there are no credentials.
    """
    from tidegate.kube.client import ClientSettings, KubeClient
    from tidegate.kube.kubeconfig import find_kubeconfig, read_default_namespace

    _log_to_stderr()
    settings = ClientSettings(
        field_manager="tidegate-cli",
        user_agent="tidegate-cli",
        request_timeout=_REQUEST_TIMEOUT,
        impersonated_user=options.acting_for,
    )
    kubeconfig = options.kubeconfig or find_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=options.context) as client:
        yield client, options.namespace or read_default_namespace(kubeconfig, options.context)


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
