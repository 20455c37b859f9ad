"""`tidegate hold`, `resume` and `override`, which make and end ComputeOverrides."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.decisions import Target
from tidegate.cli.options import (
    DryRun,
    Everywhere,
    ExitStatus,
    KubeOptions,
    NameAfterKind,
    Namespace,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)
from tidegate.errors import PermanentError

if TYPE_CHECKING:
    from tidegate.planning.pools.override_requests import OverrideRequest
    from tidegate.reports.overrides import SteeringReport

Duration = Annotated[str, typer.Option("--for", help="Duration from 1m to 168h, like 30m or 2h.")]
OverrideReason = Annotated[str, typer.Option("--reason", help="Reason, for people who find the override.")]
InferenceName = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE",
        help="Name, namespace/name, or inference/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE),
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate`."""
    app.command("hold")(hold)
    app.command("resume")(resume)
    app.command("override")(override)


@with_cluster_options
def hold(
    target: Target,
    name: NameAfterKind = None,
    *,
    duration: Duration,
    reason: OverrideReason,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TEXT,
    cluster: ClusterOptions,
) -> None:
    """Keep the replicas of an Inference, or a whole ComputePool, as they are for a while; run it again to change the end."""
    from tidegate.cli.object_names import join_kind
    from tidegate.planning.pools.override_requests import OverrideRequest

    options = KubeOptions(namespace, everywhere, cluster)
    request = _check_request(OverrideRequest(duration, reason))
    print_report(
        run_or_exit(_apply_override(join_kind(target, name), options, request, dry_run=dry_run)), output
    )


@with_cluster_options
def resume(
    target: Target,
    name: NameAfterKind = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """End what `tidegate hold` made; exit status 1 while something else still holds it."""
    from tidegate.cli.object_names import join_kind

    options = KubeOptions(namespace, everywhere, cluster)
    report = run_or_exit(_end_overrides(join_kind(target, name), options, holds=True, dry_run=dry_run))
    print_report(report, output)
    if report.still_held:
        sys.exit(ExitStatus.FINDING)


@with_cluster_options
def override(
    inference: InferenceName,
    name: NameAfterKind = None,
    pin: Annotated[int | None, typer.Option(min=0, help="Exact number of replicas.")] = None,
    floor: Annotated[int | None, typer.Option(min=1, help="Least number of replicas.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End the override that this command made.")] = False,
    duration: Annotated[
        str | None, typer.Option("--for", help="Duration from 1m to 168h, like 30m or 2h.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Reason, for people who find the override.")
    ] = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    dry_run: DryRun = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Override the allocator's number of replicas of an Inference, within its range, for a while; run it again to change it."""
    from tidegate.cli.object_names import join_kind
    from tidegate.planning.pools.override_requests import OverrideRequest

    options = KubeOptions(namespace, everywhere, cluster)
    text = join_kind(inference, name)
    if [pin is not None, floor is not None, end].count(True) != 1:
        message = "give exactly one of --pin, --floor and --end"
        raise typer.BadParameter(message)
    if end:
        if duration is not None or reason is not None:
            message = "--end ends it now: leave --for and --reason out"
            raise typer.BadParameter(message)
        print_report(run_or_exit(_end_overrides(text, options, holds=False, dry_run=dry_run)), output)
        return
    if duration is None or reason is None:
        message = "--for and --reason are needed: how long, and why"
        raise typer.BadParameter(message)
    request = _check_request(OverrideRequest(duration, reason, pin=pin, floor=floor))
    print_report(run_or_exit(_apply_override(text, options, request, dry_run=dry_run)), output)


def _check_request(request: OverrideRequest) -> OverrideRequest:
    """Return the request. Raises BadParameter for a wrong reason or duration, before any request to the API server."""
    from tidegate.planning.pools.override_requests import check_request

    try:
        check_request(request)
    except PermanentError as error:
        raise typer.BadParameter(str(error)) from error
    except ValueError as error:
        message = f"--for {request.duration}: {error}"
        raise typer.BadParameter(message) from error
    return request


async def _apply_override(
    text: str, options: KubeOptions, request: OverrideRequest, *, dry_run: bool
) -> SteeringReport:
    from tidegate.api.compute_override import OverrideAction
    from tidegate.cli.object_names import TARGET_KINDS, find_target
    from tidegate.kube.kinds import INFERENCE
    from tidegate.services.overrides import apply_override

    allowed_kinds = TARGET_KINDS if request.action is OverrideAction.HOLD else (INFERENCE,)
    async with open_client(options) as (client, namespace):
        target = await find_target(client, text, options, namespace, allowed_kinds=allowed_kinds)
        return await apply_override(client, target.kind, target.key, request, dry_run=dry_run)


async def _end_overrides(text: str, options: KubeOptions, *, holds: bool, dry_run: bool) -> SteeringReport:
    """End what `tidegate hold` made about the target, or what `tidegate override` made."""
    from tidegate.api.compute_override import OverrideAction
    from tidegate.cli.object_names import TARGET_KINDS, find_target
    from tidegate.kube.kinds import INFERENCE
    from tidegate.services.overrides import end_overrides

    allowed_kinds = TARGET_KINDS if holds else (INFERENCE,)
    actions = (OverrideAction.HOLD,) if holds else (OverrideAction.PIN, OverrideAction.FLOOR)
    async with open_client(options) as (client, namespace):
        target = await find_target(client, text, options, namespace, allowed_kinds=allowed_kinds)
        return await end_overrides(client, target.kind, target.key, *actions, dry_run=dry_run)
