"""Compile a graph for one shape, in a process that may run out of memory or time without harm to the compiler.

`python3 -m tidegate_dataplane.compiler.compile_engine SOURCE OUTPUT ENGINE PRECISION SHAPE` writes `OUTPUT/buckets.json`, and
`OUTPUT/engine` with the graph of its lookups unless the original graph serves the shape. With `--candidate`, an engine that another pod compiled is compared
with SOURCE instead, and not measured; exit status 1 says that it differs.
"""

import argparse
import atexit
import gc
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import onnx
import onnx_ir as ir

from tidegate_dataplane.compiler.model_file import ModelNotCompiledError, explain_memory, read_model
from tidegate_dataplane.compiler.split_graph import SplitGraph, UnsplitGraphError, split_graph
from tidegate_dataplane.contract import EngineMode, EnginePrecision
from tidegate_dataplane.engines.bucket_shapes import BucketShape, count_rows
from tidegate_dataplane.engines.engine_folder import ENGINE_FILE, CompiledBucket, EngineFolder
from tidegate_dataplane.engines.engine_router import Engine
from tidegate_dataplane.engines.split_engine import (
    Lookups,
    SplitEngine,
    UnfitRequestError,
    list_network_names,
)
from tidegate_dataplane.graph_passes.proof import GraphRefusedError, Session, measure_error, measure_speedups
from tidegate_dataplane.graph_passes.samples import Request, make_edge_requests, make_requests
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes

TOLERANCES: Final = {EnginePrecision.FP32: 1e-5, EnginePrecision.BF16: 2e-2}
"""Largest error of an answer, as a share of the output's largest number."""
MIN_SPEEDUP: Final = 1.05
"""With engine Auto, an engine that is slower is left out: it takes memory, and measurements vary."""
SEEDS: Final = 4


class BucketLeftOutError(Exception):
    """Why the original graph serves a bucket."""


@dataclass(frozen=True, slots=True)
class CompiledFiles:
    """What the runner loads of a bucket."""

    engine: bytes
    lookups: bytes
    """The graph of the lookups; empty without any."""


class EngineSession:
    """An engine with the interface of a session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run_request(self, request: Request) -> list[Any] | None:
        """Return the outputs, None if the lookups or the network fail; raise UnfitRequestError as the engine does."""
        try:
            return self._engine.run_request(request)
        except UnfitRequestError:
            raise
        except Exception:  # noqa: BLE001 - ONNX Runtime's errors have no common class
            return None


def compile_bucket_file(arguments: Sequence[str]) -> int:
    """Compile or prove one bucket; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("engine", type=EngineMode)
    parser.add_argument("precision", type=EnginePrecision)
    parser.add_argument("shape")
    parser.add_argument("--candidate", type=Path)
    options = parser.parse_args(arguments)
    shape: BucketShape = tuple((name, tuple(sizes)) for name, sizes in json.loads(options.shape))
    bucket, files = CompiledBucket(shape), CompiledFiles(b"", b"")
    try:
        bucket, files = compile_bucket(
            read_model(options.source), shape, options.engine, options.precision, options.candidate
        )
    except (BucketLeftOutError, ModelNotCompiledError) as reason:
        bucket = replace(bucket, reason=str(reason))
    except MemoryError:
        bucket = replace(bucket, reason=str(explain_memory(options.source.stat().st_size)))
    if options.candidate is not None and bucket.reason:
        return 1
    folder = EngineFolder(options.output)
    if files.lookups:
        folder.lookups_path(bucket.lookups).write_bytes(files.lookups)
    if files.engine and options.candidate is None:
        (options.output / ENGINE_FILE).write_bytes(files.engine)
    folder.write_buckets([bucket])
    return 0


def compile_bucket(
    model: onnx.ModelProto,
    shape: BucketShape,
    mode: EngineMode,
    precision: EnginePrecision,
    candidate: Path | None = None,
) -> tuple[CompiledBucket, CompiledFiles]:
    """Return what became of a bucket and its files; raise BucketLeftOutError if the original graph is to serve it.

    With `candidate`, that engine is compared instead, and not measured.
    """
    fixed = fix_dimensions(model, shape)
    samples = list(_make_samples(fixed, shape))
    try:
        original, parts = Session(model), split_graph(model, fixed)
    except GraphRefusedError as error:
        raise BucketLeftOutError(f"ONNX Runtime does not load the graph: {error}") from error
    except UnsplitGraphError as error:
        raise BucketLeftOutError(str(error)) from error
    graph = b"" if parts.lookups is None else parts.lookups.SerializeToString(deterministic=True)
    lookups = Lookups(graph, threads=1) if graph else None
    blob = (
        _compile_network(parts, lookups, samples, precision) if candidate is None else candidate.read_bytes()
    )
    engine = _open_engine(model, parts, lookups, blob, precision)
    max_error = compare_engine(original, engine, samples)
    if max_error > TOLERANCES[precision]:
        raise BucketLeftOutError(
            f"the answers of OpenVINO differ by {max_error:.1e}, {TOLERANCES[precision]:.0e} is allowed with {precision.value}"
        )
    speedup = 0.0
    if candidate is None:
        speedup = _measure_engine(original, engine, samples[0])
        if mode is EngineMode.AUTO and speedup < MIN_SPEEDUP:
            raise BucketLeftOutError(f"OpenVINO is no faster than ONNX Runtime: {speedup:.2f}x")
    bucket = CompiledBucket(
        shape,
        EngineMode.OPENVINO.value,
        ENGINE_FILE,
        speedup=round(speedup, 3),
        max_error=max_error,
        lookups=hashlib.sha256(graph).hexdigest() if graph else "",
        checked=parts.checked_inputs,
    )
    return bucket, CompiledFiles(blob, graph)


