"""`tidegate plan`: what the allocator would do with other demand, floors or capacity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.change_options import (
    Ceilings,
    Floors,
    LeastReplicas,
    MostReplicas,
    Pairs,
    RequestValues,
    parse_changes,
)
from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.leader_input import fetch_leader_input
from tidegate.cli.options import (
    KubeOptions,
    NameAfterKind,
    Output,
    OutputFormat,
    SystemNamespace,
    print_report,
    run_or_exit,
)
from tidegate.errors import PermanentError

if TYPE_CHECKING:
    from tidegate.api.what_if import WhatIf
    from tidegate.reports.plan import PlanReport


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("plan")(plan)


@with_cluster_options
def plan(
    pool: Annotated[
        str,
        typer.Argument(
            metavar="POOL",
            help="Name of a ComputePool, or pool/name.",
            autocompletion=complete_names(CompletedKind.POOL),
        ),
    ],
    name: NameAfterKind = None,
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
    floor: Floors = None,
    ceiling: Ceilings = None,
    min_replicas: LeastReplicas = None,
    max_replicas: MostReplicas = None,
    value: RequestValues = None,
    without_budget: Annotated[
        bool, typer.Option("--without-budget", help="Ignore the budget of moves and holds of the pool.")
    ] = False,
    system: SystemNamespace = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="Query the controllers at this host:port, without the API server."),
    ] = None,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show what the allocator would decide with these changes, or without any, what it would decide now; changes nothing."""
    from tidegate.cli.object_names import join_kind, parse_pool_name

    changes = parse_changes(
        demand=demand,
        floor=floor,
        ceiling=ceiling,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        value=value,
    )
    body = {
        "factor": factor,
        "slices": slices,
        **changes,
        "withoutBudget": without_budget,
    }
    options = KubeOptions(cluster=cluster)
    print_report(
        run_or_exit(
            _plan_what_if(
                parse_pool_name(join_kind(pool, name)), options, _parse_question(body), address, system
            )
        ),
        output,
    )


async def _plan_what_if(
    pool: str, options: KubeOptions, question: WhatIf, address: str | None, system: str | None
) -> PlanReport:
    """Ask the controllers at `address`, or the leader of the installation."""
    from tidegate.services import what_if
    from tidegate.services.installation import find_release

    if address is not None:
        last = await what_if.fetch_from_address(address, pool)
    else:
        async with open_client(options) as (client, _):
            release, namespace = await find_release(client, system)
            last = await fetch_leader_input(client, pool, release, namespace)
    return await what_if.plan_what_if(pool, question, last)


def _parse_question(body: Mapping[str, Any]) -> WhatIf:
    """Return the changes to plan with. Raises BadParameter that names a wrong one."""
    from tidegate.services.what_if import parse_what_if

    try:
        return parse_what_if(body)
    except PermanentError as error:
        raise typer.BadParameter(str(error)) from error
