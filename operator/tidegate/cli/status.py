"""Declare `tidegate status`: the state of the fleet or of one object, for people and for pipelines that wait for it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.completion import Named, names_of
from tidegate.cli.options import (
    ActingFor,
    Context,
    Format,
    Kubeconfig,
    Output,
    Where,
    answered,
    show,
)

OptionalObject = Annotated[
    str | None,
    typer.Argument(
        metavar="[INFERENCE|MODELACCESS|FEATURECOMPUTE|POOL]",
        help="Name; namespace/name; or with its kind: modelaccess/name, computepool/name. Default the fleet.",
        autocompletion=names_of(*Named),
    ),
]


def register(app: typer.Typer) -> None:
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
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the state of the fleet, or of one object with its pods, routes and events; exit status 1 if it is not healthy."""
    from tidegate.api.durations import parse_duration
    from tidegate.cli.looking import read_status

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    try:
        patience = parse_duration(timeout) if wait else None
    except ValueError as error:
        message = f"--timeout {timeout}: {error}"
        raise typer.BadParameter(message) from error
    report = answered(read_status(target, options, patience))
    show(report, output)
    if wait and not report.settled:
        problem = "it is stalled" if report.hopeless else f"it was not ready within {timeout}"
        typer.echo(f"tidegate: {problem}: {report.headline()}", err=True)
    if not (report.settled if wait else report.as_it_should_be):
        sys.exit(1)
