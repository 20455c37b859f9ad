"""`tidegate get`: objects of one kind as a table, once or live."""

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
    """What is first."""

    NAME = "name"
    STATE = "state"
    AGE = "age"


def register(app: typer.Typer) -> None:
    """Adds the command to `tidegate`."""
    app.command("get")(get)


def get(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="[KIND]",
            help="inferences, modelaccesses, featurecomputes, computepools, overrides or decisions, or a short name.",
        ),
    ] = "inferences",
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One object alone.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow what changes.")] = False,
    selector: Annotated[str, typer.Option("--selector", "-l", help="Labels, like team=ads.")] = "",
    sort: Annotated[By, typer.Option("--sort", help="name, state (the worst first) or age.")] = By.NAME,
    namespace: OfNamespace = None,
    everywhere: OfAll = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List objects of ours with how they are; with -w live: a table on a terminal, elsewhere a line for each change."""
    from tidegate.cli.getting import Wanted, follow, read_list
    from tidegate.reports.listing import Sort

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    wanted = Wanted(kind, name, selector, Sort(sort.value))
    if not watch:
        show(answered(read_list(wanted, where)), output)
        return
    try:
        answered(follow(wanted, where, output))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
