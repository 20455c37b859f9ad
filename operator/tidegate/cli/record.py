"""`tidegate record`: the demand and the objects of a pool, for `tidegate simulate`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.duration_option import parse_duration_option
from tidegate.cli.options import (
    KubeOptions,
    NameAfterKind,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.recording import RecordingReport

_MIN_STEP: Final = timedelta(seconds=10)
_MAX_STEP: Final = timedelta(hours=1)


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("record")(record_demand)


@with_cluster_options
def record_demand(
    pool: Annotated[
        str,
        typer.Argument(
            metavar="POOL",
            help="Name of a ComputePool, or pool/name.",
            autocompletion=complete_names(CompletedKind.POOL),
        ),
    ],
    name: NameAfterKind = None,
    prometheus: Annotated[
        str, typer.Option("--prometheus", help="Address of Prometheus, like http://127.0.0.1:9090.")
    ] = "",
    since: Annotated[str, typer.Option("--since", help="Length of the time until now, like 24h.")] = "24h",
    begin: Annotated[
        str | None, typer.Option("--from", help="Begin of the time in RFC 3339, instead of --since.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="End of the time in RFC 3339; default now.")] = None,
    step: Annotated[str, typer.Option("--step", help="Time between two rates, from 10s to 1h.")] = "1m",
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Folder for trace.csv and pool.yaml.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files of an earlier record.")] = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Write the demand of a pool's Inferences from Prometheus, and the pool's manifests, as files that `tidegate simulate` reads."""
    from tidegate.cli.object_names import join_kind, parse_pool_name
    from tidegate.services.recorded_day import RecordedSpan
    from tidegate.services.recording import RecordingRequest, record_pool
    from tidegate.simulation.scenario import MAX_INTERVALS

    if not prometheus:
        message = (
            "--prometheus is needed: the address of the Prometheus that scrapes the gateways, such as "
            "http://127.0.0.1:9090 of a kubectl port-forward"
        )
        raise typer.BadParameter(message)
    step_length = parse_duration_option("--step", step)
    if not _MIN_STEP <= step_length <= _MAX_STEP:
        message = f"--step {step}: want 10s to 1h"
        raise typer.BadParameter(message)
    ends = datetime.now(UTC) if end is None else _parse_time("--to", end)
    begins = ends - parse_duration_option("--since", since) if begin is None else _parse_time("--from", begin)
    count = (ends - begins) // step_length
    if not 1 <= count <= MAX_INTERVALS:
        message = f"the time has {count} steps of {step}: want 1 to {MAX_INTERVALS}"
        raise typer.BadParameter(message)
    # Whole steps, so that a record of the same time has the same lines.
    step_s = step_length.total_seconds()
    begins = datetime.fromtimestamp(begins.timestamp() // step_s * step_s, UTC)
    request = RecordingRequest(
        parse_pool_name(join_kind(pool, name)),
        prometheus,
        RecordedSpan(begins, step_length, count),
        directory,
        force,
    )

    async def write_record() -> RecordingReport:
        async with open_client(KubeOptions(cluster=cluster)) as (client, _):
            return await record_pool(client, request)

    print_report(run_or_exit(write_record()), output)


def _parse_time(option: str, text: str) -> datetime:
    """Parse a time. Raises BadParameter that begins with `option`."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{option} {text}: want a time in RFC 3339, like 2026-11-26T18:00:00Z"
        raise typer.BadParameter(message) from error
    if parsed.tzinfo is None:
        message = f"{option} {text}: has no time zone; add Z for UTC"
        raise typer.BadParameter(message)
    return parsed.astimezone(UTC)
