"""`tidegate features compute`: the features of rows in files, as the online path would have answered them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import Output, OutputFormat, print_report, run_or_exit

Pairs = list[str] | None


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate features`."""
    app.command("compute")(compute_features)


def compute_features(
    manifest: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Manifest with the FeatureCompute; a folder, or - for stdin."),
    ],
    rows: Annotated[
        Path,
        typer.Option(
            "--rows",
            help="Parquet file, or folder of them, with a column for each key and each field of the request.",
        ),
    ],
    write: Annotated[
        Path,
        typer.Option(
            "--write", help="File to write the rows with their features to; a folder if --rows is one."
        ),
    ],
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="COLUMN",
            help="Column with the time of each row: features over events are computed as of that time.",
        ),
    ] = None,
    events: Annotated[
        Pairs,
        typer.Option(
            "--events",
            help="Events of a stream, like clicks=PATH: a Parquet file, or a folder of them; may be repeated.",
        ),
    ] = None,
    tables: Annotated[
        Pairs,
        typer.Option(
            "--table",
            help="Copy of a table, like profiles=PATH; default its file:// URI, if that exists here; may be repeated.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the FeatureCompute, if FILE has several.")
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            "--shard", metavar="I/N", help="Compute every N-th file of --rows, from the I-th; I from 0."
        ),
    ] = "0/1",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, read tables and events, and write nothing.")
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Compute the features of rows in Parquet files, each row as it would have been answered online at its time.

    The same engine and plan as in the cluster, without a cluster. Files that an earlier run has written are skipped. Progress goes to stderr.
    """
    from tidegate.services.offline_features import OfflineRequest, compute_offline_features

    index, count = _parse_shard(shard)
    request = OfflineRequest(
        manifest=manifest,
        name=name,
        rows=rows,
        output=write,
        time_column=time,
        tables=_parse_paths("--table", tables),
        events=_parse_paths("--events", events),
        shard=index,
        shards=count,
        dry_run=dry_run,
    )

    def print_step(step: str) -> None:
        typer.echo(step, err=True)

    print_report(run_or_exit(compute_offline_features(request, print_step)), output)


def _parse_paths(option: str, texts: Pairs) -> Mapping[str, Path]:
    paths: dict[str, Path] = {}
    for text in texts or ():
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            message = f"{option} {text}: want name=path"
            raise typer.BadParameter(message)
        if name in paths:
            message = f"{option} {text}: {name} is {paths[name]} already; put the files into one folder"
            raise typer.BadParameter(message)
        paths[name] = Path(path)
    return paths


def _parse_shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        message = f"--shard {text}: want I/N with I from 0 to N - 1, like 0/4"
        raise typer.BadParameter(message)
    return int(index), int(count)
