"""`tidegate history` and `tidegate why`: what was decided about compute, and why things are as they are."""

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
        help="Its name; namespace/name of an Inference; or with its kind: inference/name, pool/name.",
        autocompletion=names_of(Named.INFERENCE, Named.POOL),
    ),
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="[INFERENCE|POOL]",
        help="Whose decisions; default all. A name; namespace/name of an Inference; inference/name or pool/name.",
        autocompletion=names_of(Named.INFERENCE, Named.POOL),
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tidegate`."""
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

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    show(answered(read_history(target, where)), output)


def why(
    target: Target,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what an Inference or a ComputePool has, who decided so and why, and what is not as it should be."""
    from tidegate.cli.reading import read_why

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    show(answered(read_why(target, where)), output)
