"""Declare `tidegate history` and `tidegate why`: decisions about compute, and why things are as they are."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.completion import Named, names_of
from tidegate.cli.options import (
    ActingFor,
    Context,
    Everywhere,
    Format,
    Kubeconfig,
    Namespace,
    Output,
    Where,
    answered,
    show,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE|POOL",
        help="Name; namespace/name of an Inference; or with its kind: inference/name, pool/name.",
        autocompletion=names_of(Named.INFERENCE, Named.POOL),
    ),
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="[INFERENCE|POOL]",
        help="Inference or pool of the decisions; default all. A name; namespace/name of an Inference; inference/name or pool/name.",
        autocompletion=names_of(Named.INFERENCE, Named.POOL),
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate`."""
    app.command("history")(history)
    app.command("why")(why)


def history(
    target: OptionalTarget = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what the allocators decided, the newest first; without a name, -n keeps to decisions that move its Inferences."""
    from tidegate.cli.reading import read_history

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    show(answered(read_history(target, options)), output)


def why(
    target: Target,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what an Inference or a ComputePool has, which decision gave it that and why, and which conditions are unhealthy."""
    from tidegate.cli.reading import read_why

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    show(answered(read_why(target, options)), output)
