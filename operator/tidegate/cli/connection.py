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

from tidegate.cli.options import Where
from tidegate.cli.servers import usual_kubeconfig
from tidegate.errors import PermanentError
from tidegate.kube.client import ClientSettings, KubeClient

_PATIENCE: Final = timedelta(seconds=30)
_OF_THE_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@asynccontextmanager
async def connected(where: Where) -> AsyncGenerator[tuple[KubeClient, str]]:
    """Connect to the API server; yield the client and the namespace for commands that name none.

    Raises PermanentError when there are no credentials.
    """
    _log_to_stderr()
    settings = ClientSettings(
        field_manager="tidegate-cli",
        user_agent="tidegate-cli",
        request_timeout=_PATIENCE,
        acting_for=where.acting_for,
    )
    kubeconfig = where.kubeconfig or usual_kubeconfig()
    async with await KubeClient.connect(settings, kubeconfig=kubeconfig, context=where.context) as client:
        yield client, usual_namespace(kubeconfig, where.context)


def usual_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """Return the namespace of the kubeconfig's context, or of the pod; otherwise `default`."""
    if kubeconfig is None:
        return _OF_THE_POD.read_text().strip() if _OF_THE_POD.exists() else "default"
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
            processors=[_told], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
        )


def _told(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
    facts = "".join(f", {name} {value}" for name, value in event.items() if name != "event")
    typer.echo(f"tidegate: {event['event']}{facts}", err=True)
    raise structlog.DropEvent
