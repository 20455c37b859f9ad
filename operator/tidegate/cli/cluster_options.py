"""Declare once the options by which commands choose a cluster, a user and a time limit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate.cli.duration_option import parse_duration_option

_PARAMETER: Final = "cluster"
_PANEL: Final = "Cluster and user"

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        help="Cluster to connect to; default $KUBECONFIG, then ~/.kube/config.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", help="Context of the kubeconfig; default its current one.", rich_help_panel=_PANEL
    ),
]
ActingFor = Annotated[str, typer.Option("--as", help="User to impersonate.", rich_help_panel=_PANEL)]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--as-group", help="Group to impersonate with --as; may be repeated.", rich_help_panel=_PANEL
    ),
]
RequestTimeout = Annotated[
    str | None,
    typer.Option(
        "--request-timeout",
        help="Longest wait for a response of the API server, like 10s; default 30s, and 1m for lists.",
        rich_help_panel=_PANEL,
    ),
]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster, the user and the time limit of a command's requests."""

    kubeconfig: Path | None = None
    context: str | None = None
    acting_for: str = ""
    groups: tuple[str, ...] = ()
    request_timeout: timedelta | None = None
    """None means the defaults."""


def parse_cluster_options(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    acting_for: ActingFor = "",
    groups: Groups = None,
    request_timeout: RequestTimeout = None,
) -> ClusterOptions:
    """Parse the values of the options. Raises BadParameter for a wrong one."""
    if groups and not acting_for:
        message = "--as-group needs --as, the user to impersonate"
        raise typer.BadParameter(message)
    timeout = (
        None
        if request_timeout is None
        else parse_duration_option(f"--request-timeout {request_timeout}", request_timeout)
    )
    return ClusterOptions(kubeconfig, context, acting_for, tuple(groups or ()), timeout)


def with_cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `cluster` of a command by the options of `parse_cluster_options`.

    Typer reads the signature of what this returns, and the command gets the parsed ClusterOptions.
    """
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(parse_cluster_options, eval_str=True)
    parameters = [parameter for name, parameter in own.parameters.items() if name != _PARAMETER]
    parameters += shared.parameters.values()

    @functools.wraps(command)
    def run_command(**values: Any) -> None:
        options = {name: values.pop(name) for name in shared.parameters}
        command(**values, **{_PARAMETER: parse_cluster_options(**options)})

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run_command.__signature__ = own.replace(parameters=keywords)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run_command
