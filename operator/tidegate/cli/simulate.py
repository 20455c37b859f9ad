"""`tidegate simulate`: what allocation policies would do with a day of demand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.change_options import (
    Ceilings,
    Floors,
    LeastReplicas,
    MostReplicas,
    Pairs,
    RequestValues,
    parse_changes,
    parse_pairs,
)
from tidegate.cli.duration_option import parse_duration_option
from tidegate.cli.options import ExitStatus, Output, OutputFormat, exit_with_error, print_report, run_or_exit
from tidegate.errors import PermanentError

if TYPE_CHECKING:
    from tidegate.api.what_if import DayWhatIf


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("simulate")(simulate_trace)


def simulate_trace(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="CSV file of the demand: a column time, and a column namespace/name with requests per second for each Inference.",
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Option(
            "--filename",
            "-f",
            help="Manifests of the ComputePool and its Inferences; a folder, or - for stdin.",
        ),
    ],
    slices: Annotated[
        int | None,
        typer.Option(
            "--slices", min=1, help="Number of healthy slices of the pool; needed unless they were recorded."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            help="Number of nodes that they are on; with several, the allocator reserves for the loss of one. Default as "
            "recorded, or else 1.",
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Name of the ComputePool, if the manifests have several.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="Policy to run; may be repeated. Default all. The oracle always runs."),
    ] = None,
    last: Annotated[
        str,
        typer.Option(
            "--last", help="End of the trace that is simulated, like 24h; what comes before is the history."
        ),
    ] = "24h",
    interval: Annotated[
        str, typer.Option("--interval", help="Time between two decisions, from 1s to 1h.")
    ] = "1m",
    load: Annotated[
        str | None,
        typer.Option(
            "--load",
            help="Time until a new replica serves. Default as recorded for each Inference, or else 30s.",
        ),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain",
            help="Time until a stopped replica frees its slices. Default as recorded for each Inference, or else 10s.",
        ),
    ] = None,
    quantile: Annotated[
        float, typer.Option("--quantile", help="Quantile of the rate that policy forecast plans for.")
    ] = 0.9,
    demand: Annotated[
        Pairs,
        typer.Option(
            "--demand", help="Another demand for an Inference all day, like ads/ctr=1200, or ads/ctr=x1.5."
        ),
    ] = None,
    factor: Annotated[float, typer.Option("--factor", min=0, help="Factor for all demand.")] = 1.0,
    floor: Floors = None,
    ceiling: Ceilings = None,
    min_replicas: LeastReplicas = None,
    max_replicas: MostReplicas = None,
    value: RequestValues = None,
    dwell: Annotated[
        str | None,
        typer.Option(
            "--dwell", help="Another stabilization window (spec.policy.dwell) of the pool, like 10m."
        ),
    ] = None,
    node_loss: Annotated[
        str | None,
        typer.Option(
            "--node-loss", help="Another spec.policy.nodeLoss.mode of the pool: Priced, Strict or Shared."
        ),
    ] = None,
    event: Annotated[
        Pairs,
        typer.Option("--event", help="Another factor of an event that the allocator plans for, like sale=5."),
    ] = None,
    lose_nodes: Annotated[
        list[str] | None,
        typer.Option(
            "--lose-nodes",
            help="Lose nodes: number@after/lasting, like 1@2h/30m; may be repeated.",
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default",
    html: Annotated[Path | None, typer.Option("--html", help="File to write a page with charts to.")] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Run the allocator and other policies over a recorded or invented day, without a cluster.

    Compares the value served, minutes in which real-time Inferences lacked replicas, and slices moved. Progress goes to stderr.
    """
    from tidegate.services.simulation import SimulationRequest, simulate_policies
    from tidegate.simulation.day import DayOptions

    changes = {
        **parse_changes(
            demand=demand,
            floor=floor,
            ceiling=ceiling,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            value=value,
        ),
        "factor": factor,
        "slices": slices,
        "nodes": nodes,
        "dwell": dwell,
        "nodeLoss": node_loss,
        "events": [{"event": name, "factor": text} for name, text in parse_pairs("--event", event)],
        "lostNodes": [_parse_loss(text) for text in lose_nodes or ()],
    }
    options = DayOptions(
        last=parse_duration_option("--last", last),
        interval=parse_duration_option("--interval", interval),
        load=None if load is None else parse_duration_option("--load", load),
        drain=None if drain is None else parse_duration_option("--drain", drain),
        quantile=quantile,
        policies=tuple(policy or ()),
        changes=_parse_day_question(changes),
    )
    request = SimulationRequest(files, namespace, pool, trace, options)

    def print_step(step: str) -> None:
        typer.echo(step, err=True)

    if html is not None:
        # Before minutes of work, and not after them.
        _write_page(html, "")
    report = run_or_exit(simulate_policies(request, print_step))
    if html is not None:
        _write_page(html, report.render_page())
    print_report(report, output)


def _parse_loss(text: str) -> dict[str, str]:
    """Return the fields of a LostNodes. Raises BadParameter."""
    nodes, mark, times = text.partition("@")
    after, slash, lasting = times.partition("/")
    if not (mark and slash):
        message = f"--lose-nodes {text}: want number@after/lasting, like 1@2h/30m"
        raise typer.BadParameter(message)
    return {"nodes": nodes, "after": after, "lasting": lasting}


def _parse_day_question(body: dict[str, Any]) -> DayWhatIf:
    """Return the changes of the day. Raises BadParameter that names a wrong one."""
    from tidegate.api.what_if import DayWhatIf
    from tidegate.services.what_if import parse_question

    try:
        return parse_question(DayWhatIf, body)
    except PermanentError as error:
        raise typer.BadParameter(str(error)) from error


def _write_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        exit_with_error(f"cannot write {path}: {error}", ExitStatus.UNKNOWN)
