"""Connect one command to the API server, and find the default namespace of its context."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog
import typer
import yaml

from tidegate.cli.options import KubeOptions
from tidegate.cli.xds_servers import find_kubeconfig
from tidegate.errors import PermanentError
from tidegate.kube.client import ClientSettings, KubeClient

_REQUEST_TIMEOUT: Final = timedelta(seconds=30)
_POD_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@asynccontextmanager
async def open_client(options: KubeOptions) -> AsyncGenerator[tuple[KubeClient, str]]:
    """Connect to the API server; yield the client and the namespace for commands that name none.

    Raises PermanentError when there are no credentials.
    """
    _log_to_stderr()
    settings = ClientSettings(
        field_manager="tidegate-cli",
        user_agent="tidegate-cli",
        request_timeout=_REQUEST_TIMEOUT,
        impersonated_user=options.acting_for,
    )
    kubeconfig = options.kubeconfig or find_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=options.context) as client:
        yield client, read_default_namespace(kubeconfig, options.context)


def read_default_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """Return the namespace of the kubeconfig's context, or of the pod; otherwise `default`."""
    if kubeconfig is None:
        return _POD_NAMESPACE_FILE.read_text().strip() if _POD_NAMESPACE_FILE.exists() else "default"
    try:
        content: Any = yaml.safe_load(kubeconfig.read_text())
        name = context or content.get("current-context")
        contexts = {entry["name"]: entry["context"] for entry in content.get("contexts") or ()}
        return str(contexts.get(name, {}).get("namespace") or "default")
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        message = f"cannot read the context's namespace from kubeconfig {kubeconfig}: {error}"
        raise PermanentError(message) from error


def _log_to_stderr() -> None:
    """Send warnings and errors of lower layers to stderr, because answers go to stdout."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[_echo_event], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
        )


def _echo_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
    facts = "".join(f", {name} {value}" for name, value in event.items() if name != "event")
    typer.echo(f"tidegate: {event['event']}{facts}", err=True)
    raise structlog.DropEvent
