"""Declare the options that commands have in common, and print their reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import typer

from tidegate.cli.cluster_options import ClusterOptions
from tidegate.cli.colours import colour_states, uses_colours
from tidegate.cli.interrupts import run_async
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.api.messages.message import MessageLevel
    from tidegate.reports.report import Report

AnswerT = TypeVar("AnswerT")
_PACKAGE: Final = Path(__file__).resolve().parents[1]
"""The folder of the package tidegate."""


class OutputFormat(StrEnum):
    """The output format."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class ExitStatus(IntEnum):
    """The exit status of a command that does not end well."""

    FINDING = 1
    """The command did its work, and its result is a problem."""
    USAGE = 2
    """The arguments are wrong; nothing was done."""
    UNKNOWN = 3
    """The command could not do its work, for example because the cluster did not answer or the object does not exist."""


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
    """The cluster, and the namespaces that a command works on."""

    namespace: str | None = None
    """None means the namespace of the kubeconfig's context."""
    everywhere: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        if self.everywhere and self.namespace is not None:
            message = f"-A means all namespaces and -n {self.namespace} alone: leave one of them out"
            raise typer.BadParameter(message)


Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the Inference; default that of the context."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check the request, and show what would be done without doing it.")
]
NameAfterKind = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Name of the object, if the first argument is its kind."),
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
Selector = Annotated[
    str, typer.Option("--selector", "-l", help="Only objects with these labels, like team=ads,tier!=batch.")
]
SystemNamespace = Annotated[
    str | None,
    typer.Option("--system-namespace", help="Namespace of the installation, if there are several."),
]
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
    """Run a command's coroutine and return its result; on an error, print one line to stderr and exit.

    A ValueError means invalid arguments; every other error means that there is no result.
    """
    try:
        return run_async(work)
    except (TidegateError, ValueError) as error:
        exit_with_error(error, ExitStatus.USAGE if isinstance(error, ValueError) else ExitStatus.UNKNOWN)


def exit_with_error(error: object, status: ExitStatus) -> NoReturn:
    """Print one line to stderr and exit."""
    typer.echo(f"tidegate: {error}", err=True)
    sys.exit(status)


def find_docs(package: Path = _PACKAGE) -> str | None:
    """Return the address of a copy of docs/ in TIDEGATE_DOCS_URL, or the path of the folder in a checkout.

    None if the command is installed from a wheel, which has no docs, and the variable is not set.
    """
    if address := os.environ.get("TIDEGATE_DOCS_URL", "").rstrip("/"):
        return address
    folder = package.parents[1] / "docs"
    if not (folder / "reference" / "messages").is_dir():
        return None
    try:
        return os.path.relpath(folder)
    except FileNotFoundError:
        # The working directory was deleted.
        return str(folder)


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
        coloured = uses_colours(os.environ, terminal=sys.stdout.isatty())
        for line in report.render_lines(wide=output is OutputFormat.WIDE):
            typer.echo(colour_states(line) if coloured else line)
        if message := report.empty_message():
            typer.echo(message, err=True)
