"""`tidegate features stats`: how far features have moved away from training, from files and without a cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import ExitStatus, Output, OutputFormat, print_report, run_or_exit

if TYPE_CHECKING:
    from tidegate.reports.feature_drift import DriftReport


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate features`."""
    app.command("stats")(compare_features)


def compare_features(
    training: Annotated[
        Path,
        typer.Option("--training", help="Parquet file with the features of training, or folder of them."),
    ],
    recent: Annotated[
        Path,
        typer.Option("--recent", help="Parquet file with the features of recent rows, or folder of them."),
    ],
    features: Annotated[
        str,
        typer.Option(
            "--features", metavar="A,B", help="Columns to compare; default the features of the files."
        ),
    ] = "",
    ids: Annotated[
        str,
        typer.Option(
            "--ids",
            metavar="A,B",
            help="Columns whose numbers only identify something, such as an item; default those that are hashed, and sequences.",
        ),
    ] = "",
    fail_above: Annotated[
        float | None,
        typer.Option(
            "--fail-above",
            metavar="PSI",
            min=0,
            help="Exit status 1 if a feature has a greater index that chance does not explain, has none, or is missing in a set.",
        ),
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compare the features of recent rows with those of training: defaults, moments, and the population stability index.

    Both are files that `tidegate features compute` has written. An index below 0.1 is Stable, from 0.1 Shifted, from 0.25 Drifted; from 0.1 but below twice BY CHANCE, it is TooFew.
    """
    names, identifiers = (tuple(filter(None, text.split(","))) for text in (features, ids))
    report = run_or_exit(asyncio.to_thread(_compare_files, training, recent, names, identifiers))
    print_report(report, output)
    failures = list(report.list_failures(fail_above)) if fail_above is not None else []
    for failure in failures:
        typer.echo(f"tidegate: {failure}", err=True)
    if failures:
        sys.exit(ExitStatus.FINDING)


def _compare_files(
    training: Path, recent: Path, features: tuple[str, ...], ids: tuple[str, ...]
) -> DriftReport:
    from tidegate.errors import PermanentError

    try:
        from tidegate.services import feature_drift
    except ModuleNotFoundError as error:
        raise PermanentError(f"{error.name} is not installed: install tidegate[features]") from error
    return feature_drift.compare_features(feature_drift.DriftRequest(training, recent, features, ids))
