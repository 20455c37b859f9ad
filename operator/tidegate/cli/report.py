"""`tidegate report`: a support bundle without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    KubeOptions,
    Output,
    OutputFormat,
    SystemNamespace,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.bundle import BundleReport


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("report")(report)


@with_cluster_options
def report(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="File to write: .tar.gz or .zip; default tidegate-report-<time>.tar.gz here."
        ),
    ] = None,
    log_lines: Annotated[
        int, typer.Option("--log-lines", min=0, max=100_000, help="Newest lines of each log.")
    ] = 2_000,
    max_size: Annotated[
        int, typer.Option("--max-size", min=1, max=1_024, help="Most MiB in all, before compression.")
    ] = 64,
    system: SystemNamespace = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the objects; default all that can be listed."),
    ] = None,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Write a support bundle: objects, events, the operator's logs, and the output of status, analyze, doctor and xds status.

    Secrets are not in it; values of environment variables, annotations and what looks like a credential are taken out.
    """
    from tidegate.services.support_bundle import BundleLimits, BundleNamespaces, write_bundle

    options = KubeOptions(namespace, False, cluster)
    limits = BundleLimits(max_bytes=max_size << 20, log_lines=log_lines)

    async def write_archive() -> BundleReport:
        async with open_client(options) as (client, default):
            return await write_bundle(client, BundleNamespaces(namespace, default, system), file, limits)

    print_report(run_or_exit(write_archive()), output)
