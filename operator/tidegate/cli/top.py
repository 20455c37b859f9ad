"""Declare `tidegate top pools | inferences`: slices in use, requests per second, p99, and value per slice."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tidegate.cli.options import ActingFor, Context, Format, Kubeconfig, Output, System, Where, answered, show

Window = Annotated[
    float, typer.Option("--window", min=1, max=60, help="Seconds over which requests are counted.")
]
Gateways = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway",
        help="host:port of a gateway's metrics, instead of port forwards to all; may be repeated.",
    ),
]


class By(StrEnum):
    """The order of the rows."""

    REQUESTS = "requests"
    VALUE = "value"
    SLICES = "slices"
    LATENCY = "latency"
    NAME = "name"


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate top`."""
    app.command("inferences")(inferences)
    app.command("pools")(pools)


def inferences(
    window: Window = 5.0,
    sort: Annotated[
        By, typer.Option("--sort", help="requests, value (per slice), slices, latency or name.")
    ] = By.REQUESTS,
    gateways: Gateways = None,
    system: System = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the Inferences; default that of the context."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Inferences of all namespaces.")
    ] = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show requests, p99 and value per slice of Inferences, counted by the gateways for a few seconds; - means unknown."""
    from tidegate.cli.topping import Measure, read_top_inferences
    from tidegate.reports.top import TopBy

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    measure = Measure(window, gateways or (), system)
    show(answered(read_top_inferences(options, measure, TopBy(sort.value))), output)


def pools(
    window: Window = 5.0,
    gateways: Gateways = None,
    system: System = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show slices in use, requests and value per slice of ComputePools, and what one more slice would earn."""
    from tidegate.cli.topping import Measure, read_top_pools

    options = Where(None, False, kubeconfig, context, acting_for)
    show(answered(read_top_pools(options, Measure(window, gateways or (), system))), output)
