"""`tidegate analyze`: problems of objects."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    AllNamespaces,
    ExitStatus,
    FailOn,
    KubeOptions,
    ObjectsNamespace,
    Output,
    OutputFormat,
    Suppressed,
    Threshold,
    find_docs,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.analysis import AnalysisReport

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename", "-f", help="File, folder, or - for stdin, checked as if applied; may be repeated."
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("analyze")(analyze)


@with_cluster_options
def analyze(
    files: Files = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the files alone, without a cluster.")
    ] = False,
    suppressed: Suppressed = None,
    fail_on: Threshold = FailOn.ERROR,
    namespace: ObjectsNamespace = None,
    everywhere: AllNamespaces = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Find problems of objects, by their conditions and in combination; each has a code and says what to do."""
    options = KubeOptions(namespace, everywhere, cluster)
    if offline:
        if not files:
            message = "--offline checks files alone: name them with -f"
            raise typer.BadParameter(message)
        report = run_or_exit(_analyse_files(files, namespace or "default", suppressed or ()))
    else:
        report = run_or_exit(_analyse_cluster(options, files or (), suppressed or ()))
    print_report(report.model_copy(update={"docs": find_docs()}), output)
    if report.reaches_threshold(fail_on.threshold):
        sys.exit(ExitStatus.FINDING)


async def _analyse_files(files: Sequence[Path], namespace: str, suppressed: Sequence[str]) -> AnalysisReport:
    from tidegate.services.analysis import analyse_manifests
    from tidegate.services.manifests import read_manifests

    return analyse_manifests(read_manifests(files, namespace), suppressed)


async def _analyse_cluster(
    options: KubeOptions, files: Sequence[Path], suppressed: Sequence[str]
) -> AnalysisReport:
    from tidegate.services.analysis import analyse_cluster
    from tidegate.services.manifests import read_manifests

    async with open_client(options) as (client, namespace):
        manifests = read_manifests(files, namespace)
        return await analyse_cluster(client, None if options.everywhere else namespace, manifests, suppressed)