def fix_dimensions(model: onnx.ModelProto, shape: BucketShape) -> ir.Model:
    """Return the graph with inputs of exactly this shape, and what follows from it; weights are not copied."""
    fixed = ir.from_proto(model)
    sizes_by_name = dict(shape)
    for value in fixed.graph.inputs:
        if value.is_initializer():
            continue
        sizes, rank = sizes_by_name.get(str(value.name)), 0 if value.shape is None else len(value.shape)
        if sizes is None or len(sizes) != rank:
            raise BucketLeftOutError(f"requests have no input {value.name} with {rank} dimensions")
        value.shape = ir.Shape(sizes)
    # Inference keeps a shape that a value has, with its free dimensions.
    for node in fixed.graph:
        for value in node.outputs:
            value.shape = None
    infer_shapes(fixed)
    return fixed


def compare_engine(original: Session, engine: EngineSession, requests: Iterable[Request]) -> float:
    """Return the largest error of the requests that the engine takes.

    Raise BucketLeftOutError if the engine answers what the model refuses, or nothing was compared.
    """
    compared, error = 0, 0.0
    for request in requests:
        try:
            answer = engine.run_request(request)
        except UnfitRequestError:
            continue
        expected = original.run_request(request)
        if expected is None and answer is not None:
            raise BucketLeftOutError(
                "OpenVINO answers requests that the model refuses, such as ids out of range"
            )
        if expected is None:
            continue
        if answer is None:
            raise BucketLeftOutError("OpenVINO refuses requests that the model answers")
        compared += 1
        error = max(error, *map(measure_error, expected, answer))
    if not compared:
        raise BucketLeftOutError(
            "the model answers no sampled request of this shape, so nothing could be compared"
        )
    return error


def _compile_network(
    parts: SplitGraph, lookups: Lookups | None, samples: Sequence[Request], precision: EnginePrecision
) -> bytes:
    values = _compute_network_inputs(parts, lookups, samples)
    try:
        from tidegate_dataplane.engines.openvino_engine import export_network
    except ImportError as error:
        raise BucketLeftOutError("this image has no Python package openvino") from error
    try:
        return export_network(parts.build_network(values).SerializeToString(), precision.value)
    except RuntimeError as error:
        raise _explain_refusal(error) from error


def _compute_network_inputs(
    parts: SplitGraph, lookups: Lookups | None, samples: Sequence[Request]
) -> Mapping[str, Any]:
    """Return what the network reads for a request that the model answers."""
    for request in samples:
        try:
            return {**request, **(lookups.run_request(request) if lookups is not None else {})}
        except Exception:  # noqa: BLE001, S112 - an id that was made up may be outside of its table
            continue
    raise BucketLeftOutError(
        "the model answers no sampled request of this shape, so nothing could be compared"
    )


def _open_engine(
    model: onnx.ModelProto,
    parts: SplitGraph,
    lookups: Lookups | None,
    blob: bytes,
    precision: EnginePrecision,
) -> EngineSession:
    try:
        from tidegate_dataplane.engines.openvino_engine import load_network
    except ImportError as error:
        raise BucketLeftOutError("this image has no Python package openvino") from error
    inputs, outputs = ([value.name for value in values] for values in (model.graph.input, model.graph.output))
    names = list_network_names(inputs, outputs, lookups)
    try:
        network = load_network(blob, *names, precision=precision.value, threads=1)
    except RuntimeError as error:
        raise _explain_refusal(error) from error
    return EngineSession(SplitEngine(lookups, network, checked=parts.checked_inputs, outputs=outputs))


def _explain_refusal(error: RuntimeError) -> BucketLeftOutError:
    """Return the last point of OpenVINO's summary, which names the operators, else the last line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    points = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    return BucketLeftOutError(f"OpenVINO does not compile the graph: {[str(error), *lines, *points][-1]}")


def _make_samples(model: ir.Model, shape: BucketShape) -> Iterator[Request]:
    for seed in range(SEEDS):
        yield from make_requests(model, (count_rows(shape),), seed=seed)
    yield from make_edge_requests(model)


def _measure_engine(original: Session, engine: EngineSession, request: Request) -> float:
    try:
        # Processor time of the process, since an engine may have threads of its own.
        [ratio] = measure_speedups(original, engine, [(request, request)], clock=time.process_time)
    except ValueError as error:
        raise BucketLeftOutError(f"it cannot be measured: {error}") from error
    return ratio


if __name__ == "__main__":
    # Python would end with a search of all that is imported for garbage.
    atexit.register(gc.freeze)
    sys.exit(compile_bucket_file(sys.argv[1:]))
