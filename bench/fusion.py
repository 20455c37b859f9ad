"""P14: how many times faster ONNX Runtime answers when the embedding columns of a graph are fused into one lookup.

    python bench/fusion.py [--columns 1000] [--width 8] [--entries 1000] [--seconds 1]

Each column is a table of `entries` rows and one id; all ids come in one matrix, as click logs have them. Arms in turn, on one
thread: the graph as exported (a lookup for each column), and the two layouts of the fused one, of which `tidegate optimize`
keeps the faster. A second model has three ids for each column and
sums them. Answers are compared bit for bit, and an id out of range must fail on both. Prints one JSON document; exits 1 when
a speed-up of the first model misses its target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.column_graphs import MATRIX, ColumnGraph, ColumnSpec
from tidegate_dataplane.graph_passes.fuse_embeddings import fuse_embeddings
from tidegate_dataplane.graph_passes.proof import Session, measure_error

TARGETS = {1: 50.0, 16: 5.0, 128: 2.0}
COLUMN = ColumnSpec(
    width=8, entries=1000, table=0, ids="gather", hots=1, chain="none", pooling="none", keepdims=False, weights="none",
    bias=0,
)  # fmt: skip


def build(columns: int, column: ColumnSpec) -> ColumnGraph:
    """Return columns with a table each: tables are shared by number, so the number of entries differs."""
    specs = [replace(column, entries=column.entries + number) for number in range(columns)]
    return ColumnGraph(specs, int32=False, dense=False, pairs=False, seed=1)


def fuse(model: onnx.ModelProto, *, columns_first: bool) -> onnx.ModelProto:
    """Return the fused model."""
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    fuse_embeddings(read, columns_first=columns_first)
    return ir.to_proto(read)


def measure(arms: Sequence[Session], request: Mapping[str, Any], seconds: float) -> list[float]:
    """Return the median milliseconds of all arms, in turn."""
    times: list[list[float]] = [[] for _ in arms]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 20:
        for session, taken in zip(arms, times, strict=True):
            start = time.perf_counter()
            session.run_request(request)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) * 1e3 for taken in times]


def run(columns: int, column: ColumnSpec, seconds: float) -> dict[str, Any]:
    """Measure one model at each number of rows."""
    graph = build(columns, column)
    model = graph.build()
    rewritten = [fuse(model, columns_first=columns_first) for columns_first in (True, False)]
    original, *fused = arms = [Session(each) for each in (model, *rewritten)]
    random = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for rows in TARGETS:
        request = graph.request(rows, random)
        expected = original.run_request(request)
        assert expected is not None, "a valid request is answered"
        errors = [
            max(map(measure_error, expected, answer))
            if (answer := session.run_request(request)) is not None
            else np.inf
            for session in fused
        ]
        before, columns_first, rows_first = measure(arms, request, seconds)
        found.append(
            {
                "rows": rows,
                "original_ms": round(before, 4),
                "columns_first_ms": round(columns_first, 4),
                "rows_first_ms": round(rows_first, 4),
                "speedups": [round(before / columns_first, 2), round(before / rows_first, 2)],
                "max_error": max(errors),
            }
        )
    means = [statistics.geometric_mean(each["speedups"][layout] for each in found) for layout in (0, 1)]
    best = means.index(max(means))
    invalid = graph.request(4, random)
    invalid[MATRIX][2, 5] = 10**9
    return {
        "nodes": [len(model.graph.node), len(rewritten[best].graph.node)],
        "kept": ("columns first", "rows first")[best],
        "speedup": {each["rows"]: each["speedups"][best] for each in found},
        "measured": found,
        "out_of_range_fails": all(session.run_request(invalid) is None for session in arms),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=1000)
    parser.add_argument("--width", type=int, default=COLUMN.width)
    parser.add_argument("--entries", type=int, default=COLUMN.entries)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each model and number of rows")
    options = parser.parse_args()
    column = replace(COLUMN, width=options.width, entries=options.entries)
    pooled = replace(column, ids="slice", hots=3, pooling="ReduceSum")
    models = {
        "one id": run(options.columns, column, options.seconds),
        "three ids, summed": run(options.columns, pooled, options.seconds),
    }
    missed = [
        f"{rows} rows: {speedup} of {TARGETS[rows]}"
        for rows, speedup in models["one id"]["speedup"].items()
        if speedup < TARGETS[rows]
    ]
    wrong = [
        name
        for name, found in models.items()
        if not found["out_of_range_fails"] or any(each["max_error"] for each in found["measured"])
    ]
    print(
        json.dumps({"columns": options.columns, "models": models, "missed": missed, "wrong": wrong}, indent=1)
    )
    sys.exit(bool(missed or wrong))


if __name__ == "__main__":
    main()
