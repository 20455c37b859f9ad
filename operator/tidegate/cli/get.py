"""Declare `tidegate get`: objects of one kind as a table, once or live."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from tidegate.cli.options import (
    ActingFor,
    AllNamespaces,
    Context,
    Kubeconfig,
    KubeOptions,
    ObjectsNamespace,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

_INTERRUPTED = 130


class GetOrder(StrEnum):
    """The order of the rows."""

    NAME = "name"
    STATE = "state"
    AGE = "age"


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("get")(get)


def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="inferences, modelaccesses, featurecomputes, computepools, overrides or decisions, or a short name.",
        ),
    ] = "inferences",
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of one object.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow changes.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Labels, like team=ads.")] = "",
    sort: Annotated[
        GetOrder, typer.Option("--sort", help="name, state (the worst first) or age.")
    ] = GetOrder.NAME,
    namespace: ObjectsNamespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List objects of Tidegate's kinds with their states; -w follows changes: a live table on a terminal, otherwise a line each."""
    from tidegate.cli.run.get import ListQuery, follow_changes, read_list
    from tidegate.reports.listing import ListOrder

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    query = ListQuery(kind, name, selector, ListOrder(sort.value))
    if not watch:
        print_report(run_or_exit(read_list(query, options)), output)
        return
    try:
        run_or_exit(follow_changes(query, options, output))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
