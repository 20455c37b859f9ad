"""`tidegate optimize`: what graph passes do to an ONNX model, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tidegate.cli.options import ExitStatus, Output, OutputFormat, exit_with_error, print_report

if TYPE_CHECKING:
    from onnx import ModelProto

    from tidegate.reports.optimization import OptimizationReport, PassReport
    from tidegate_dataplane.graph_passes.pipeline import OptimizedModel, PassOutcome

Rows = Annotated[
    list[int] | None,
    typer.Option(min=1, max=4096, help="Rows to measure at; may be repeated. [default: 1, 16, 128]"),
]


def optimize_file(
    model: Annotated[
        Path, typer.Argument(help="ONNX file, which is not changed.", exists=True, dir_okay=False)
    ],
    write: Annotated[Path | None, typer.Option(help="File to write the optimized model to.")] = None,
    shared_input: Annotated[
        list[str] | None,
        typer.Option(help="Input whose rows are equal in most requests, like the user's; may be repeated."),
    ] = None,
    rows: Rows = None,
    requests: Annotated[
        Path | None,
        typer.Option(
            help="File of the sample log (.jsonl or .jsonl.gz) with requests to compare answers on and to measure at as well.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    graphs: Annotated[
        Path | None, typer.Option(help="Folder to write before.dot and after.dot to, for Graphviz.")
    ] = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Apply each graph pass that proves equal to the model and is not slower, on this machine; show what was done.

    Answers are compared on random requests made from the model's inputs and on logged ones, and both graphs are measured at them in turn on one thread of ONNX Runtime.
    """
    try:
        import onnx

        from tidegate_dataplane.graph_passes import drawing, pipeline
    except ModuleNotFoundError as error:
        _exit_with(f"{error.name} is not installed: install tidegate[optimize]")
    for path in (write, None if graphs is None else graphs / "before.dot"):
        if path is not None:
            _make_folder(path.parent)
    try:
        original = onnx.load(model)
    except Exception as error:  # noqa: BLE001  protobuf and onnx have no common class for what is no model
        _exit_with(f"{model} cannot be read as an ONNX model: {error}")
    optimized = _optimize_or_exit(
        original, model, requests, shared_input or (), rows or pipeline.MEASURED_ROWS
    )
    if graphs is not None:
        (graphs / "before.dot").write_text(drawing.draw_graph(original))
        (graphs / "after.dot").write_text(drawing.draw_graph(optimized.model))
    changed = any(outcome.applied for outcome in optimized.outcomes)
    if write is not None and changed:
        onnx.save(optimized.model, write)
    counts = drawing.count_operators(original), drawing.count_operators(optimized.model)
    report = _make_report(model, write if changed else None, counts, optimized)
    print_report(report, output)


def _optimize_or_exit(
    original: ModelProto,
    path: Path,
    requests: Path | None,
    shared_inputs: Sequence[str],
    rows: Sequence[int],
) -> OptimizedModel:
    """Apply the passes; print one line to stderr and exit if that fails."""
    from tidegate_dataplane.graph_passes import logged_requests, pipeline
    from tidegate_dataplane.graph_passes.proof import GraphRefusedError

    initializers = {tensor.name for tensor in original.graph.initializer}
    inputs = frozenset(value.name for value in original.graph.input) - initializers
    try:
        logged = [] if requests is None else logged_requests.read_logged_requests(requests, inputs)
        optimized = pipeline.optimize_model(original, logged, shared_inputs=shared_inputs, measured_rows=rows)
    except logged_requests.LoggedRequestsError as error:
        _exit_with(str(error))
    except MemoryError:
        _exit_with(f"{path}: there is not enough memory to rewrite it, which takes several times its size")
    except GraphRefusedError as error:
        _exit_with(f"{path}: ONNX Runtime does not load it: {error}")
    if logged and not optimized.compared_requests:
        _exit_with(f"{path} refuses all {len(logged)} requests of {requests}: are they of another model?")
    return optimized


def _make_report(
    model: Path,
    written: Path | None,
    counts: tuple[dict[str, int], dict[str, int]],
    optimized: OptimizedModel,
) -> OptimizationReport:
    from tidegate.reports.optimization import OptimizationReport

    before, after = counts
    return OptimizationReport(
        model=str(model),
        output=None if written is None else str(written),
        nodes_before=sum(before.values()),
        nodes_after=sum(after.values()),
        operators_before=before,
        operators_after=after,
        shared_inputs=optimized.shared_inputs,
        logged_requests=optimized.compared_requests,
        passes=tuple(map(_make_pass_report, optimized.outcomes)),
        speedups=_round_speedups(optimized.speedups),
    )


def _make_pass_report(outcome: PassOutcome) -> PassReport:
    from tidegate.reports.optimization import PassReport

    return PassReport(
        name=outcome.name,
        applied=outcome.applied,
        reason=outcome.reason,
        changes=outcome.changes,
        nodes_before=outcome.nodes_before,
        nodes_after=outcome.nodes_after,
        max_error=outcome.finite_error,
        speedups=_round_speedups(outcome.speedups),
    )


def _round_speedups(speedups: Mapping[int, float]) -> dict[int, float]:
    return {rows: round(ratio, 3) for rows, ratio in speedups.items()}


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _exit_with(f"cannot create the folder {path}: {error.strerror}")


def _exit_with(message: str) -> NoReturn:
    exit_with_error(message, ExitStatus.UNKNOWN)
