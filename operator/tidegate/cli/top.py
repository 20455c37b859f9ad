"""Declare `tidegate top pools | inferences`: slices in use, requests per second, p99, and value per slice."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tidegate.cli.options import (
    ActingFor,
    Context,
    Kubeconfig,
    KubeOptions,
    Output,
    OutputFormat,
    SystemNamespace,
    print_report,
    run_or_exit,
)

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


class TopSortKey(StrEnum):
    """The order of the rows."""

    REQUESTS = "requests"
    VALUE = "value"
    SLICES = "slices"
    LATENCY = "latency"
    NAME = "name"


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate top`."""
    app.command("inferences")(show_inferences)
    app.command("pools")(show_pools)


def show_inferences(
    window: Window = 5.0,
    sort: Annotated[
        TopSortKey, typer.Option("--sort", help="requests, value (per slice), slices, latency or name.")
    ] = TopSortKey.REQUESTS,
    gateways: Gateways = None,
    system: SystemNamespace = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the Inferences; default that of the context."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Inferences of all namespaces.")
    ] = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show requests, p99 and value per slice of Inferences, counted by the gateways for a few seconds; - means unknown."""
    from tidegate.cli.run.top import TopOptions, read_top_inferences
    from tidegate.reports.top import TopOrder

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    measure = TopOptions(window, gateways or (), system)
    print_report(run_or_exit(read_top_inferences(options, measure, TopOrder(sort.value))), output)


def show_pools(
    window: Window = 5.0,
    gateways: Gateways = None,
    system: SystemNamespace = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show slices in use, requests and value per slice of ComputePools, and what one more slice would earn."""
    from tidegate.cli.run.top import TopOptions, read_top_pools

    options = KubeOptions(None, False, kubeconfig, context, acting_for)
    print_report(run_or_exit(read_top_pools(options, TopOptions(window, gateways or (), system))), output)
