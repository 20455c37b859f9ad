"""Compile a graph for one shape, in a process that may run out of memory or time without harm to the compiler.

`python3 -m tidegate_dataplane.compiler.compile_engine SOURCE OUTPUT ENGINE PRECISION SHAPE` writes `OUTPUT/buckets.json`, and
`OUTPUT/engine` unless the original graph serves the shape. With `--candidate`, an engine that another pod compiled is compared
with SOURCE instead, and not measured; exit status 1 says that it differs.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from tidegate_dataplane.compiler.lookup_bounds import UnguardedLookupError, list_lookup_bounds
from tidegate_dataplane.contract import EngineMode, EnginePrecision
from tidegate_dataplane.engines.bucket_shapes import BucketShape, count_rows
from tidegate_dataplane.engines.engine_folder import CompiledBucket, EngineFolder
from tidegate_dataplane.engines.request_guard import ALL_COLUMNS, RequestGuard
from tidegate_dataplane.graph_passes.proof import GraphRefusedError, Session, measure_error, measure_speedups
from tidegate_dataplane.graph_passes.samples import Request, make_edge_requests, make_requests

ENGINE_FILE: Final = "engine"
TOLERANCES: Final = {EnginePrecision.FP32: 1e-5, EnginePrecision.BF16: 2e-2}
"""Largest error of an answer, as a share of the output's largest number."""
MIN_SPEEDUP: Final = 1.05
"""With engine Auto, an engine that is slower is left out: it takes memory, and measurements vary."""
SEEDS: Final = 4
_INTEGER_OPERATORS: Final = frozenset({"BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"})
"""They compute hashes of 64 bits, for which OpenVINO has 32."""


class BucketLeftOutError(Exception):
    """Why the original graph serves a bucket."""


class EngineSession:
    """A compiled graph with the interface of a session."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def run_request(self, request: Request) -> list[Any] | None:
        """Return the outputs, None if the engine fails."""
        try:
            return list(self._engine.run_request(request))
        except RuntimeError:
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
    try:
        bucket, blob = compile_bucket(
            onnx.load(options.source), shape, options.engine, options.precision, options.candidate
        )
    except BucketLeftOutError as reason:
        bucket, blob = CompiledBucket(shape, reason=str(reason)), b""
    if options.candidate is not None and bucket.reason:
        return 1
    if blob and options.candidate is None:
        (options.output / ENGINE_FILE).write_bytes(blob)
    EngineFolder(options.output).write_buckets([bucket])
    return 0


def compile_bucket(
    model: onnx.ModelProto,
    shape: BucketShape,
    mode: EngineMode,
    precision: EnginePrecision,
    candidate: Path | None = None,
) -> tuple[CompiledBucket, bytes]:
    """Return what became of a bucket and the engine's file; raise BucketLeftOutError if the original graph is to serve it.

    With `candidate`, that engine is compared instead, and not measured.
    """
    fixed = fix_dimensions(model, shape)
    inferred = ir.from_proto(fixed)
    ShapeInferencePass()(inferred)
    operators = {node.op_type for node in inferred.graph} & _INTEGER_OPERATORS
    if operators:
        raise BucketLeftOutError(f"OpenVINO has no integers of 64 bits, which {min(operators)} may need")
    try:
        bounds = list_lookup_bounds(inferred.graph)
        original = Session(fixed)
    except UnguardedLookupError as error:
        raise BucketLeftOutError(str(error)) from error
    except GraphRefusedError as error:
        raise BucketLeftOutError(f"ONNX Runtime does not load the graph with this shape: {error}") from error
    engine, blob = _make_engine(fixed, precision, candidate)
    max_error = compare_engine(original, engine, RequestGuard(bounds), _make_samples(inferred, shape, bounds))
    if max_error > TOLERANCES[precision]:
        raise BucketLeftOutError(
            f"the answers of OpenVINO differ by {max_error:.1e}, {TOLERANCES[precision]:.0e} is allowed with {precision.value}"
        )
    speedup = 0.0
    if candidate is None:
        speedup = _measure_engine(original, engine, next(make_requests(inferred, (count_rows(shape),))))
        if mode is EngineMode.AUTO and speedup < MIN_SPEEDUP:
            raise BucketLeftOutError(f"OpenVINO is no faster than ONNX Runtime: {speedup:.2f}x")
    bucket = CompiledBucket(
        shape,
        EngineMode.OPENVINO.value,
        ENGINE_FILE,
        speedup=round(speedup, 3),
        max_error=max_error,
        bounds=bounds,
    )
    return bucket, blob


def fix_dimensions(model: onnx.ModelProto, shape: BucketShape) -> onnx.ModelProto:
    """Return the graph with inputs of exactly this shape."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    sizes_by_name = dict(shape)
    initializers = {tensor.name for tensor in fixed.graph.initializer}
    for value in fixed.graph.input:
        if value.name in initializers:
            continue
        dimensions = value.type.tensor_type.shape.dim
        sizes = sizes_by_name.get(value.name)
        if sizes is None or len(sizes) != len(dimensions):
            raise BucketLeftOutError(f"requests have no input {value.name} with {len(dimensions)} dimensions")
        for dimension, size in zip(dimensions, sizes, strict=True):
            dimension.dim_value = size
    return fixed


