"""Declare `tidegate analyze` and `tidegate doctor`: findings about objects, and about the installation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import (
    ActingFor,
    Context,
    FailOn,
    Format,
    Kubeconfig,
    OfAll,
    OfInstallation,
    OfNamespace,
    Output,
    Suppressed,
    Threshold,
    Where,
    answered,
    show,
)

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename", "-f", help="File, folder, or - for stdin, checked as if applied; may be repeated."
    ),
]


def register(app: typer.Typer) -> None:
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
    namespace: OfNamespace = None,
    everywhere: OfAll = False,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Find problems of objects, by their conditions and in combination; each has a code and says what to do."""
    from tidegate.cli.analysing import analyse, analyse_files

    options = Where(namespace, everywhere, kubeconfig, context, acting_for)
    if offline:
        if not files:
            message = "--offline checks files alone: name them with -f"
            raise typer.BadParameter(message)
        report = answered(analyse_files(files, namespace or "default", suppressed or ()))
    else:
        report = answered(analyse(options, files or (), suppressed or ()))
    show(report, output)
    if report.fails(fail_on.level):
        sys.exit(1)


def doctor(
    suppressed: Suppressed = None,
    fail_on: Threshold = FailOn.ERROR,
    namespace: OfInstallation = None,
    context: Context = None,
    acting_for: ActingFor = "",
    output: Output = Format.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Find problems of the installation: kinds, processes, leader, policies and certificates."""
    from tidegate.cli.examining import examined

    options = Where(namespace, False, kubeconfig, context, acting_for)
    report = answered(examined(options, suppressed or ()))
    show(report, output)
    if report.fails(fail_on.level):
        sys.exit(1)
