"""`tidegate doctor`: problems of the installation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    ExitStatus,
    FailOn,
    KubeOptions,
    Output,
    OutputFormat,
    Suppressed,
    SystemNamespace,
    Threshold,
    find_docs,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.analysis import AnalysisReport


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("doctor")(doctor)


@with_cluster_options
def doctor(
    suppressed: Suppressed = None,
    fail_on: Threshold = FailOn.ERROR,
    system: SystemNamespace = None,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Find problems of the installation: kinds, processes, leader, policies and certificates."""
    options = KubeOptions(cluster=cluster)
    report = run_or_exit(_check_installation(options, system, suppressed or ()))
    print_report(report.model_copy(update={"docs": find_docs()}), output)
    if report.reaches_threshold(fail_on.threshold):
        sys.exit(ExitStatus.FINDING)


async def _check_installation(
    options: KubeOptions, system: str | None, suppressed: Sequence[str]
) -> AnalysisReport:
    from tidegate.services.installation_check import check_installation

    async with open_client(options) as (client, _):
        return await check_installation(client, system, suppressed)
