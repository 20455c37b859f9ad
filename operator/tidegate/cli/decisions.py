"""Declare `tidegate history` and `tidegate why`: decisions about compute, and why things are as they are."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.options import (
    ActingFor,
    Context,
    Everywhere,
    Kubeconfig,
    KubeOptions,
    Namespace,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

Target = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE|POOL|modelaccess/NAME",
        help="Name; namespace/name of an Inference; or with its kind: inference/name, pool/name, modelaccess/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE, CompletedKind.POOL),
    ),
]
OptionalTarget = Annotated[
    str | None,
    typer.Argument(
        metavar="[INFERENCE|POOL]",
        help="Inference or pool of the decisions; default all. A name; namespace/name of an Inference; inference/name or pool/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE, CompletedKind.POOL),
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate`."""
    app.command("history")(history)
    app.command("why")(explain)


def history(
    target: OptionalTarget = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what the allocators decided, the newest first; without a name, -n keeps to decisions that move its Inferences."""
    from tidegate.cli.run.decisions import read_history

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    print_report(run_or_exit(read_history(target, options)), output)


def explain(
    target: Target,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what an Inference or a ComputePool has, which decision gave it that and why, and which conditions are unhealthy.

    For a ModelAccess: how far its newest spec has come, from the API server to the gateways, and the first stage that is behind.
    """
    from tidegate.cli.run.decisions import read_explanation

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    print_report(run_or_exit(read_explanation(target, options)), output)
