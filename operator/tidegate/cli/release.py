"""`tidegate release`: show how far a release is; pause, resume, promote, abort or restart it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.api.release_commands import RELEASE_COMMANDS, ReleaseCommand
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    ActingFor,
    Context,
    Kubeconfig,
    KubeOptions,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.api.meta import ObjectKey
    from tidegate.reports.release import ReleaseReport

_TIMEOUT: Final = timedelta(seconds=30)

Access = Annotated[
    str,
    typer.Argument(
        metavar="MODELACCESS",
        help="Name, or namespace/name.",
        autocompletion=complete_names(CompletedKind.ACCESS),
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the ModelAccess; default that of the context."),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate release`."""
    app.command("status")(status)
    for command, rule in RELEASE_COMMANDS.items():
        text = f"{rule.summary} Waits until the controllers have acted on it."
        app.command(command.value, help=text)(_make_command(command))


def status(
    access: Access,
    namespace: Namespace = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show how far a release is, and the results of its checks."""
    options = KubeOptions(namespace, False, kubeconfig, context, acting_for)
    print_report(run_or_exit(_read_release(access, options)), output)


def _make_command(command: ReleaseCommand) -> Callable[..., None]:
    def run_command(
        access: Access,
        namespace: Namespace = None,
        context: Context = None,
        acting_for: ActingFor = "",
        output: Output = OutputFormat.TEXT,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        from tidegate.reports.release import ReleaseCommandResult

        options = KubeOptions(namespace, False, kubeconfig, context, acting_for)
        report = run_or_exit(_send_command(access, options, command))
        print_report(report, output)
        if report.acted in {ReleaseCommandResult.ASKED, ReleaseCommandResult.WITHOUT_EFFECT}:
            sys.exit(1)

    return run_command


async def _read_release(text: str, options: KubeOptions) -> ReleaseReport:
    from tidegate.services.releases import read_release

    async with open_client(options) as (client, namespace):
        return await read_release(client, _parse_key(text, namespace))


async def _send_command(text: str, options: KubeOptions, command: ReleaseCommand) -> ReleaseReport:
    from tidegate.services.releases import send_command

    async with open_client(options) as (client, namespace):
        return await send_command(client, _parse_key(text, namespace), command, _TIMEOUT)


def _parse_key(text: str, namespace: str) -> ObjectKey:
    from tidegate.api.meta import ObjectKey

    key = ObjectKey.parse(text.removeprefix("modelaccess/").removeprefix("access/"))
    return key if key.namespace else ObjectKey(namespace, key.name)
