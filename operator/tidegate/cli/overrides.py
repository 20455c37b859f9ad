"""`tidegate hold`, `resume` and `override`: ComputeOverrides, made and ended."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli.completion import Named, names_of
from tidegate.cli.decisions import Target
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

Lasting = Annotated[str, typer.Option("--for", help="How long, from 1m to 168h, like 30m or 2h.")]
WhyNot = Annotated[str, typer.Option("--reason", help="Why, in words for those who find it.")]
InferenceName = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE",
        help="Its name, namespace/name, or inference/name.",
        autocompletion=names_of(Named.INFERENCE),
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tidegate`."""
    app.command("hold")(hold)
    app.command("resume")(resume)
    app.command("override")(override)


def hold(
    target: Target,
    lasting: Lasting,
    reason: WhyNot,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Keep an Inference's number of replicas as it is, or a whole ComputePool, for a while; again to change until when."""
    from tidegate.cli.steering import steer
    from tidegate.reports.steered import Wanted

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    show(answered(steer(target, where, Wanted(lasting, reason))), output)


def resume(
    target: Target,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """End what `tidegate hold` made; exit status 1 while something else still holds it."""
    from tidegate.cli.steering import resumed

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    report = answered(resumed(target, where))
    show(report, output)
    if report.still_held:
        sys.exit(1)


def override(
    inference: InferenceName,
    pin: Annotated[int | None, typer.Option(min=0, help="Exactly so many replicas.")] = None,
    floor: Annotated[int | None, typer.Option(min=1, help="At least so many replicas.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End what this command made about it.")] = False,
    lasting: Annotated[
        str | None, typer.Option("--for", help="How long, from 1m to 168h, like 30m or 2h.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why, in words for those who find it.")
    ] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Decide over the allocator how many replicas an Inference has, within its range, for a while; again to change it."""
    from tidegate.cli.steering import override_ended, steer
    from tidegate.reports.steered import Wanted

    where = Where(namespace, everywhere, kubeconfig, context, acting_for)
    if [pin is not None, floor is not None, end].count(True) != 1:
        message = "give exactly one of --pin, --floor and --end"
        raise typer.BadParameter(message)
    if end:
        if lasting is not None or reason is not None:
            message = "--end ends it now: leave --for and --reason out"
            raise typer.BadParameter(message)
        show(answered(override_ended(inference, where)), output)
        return
    if lasting is None or reason is None:
        message = "--for and --reason are needed: how long, and why"
        raise typer.BadParameter(message)
    wanted = Wanted(lasting, reason, pin=pin, floor=floor)
    show(answered(steer(inference, where, wanted)), output)
