"""Declare the options that commands have in common, and print their reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidegate.cli.interrupts import run_async
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.api.messages.message import MessageLevel
    from tidegate.reports.report import Report

AnswerT = TypeVar("AnswerT")


class OutputFormat(StrEnum):
    """The output format."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class FailOn(StrEnum):
    """The lowest level of a finding that makes the exit status 1."""

    ERROR = "Error"
    WARNING = "Warning"
    INFO = "Info"
    NEVER = "Never"

    @property
    def threshold(self) -> MessageLevel | None:
        """Return the level; None if no finding makes the command fail."""
        from tidegate.api.messages.message import MessageLevel

        return None if self is FailOn.NEVER else MessageLevel(self.value)


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """The cluster, the user and the namespaces that a command works on."""

    namespace: str | None = None
    """None means the namespace of the kubeconfig's context."""
    everywhere: bool = False
    kubeconfig: Path | None = None
    context: str | None = None
    acting_for: str = ""

    def __post_init__(self) -> None:
        if self.everywhere and self.namespace is not None:
            message = f"-A means all namespaces and -n {self.namespace} alone: leave one of them out"
            raise typer.BadParameter(message)


Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the Inference; default that of the context."),
]
Everywhere = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Look for the Inference in all namespaces.")
]
ObjectsNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the objects; default that of the context."),
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Include objects of all namespaces.")
]
InstallationNamespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of the installation, if there are several.")
]
SystemNamespace = Annotated[
    str | None,
    typer.Option("--system-namespace", help="Namespace of the installation, if there are several."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Cluster to connect to; default $KUBECONFIG, then ~/.kube/config.", show_default=False),
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default its current one.")
]
ActingFor = Annotated[str, typer.Option("--as", help="User to impersonate.")]
Threshold = Annotated[
    FailOn, typer.Option("--fail-on", help="Exit status 1 if a finding has this level or a worse one.")
]
Suppressed = Annotated[
    list[str] | None,
    typer.Option(
        "--suppress", "-S", help="Code to leave out, like TG5006, or TG5006=ads/ctr for one object."
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="text, wide, json, yaml or name.")]


def run_or_exit(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """Run a command's coroutine and return its result; on an error, print one line to stderr and exit with 1."""
    try:
        return run_async(work)
    except (TidegateError, ValueError) as error:
        typer.echo(f"tidegate: {error}", err=True)
        sys.exit(1)


def print_report(report: Report, output: OutputFormat) -> None:
    """Print a report to stdout, and to stderr that a table has no rows."""
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(report.to_json(), indent=2))
    elif output is OutputFormat.YAML:
        import yaml

        typer.echo(yaml.safe_dump(report.to_json(), sort_keys=False), nl=False)
    elif output is OutputFormat.NAME:
        for name in report.object_names():
            typer.echo(name)
    else:
        for line in report.render_lines(wide=output is OutputFormat.WIDE):
            typer.echo(line)
        if message := report.empty_message():
            typer.echo(message, err=True)
