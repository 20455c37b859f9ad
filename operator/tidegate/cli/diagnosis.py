"""Declare `tidegate analyze` and `tidegate doctor`: findings about objects, and about the installation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import (
    ActingFor,
    AllNamespaces,
    Context,
    FailOn,
    InstallationNamespace,
    Kubeconfig,
    KubeOptions,
    ObjectsNamespace,
    Output,
    OutputFormat,
    Suppressed,
    Threshold,
    print_report,
    run_or_exit,
)

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename", "-f", help="File, folder, or - for stdin, checked as if applied; may be repeated."
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate`."""
    app.command("analyze")(analyze)
    app.command("doctor")(doctor)


def analyze(
    files: Files = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the files alone, without a cluster.")
    ] = False,
    suppressed: Suppressed = None,
    fail_on: Threshold = FailOn.ERROR,
    namespace: ObjectsNamespace = None,
    everywhere: AllNamespaces = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Find problems of objects, by their conditions and in combination; each has a code and says what to do."""
    from tidegate.cli.run.analyze import analyse_cluster, analyse_files

    options = KubeOptions(namespace, everywhere, kubeconfig, context, acting_for)
    if offline:
        if not files:
            message = "--offline checks files alone: name them with -f"
            raise typer.BadParameter(message)
        report = run_or_exit(analyse_files(files, namespace or "default", suppressed or ()))
    else:
        report = run_or_exit(analyse_cluster(options, files or (), suppressed or ()))
    print_report(report, output)
    if report.reaches_threshold(fail_on.threshold):
        sys.exit(1)


def doctor(
    suppressed: Suppressed = None,
    fail_on: Threshold = FailOn.ERROR,
    namespace: InstallationNamespace = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = OutputFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Find problems of the installation: kinds, processes, leader, policies and certificates."""
    from tidegate.cli.run.doctor import check_installation

    options = KubeOptions(namespace, False, kubeconfig, context, acting_for)
    report = run_or_exit(check_installation(options, suppressed or ()))
    print_report(report, output)
    if report.reaches_threshold(fail_on.threshold):
        sys.exit(1)
