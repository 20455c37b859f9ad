"""Apply the graph passes to one model file, in a process that may run out of memory or time without harm to the compiler.

`python3 -m tidegate_dataplane.compiler.optimize SOURCE OUTPUT` writes `OUTPUT/result.json`, and `OUTPUT/graph.onnx` if the
passes found a faster graph. Each `--request` is a file with the request of a client, on which answers are compared as well;
the most frequent of their shapes are measured.
With `--candidate`, a graph that another pod compiled is compared with SOURCE, and no pass runs; `OUTPUT/comparison.json` says
how far it differs.
"""

import argparse
import atexit
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.compiler.compare_requests import explain_difference, read_requests
from tidegate_dataplane.compiler.exchange import (
    COMPARISON_FILE,
    GRAPH_FILE,
    CompileResult,
    RequestComparison,
)
from tidegate_dataplane.compiler.model_file import ModelNotCompiledError, explain_memory, read_model
from tidegate_dataplane.contract import PassResult
from tidegate_dataplane.graph_passes.payoff import explain_slowness
from tidegate_dataplane.graph_passes.pipeline import (
    MEASURED_ROWS,
    TOLERANCE,
    OptimizedModel,
    PassOutcome,
    compare_models,
    compare_requests,
    optimize_model,
)
from tidegate_dataplane.graph_passes.proof import GraphRefusedError
from tidegate_dataplane.graph_passes.samples import Request


def compile_file(arguments: Sequence[str]) -> int:
    """Compile or prove a graph; return the exit status."""
    options = _parse_arguments(arguments)
    try:
        model = read_model(options.source)
        requests = read_requests(options.request)
        if options.candidate is not None:
            comparison = _prove_graph(model, options.candidate, requests, options.shared_input)
            (options.output / COMPARISON_FILE).write_text(comparison.model_dump_json())
            return 0
        result = _compile_graph(model, options, requests, options.output / GRAPH_FILE)
    except ModelNotCompiledError as error:
        result = CompileResult(message=str(error))
    (options.output / "result.json").write_text(result.model_dump_json())
    return 0


def _parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--candidate", type=Path)
    parser.add_argument("--max-rows", type=int, default=MEASURED_ROWS[-1])
    parser.add_argument("--shared-input", action="append", default=[])
    parser.add_argument("--request", action="append", default=[], type=Path)
    return parser.parse_args(arguments)


def _compile_graph(
    model: onnx.ModelProto, options: argparse.Namespace, requests: Sequence[Request], target: Path
) -> CompileResult:
    started = time.monotonic()
    # More rows than a request can have would decide about a pass that no request gets.
    measured_rows = sorted({min(rows, options.max_rows) for rows in MEASURED_ROWS})
    try:
        optimized = optimize_model(
            model, requests, shared_inputs=options.shared_input, measured_rows=measured_rows
        )
        optimized = _refuse_slower(model, optimized)
    except GraphRefusedError as error:
        return CompileResult(
            message=f"ONNX Runtime does not load the model here: {error}; remove spec.compile"
        )
    except MemoryError as error:
        raise explain_memory(model.ByteSize()) from error
    digest = ""
    if any(outcome.applied for outcome in optimized.outcomes):
        onnx.save(optimized.model, target)
        digest = hash_file(target)
    return CompileResult(
        graph_sha256=digest,
        shared_inputs=optimized.shared_inputs,
        passes=tuple(map(_describe_pass, optimized.outcomes)),
        speedups={rows: round(ratio, 3) for rows, ratio in optimized.speedups.items()},
        nodes_before=len(model.graph.node),
        nodes_after=len(optimized.model.graph.node),
        seconds=round(time.monotonic() - started, 1),
        compared_requests=optimized.compared_requests if digest else 0,
    )


def _refuse_slower(model: onnx.ModelProto, optimized: OptimizedModel) -> OptimizedModel:
    """Return the published model if the passes together do not pay, although each of them did."""
    speedups, clients = optimized.speedups, optimized.client_speedups
    shares_rows = bool(optimized.shared_inputs)
    if not speedups or not explain_slowness(speedups, clients, shares_rows=shares_rows):
        return optimized
    ratios = [
        *(f"{ratio:.2f}x at {rows} rows" for rows, ratio in speedups.items()),
        *(f"{client.ratio:.2f}x at a client's request of {client.rows} rows" for client in clients),
    ]
    reason = f"all passes together are no faster: {', '.join(ratios)}"
    outcomes = tuple(
        replace(outcome, applied=False, reason=reason) if outcome.applied else outcome
        for outcome in optimized.outcomes
    )
    return OptimizedModel(model, (), outcomes, {})


def _prove_graph(
    model: onnx.ModelProto, candidate: Path, requests: Sequence[Request], shared_inputs: Sequence[str]
) -> RequestComparison:
    """Return whether a graph from the node's cache answers random requests and those of clients like the model."""
    try:
        graph = onnx.load(candidate)
        random = compare_models(model, graph)
        if not random.answered or random.max_error > TOLERANCE:
            return RequestComparison(answered=0, error=f"random requests differ by {random.max_error:.1e}")
        clients = compare_requests(model, graph, requests, shared_inputs)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the file, it is compiled anew
        return RequestComparison(answered=0, error=repr(error))
    return RequestComparison(answered=clients.answered, error=explain_difference(clients))


def _describe_pass(outcome: PassOutcome) -> PassResult:
    return PassResult(
        name=outcome.name,
        applied=outcome.applied,
        reason=outcome.reason,
        changes=outcome.changes,
        max_error=outcome.finite_error,
    )


if __name__ == "__main__":
    # Python would end with a search of all that is imported for garbage.
    atexit.register(gc.freeze)
    sys.exit(compile_file(sys.argv[1:]))
