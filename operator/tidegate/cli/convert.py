"""`tidegate convert`: objects of Tidegate for those of another system."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import ExitStatus, Output, OutputFormat, exit_with_error, print_report
from tidegate.errors import PermanentError


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate convert`."""
    app.command("kserve")(convert_kserve)


def convert_kserve(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="File or folder with InferenceServices, or - for stdin."),
    ],
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print an Inference and a ModelAccess for each InferenceService of KServe, to be read and applied.

    Comments name each field that is left out or changed. The exit status is 1 if an InferenceService cannot be converted.
    """
    from tidegate.services.kserve import convert_files

    try:
        report = convert_files(files)
    except PermanentError as error:
        exit_with_error(error, ExitStatus.UNKNOWN)
    print_report(report, output)
    for problem in report.problems:
        typer.echo(f"tidegate: {problem}", err=True)
    if report.problems:
        sys.exit(ExitStatus.FINDING)
    if not report.objects:
        exit_with_error("no InferenceService found in the files", ExitStatus.FINDING)
