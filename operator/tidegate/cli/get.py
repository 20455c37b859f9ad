"""Declare `tidegate get`: objects of one kind as a table, once or live."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from tidegate.cli.options import (
    ActingFor,
    Context,
    Format,
    Kubeconfig,
    OfAll,
    OfNamespace,
    Output,
    Where,
    answered,
    show,
)

_INTERRUPTED = 130


class By(StrEnum):
    """The order of the rows."""

    NAME = "name"
    STATE = "state"
    AGE = "age"


def register(app: typer.Typer) -> None:
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
    sort: Annotated[By, typer.Option("--sort", help="name, state (the worst first) or age.")] = By.NAME,
    namespace: OfNamespace = None,
    everywhere: OfAll = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List objects of Tidegate's kinds with their states; -w follows changes: a live table on a terminal, otherwise a line each."""
    from tidegate.cli.getting import Wanted, follow, read_list
    from tidegate.reports.listing import Sort

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    query = Wanted(kind, name, selector, Sort(sort.value))
    if not watch:
        show(answered(read_list(query, options)), output)
        return
    try:
        answered(follow(query, options, output))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
