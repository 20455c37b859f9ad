"""`tidegate release`: show how far a release is; pause, resume, promote, abort or restart it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.api.release_commands import RELEASE_COMMANDS, ReleaseCommand
from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.following import Watch, show_or_follow
from tidegate.cli.options import (
    AllNamespaces,
    DryRun,
    ExitStatus,
    KubeOptions,
    NameAfterKind,
    ObjectsNamespace,
    Output,
    OutputFormat,
    Selector,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.api.meta import ObjectKey
    from tidegate.kube.client import KubeClient
    from tidegate.reports.release import ReleaseListReport, ReleaseReport

_TIMEOUT: Final = timedelta(seconds=30)

Access = Annotated[
    str,
    typer.Argument(
        metavar="MODELACCESS",
        help="Name, namespace/name, or modelaccess/name.",
        autocompletion=complete_names(CompletedKind.ACCESS),
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the ModelAccess; default that of the context."),
]
Everywhere = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Look for the ModelAccess in all namespaces.")
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate release`."""
    app.command("status")(status)
    app.command("list")(show_releases)
    for command, rule in RELEASE_COMMANDS.items():
        text = f"{rule.summary} Waits until the controllers have acted on it."
        app.command(command.value, help=text)(_make_command(command))


@with_cluster_options
def status(
    access: Access,
    name: NameAfterKind = None,
    watch: Watch = False,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show how far a release is, and the results of its checks."""
    from tidegate.cli.object_names import join_kind

    options = KubeOptions(namespace, everywhere, cluster)
    text = join_kind(access, name)
    show_or_follow(
        options, lambda client, chosen: _find_reader(client, text, options, chosen), output, watch=watch
    )


@with_cluster_options
def show_releases(
    watch: Watch = False,
    namespace: ObjectsNamespace = None,
    everywhere: AllNamespaces = False,
    selector: Selector = "",
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """List the releases of ModelAccesses: target, step, weight and phase."""
    from tidegate.services.releases import list_releases

    options = KubeOptions(namespace, everywhere, cluster)

    async def find_reader(client: KubeClient, chosen: str) -> Callable[[], Awaitable[ReleaseListReport]]:
        return lambda: list_releases(client, None if everywhere else chosen, selector)

    show_or_follow(options, find_reader, output, watch=watch)


def _make_command(command: ReleaseCommand) -> Callable[..., None]:
    @with_cluster_options
    def run_command(
        access: Access,
        name: NameAfterKind = None,
        namespace: Namespace = None,
        everywhere: Everywhere = False,
        dry_run: DryRun = False,
        output: Output = OutputFormat.TEXT,
        *,
        cluster: ClusterOptions,
    ) -> None:
        from tidegate.cli.object_names import join_kind
        from tidegate.reports.release import ReleaseCommandResult

        options = KubeOptions(namespace, everywhere, cluster)
        report = run_or_exit(_send_command(join_kind(access, name), options, command, dry_run=dry_run))
        print_report(report, output)
        if report.acted in {ReleaseCommandResult.ASKED, ReleaseCommandResult.WITHOUT_EFFECT}:
            sys.exit(ExitStatus.FINDING)

    return run_command


async def _find_reader(
    client: KubeClient, text: str, options: KubeOptions, namespace: str
) -> Callable[[], Awaitable[ReleaseReport]]:
    """Return what reads the release of the ModelAccess that `text` means."""
    from tidegate.services.releases import read_release

    key = await _find_access(client, text, options, namespace)
    return lambda: read_release(client, key)


async def _send_command(
    text: str, options: KubeOptions, command: ReleaseCommand, *, dry_run: bool
) -> ReleaseReport:
    from tidegate.services.releases import preview_command, send_command

    async with open_client(options) as (client, namespace):
        key = await _find_access(client, text, options, namespace)
        if dry_run:
            return await preview_command(client, key, command)
        return await send_command(client, key, command, _TIMEOUT)


async def _find_access(client: KubeClient, text: str, options: KubeOptions, namespace: str) -> ObjectKey:
    from tidegate.cli.object_names import find_key
    from tidegate.kube.kinds import MODEL_ACCESS

    return await find_key(client, text, options, namespace, MODEL_ACCESS)
