"""`tidegate top pools | inferences`: assigned slices, requests per second, p99, and value per slice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.following import Watch
from tidegate.cli.leader_input import fetch_leader_input
from tidegate.cli.live_screen import LiveView, show_or_follow_on_screen
from tidegate.cli.options import (
    KubeOptions,
    Output,
    OutputFormat,
    Selector,
    SystemNamespace,
)
from tidegate.reports.orders import TopOrder

if TYPE_CHECKING:
    from tidegate.kube.client import KubeClient
    from tidegate.reports.top import TopInferences, TopPools

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


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate top`."""
    app.command("inferences")(show_inferences)
    app.command("pools")(show_pools)


@with_cluster_options
def show_inferences(
    window: Window = 5.0,
    watch: Watch = False,
    sort: Annotated[
        TopOrder, typer.Option("--sort", help="requests, value (per slice), slices, latency or name.")
    ] = TopOrder.REQUESTS,
    gateways: Gateways = None,
    system: SystemNamespace = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the Inferences; default that of the context."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Inferences of all namespaces.")
    ] = False,
    selector: Selector = "",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show requests, p99 and value per slice of Inferences, counted by the gateways for a few seconds; - means unknown."""
    from tidegate.services.traffic import TopOptions, read_top_inferences

    options = KubeOptions(namespace, everywhere, cluster)
    sampling = TopOptions(fetch_leader_input, window, gateways or (), system)

    async def find_reader(client: KubeClient, chosen: str) -> Callable[[], Awaitable[TopInferences]]:
        return lambda: read_top_inferences(client, None if everywhere else chosen, sampling, sort, selector)

    view = LiveView("top inferences", order=sort)
    show_or_follow_on_screen(options, find_reader, output, view, watch=watch)


@with_cluster_options
def show_pools(
    window: Window = 5.0,
    watch: Watch = False,
    gateways: Gateways = None,
    system: SystemNamespace = None,
    selector: Selector = "",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show assigned slices, requests and value per slice of ComputePools, and what one more slice would earn."""
    from tidegate.services.traffic import TopOptions, read_top_pools

    sampling = TopOptions(fetch_leader_input, window, gateways or (), system)

    async def find_reader(client: KubeClient, _: str) -> Callable[[], Awaitable[TopPools]]:
        return lambda: read_top_pools(client, sampling, selector)

    view = LiveView("top pools", has_orders=False)
    show_or_follow_on_screen(KubeOptions(cluster=cluster), find_reader, output, view, watch=watch)