def compare_engine(
    original: Session, engine: EngineSession, guard: RequestGuard, requests: Iterator[Request]
) -> float:
    """Return the largest error of the requests that the guard lets through to the engine.

    Raise BucketLeftOutError if the engine answers what the model refuses, or nothing was compared.
    """
    compared, error = 0, 0.0
    for request in requests:
        if not guard.accepts_request(request):
            continue
        expected, answer = original.run_request(request), engine.run_request(request)
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


def _make_engine(
    fixed: onnx.ModelProto, precision: EnginePrecision, candidate: Path | None
) -> tuple[EngineSession, bytes]:
    try:
        from tidegate_dataplane.engines import openvino_engine
    except ImportError as error:
        raise BucketLeftOutError("this image has no Python package openvino") from error
    outputs = [output.name for output in fixed.graph.output]
    try:
        if candidate is not None:
            blob = candidate.read_bytes()
            engine = openvino_engine.OpenVinoEngine.load_blob(
                blob, outputs, precision=precision.value, threads=1
            )
        else:
            compiled, blob = openvino_engine.compile_graph(fixed.SerializeToString(), precision.value)
            engine = openvino_engine.OpenVinoEngine(compiled, outputs)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BucketLeftOutError(
            f"OpenVINO does not compile the graph: {lines[-1] if lines else error}"
        ) from error
    return EngineSession(engine), blob


def _make_samples(
    model: ir.Model, shape: BucketShape, bounds: Mapping[str, Mapping[str, int]]
) -> Iterator[Request]:
    for seed in range(SEEDS):
        yield from make_requests(model, (count_rows(shape),), seed=seed)
    yield from make_edge_requests(model)
    yield from _make_wild_requests(model, shape, bounds)


def _make_wild_requests(
    model: ir.Model, shape: BucketShape, bounds: Mapping[str, Mapping[str, int]]
) -> Iterator[Request]:
    """Yield requests with large integers in the inputs that index no known table: they may index one all the same."""
    random = np.random.default_rng(9)
    [request] = make_requests(model, (count_rows(shape),), seed=9)
    for name, array in request.items():
        if array.dtype.kind not in "iu" or str(ALL_COLUMNS) in bounds.get(name, {}):
            continue
        limits = np.iinfo(array.dtype)
        for low, high in ((0, 2), (-3, 300), (max(limits.min, -(2**31)), min(limits.max, 2**31))):
            wild = random.integers(max(low, limits.min), high, array.shape).astype(array.dtype)
            for column in bounds.get(name, {}):
                wild[:, int(column)] = array[:, int(column)]
            yield {**request, name: wild}


def _measure_engine(original: Session, engine: Any, request: Request) -> float:
    try:
        # Processor time of the process, since an engine may have threads of its own.
        [ratio] = measure_speedups(original, engine, [(request, request)], clock=time.process_time)
    except ValueError as error:
        raise BucketLeftOutError(f"it cannot be measured: {error}") from error
    return ratio


if __name__ == "__main__":
    sys.exit(compile_bucket_file(sys.argv[1:]))
