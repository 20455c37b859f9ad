"""Declare `tidegate plan`: what the allocator would do with other demand, floors or capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.completion import Named, names_of
from tidegate.cli.options import (
    ActingFor,
    Context,
    Format,
    Kubeconfig,
    OfInstallation,
    Output,
    Where,
    answered,
    show,
)

Pairs = list[str] | None


def register(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("plan")(plan)


def plan(
    pool: Annotated[
        str,
        typer.Argument(metavar="POOL", help="Name of a ComputePool.", autocompletion=names_of(Named.POOL)),
    ],
    demand: Annotated[
        Pairs,
        typer.Option(
            "--demand", help="Requests per second of an Inference, like ads/ctr=1200, or ads/ctr=x1.5."
        ),
    ] = None,
    factor: Annotated[float, typer.Option("--factor", min=0, help="Factor for all known demand.")] = 1.0,
    slices: Annotated[
        int | None, typer.Option("--slices", min=0, help="Number of healthy slices of the pool.")
    ] = None,
    floor: Annotated[Pairs, typer.Option("--floor", help="Least slices of a tier, like offline=4.")] = None,
    ceiling: Annotated[Pairs, typer.Option("--ceiling", help="Most slices of a tier.")] = None,
    least: Annotated[
        Pairs, typer.Option("--min", help="Least replicas of an Inference, like ads/ctr=2.")
    ] = None,
    most: Annotated[Pairs, typer.Option("--max", help="Most replicas of an Inference.")] = None,
    value: Annotated[Pairs, typer.Option("--value", help="Value of a request to an Inference.")] = None,
    without_budget: Annotated[
        bool, typer.Option("--without-budget", help="Ignore the budget of moves and holds of the pool.")
    ] = False,
    namespace: OfInstallation = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Query the controllers at this host:port, without the API server."),
    ] = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what the allocator would decide with these changes, or without any, what it would decide now; changes nothing."""
    from tidegate.cli.asking_otherwise import plan_otherwise

    inferences: dict[str, dict[str, Any]] = {}
    for name, text in _pairs("--demand", demand):
        field = "factor" if text.startswith("x") else "demand"
        inferences.setdefault(name, {"inference": name})[field] = text.removeprefix("x")
    for option, field, values in (
        ("--min", "minReplicas", least),
        ("--max", "maxReplicas", most),
        ("--value", "value", value),
    ):
        for name, text in _pairs(option, values):
            inferences.setdefault(name, {"inference": name})[field] = text
    tiers: dict[str, dict[str, Any]] = {}
    for option, field, values in (("--floor", "floor", floor), ("--ceiling", "ceiling", ceiling)):
        for name, text in _pairs(option, values):
            tiers.setdefault(name, {"tier": name})[field] = text
    body = {
        "factor": factor,
        "slices": slices,
        "inferences": list(inferences.values()),
        "tiers": list(tiers.values()),
        "withoutBudget": without_budget,
    }
    options = Where(namespace, False, kubeconfig, context, acting_for)
    show(answered(plan_otherwise(pool, options, body, address)), output)


def _pairs(option: str, given: Pairs) -> Sequence[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in given or ():
        name, equals, number = text.partition("=")
        if not (name and equals and number):
            message = f"{option} {text}: want name=number"
            raise typer.BadParameter(message)
        pairs.append((name, number))
    return pairs
