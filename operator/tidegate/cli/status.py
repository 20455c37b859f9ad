"""Declare `tidegate status`: the state of the fleet or of one object, for people and for pipelines that wait for it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.options import (
    ActingFor,
    Context,
    Kubeconfig,
    KubeOptions,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

OptionalObject = Annotated[
    str | None,
    typer.Argument(
        metavar="[INFERENCE|MODELACCESS|FEATURECOMPUTE|POOL]",
        help="Name; namespace/name; or with its kind: modelaccess/name, computepool/name. Default the fleet.",
        autocompletion=complete_names(*CompletedKind),
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("status")(status)


def status(
    target: OptionalObject = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is ready; progress goes to stderr.")
    ] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest wait, like 90s or 5m.")] = "5m",
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of the object, default that of the context; of the fleet, default all.",
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Look for the object in all namespaces.")
    ] = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the state of the fleet, or of one object with its pods, routes and events; exit status 1 if it is not healthy."""
    from tidegate.api.durations import parse_duration
    from tidegate.cli.run.status import read_status

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    try:
        patience = parse_duration(timeout) if wait else None
    except ValueError as error:
        message = f"--timeout {timeout}: {error}"
        raise typer.BadParameter(message) from error
    report = run_or_exit(read_status(target, options, patience))
    print_report(report, output)
    if wait and not report.settled:
        problem = "it is stalled" if report.stalled else f"it was not ready within {timeout}"
        typer.echo(f"tidegate: {problem}: {report.headline()}", err=True)
    if not (report.settled if wait else report.healthy):
        sys.exit(1)
