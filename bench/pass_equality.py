"""P14: whether each graph pass keeps the answers of random graphs, without the proof that leaves out a pass that does not.

    python bench/pass_equality.py [--graphs 1000] [--seed 1]

Graphs are those of the tests (tests/builders): embedding columns of every kind of id, pooling, weight and width, with ids out of
range; and dense layers, attention and repetitions, with inputs of the user sent once and in rows that differ. Each pass, in each
of its variants, rewrites GRAPHS random graphs of either kind. Answers must be equal as the pass states: bit for bit, or within
its tolerance. A pass that moves one number in a thousand must be found out on the same graphs. Prints one JSON document; exits 1
when an answer differs, or that pass is not found out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders import column_graphs, random_graphs
from builders.random_graphs import USER, RandomGraph
from tidegate_dataplane.graph_passes.pipeline import TOLERANCE, Pass, Rewrite, list_passes
from tidegate_dataplane.graph_passes.proof import Session, compare_answers
from tidegate_dataplane.graph_passes.samples import Request, share_inputs
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes
from tidegate_dataplane.graph_passes.share_rows import ShareRowsError


@dataclass
class Tally:
    """What became of the graphs that one variant of a pass rewrote."""

    tolerance: float
    graphs: int = 0
    changed: int = 0
    differing: int = 0
    max_error: float = 0.0

    def count_graph(self, changes: int, error: float) -> None:
        """Count one graph."""
        self.graphs += 1
        self.changed += changes > 0
        self.differing += error > self.tolerance
        self.max_error = max(self.max_error, error)


def lie(model: ir.Model) -> int:
    """Move the first number of the first table or matrix by a thousandth, as a pass with an error might."""
    for value in model.graph.initializers.values():
        array = None if value.const_value is None else value.const_value.numpy()
        if array is not None and array.dtype == np.float32 and array.size > 1:
            wrong = array.copy()
            wrong.reshape(-1)[:] *= 1.001
            value.const_value = ir.tensor(wrong, name=value.name)
            return 1
    return 0


def rewrite_graph(model: onnx.ModelProto, rewrite: Rewrite) -> tuple[onnx.ModelProto, int]:
    """Return the rewritten graph and the number of places that changed."""
    read = ir.from_proto(model)
    infer_shapes(read)
    changes = rewrite(read)
    return ir.to_proto(read), changes


def list_column_requests(graph: column_graphs.ColumnGraph, rows: int) -> Iterator[tuple[Request, Request]]:
    """Yield requests of some rows, of one, of none, and with ids out of range."""
    random = np.random.default_rng(graph.seed)
    for count, invalid in ((rows, False), (1, False), (0, False), (rows, True)):
        request = graph.request(count, random, invalid=invalid)
        yield request, request


def list_dense_requests(
    graph: RandomGraph, rows: int, *, is_sharing: bool
) -> Iterator[tuple[Request, Request]]:
    """Yield requests whose rows of the user differ, and with equal ones, sent once if the pass shares them."""
    for count in (rows, 1):
        random = np.random.default_rng(graph.seed + count)
        different = {
            name: random.standard_normal(array.shape).astype(np.float32)
            for name, array in RandomGraph.request(count, graph.seed).items()
        }
        repeated, once = share_inputs(different, USER)
        yield different, different
        yield repeated, once if is_sharing else repeated


def try_pass(graph_pass: Pass, rewrite: Rewrite, graphs: int, number: int) -> dict[str, Tally]:
    """Return what became of so many random graphs of each kind."""
    tallies = {kind: Tally(graph_pass.tolerance) for kind in ("columns", "dense")}
    is_sharing = bool(graph_pass.shared_inputs)

    def check(kind: str, model: onnx.ModelProto, requests: Iterator[tuple[Request, Request]]) -> None:
        try:
            rewritten, changes = rewrite_graph(model, rewrite)
        except ShareRowsError:
            rewritten, changes = model, 0
        error = compare_answers(Session(model), Session(rewritten), requests).max_error if changes else 0.0
        tallies[kind].count_graph(changes, error)

    def try_columns(graph: column_graphs.ColumnGraph, rows: int) -> None:
        check("columns", graph.build(), list_column_requests(graph, rows))

    def try_dense(graph: RandomGraph, rows: int) -> None:
        check("dense", graph.build(), list_dense_requests(graph, rows, is_sharing=is_sharing))

    if not is_sharing:  # columns have no inputs of the user
        draw_graphs(try_columns, column_graphs.GRAPHS, graphs, number)
    draw_graphs(try_dense, random_graphs.GRAPHS, graphs, number)
    return {kind: tally for kind, tally in tallies.items() if tally.graphs}


def draw_graphs(check: Callable[[Any, int], None], kinds: Any, graphs: int, number: int) -> None:
    """Call `check` with so many random graphs, which are the same for the same number."""
    drawn = given(kinds, st.integers(2, 5))(check)
    quiet = settings(
        max_examples=graphs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    quiet(seed(number)(drawn))()


def main() -> int:
    """Try all passes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", type=int, default=1000, help="of each kind, for each variant of a pass")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    passes: dict[str, Any] = {}
    problems: list[str] = []
    for graph_pass in (*list_passes(USER), Pass("lie", (lie,), TOLERANCE)):
        for variant, rewrite in enumerate(graph_pass.variants):
            name = graph_pass.name if len(graph_pass.variants) == 1 else f"{graph_pass.name} {variant + 1}"
            tallies = try_pass(graph_pass, rewrite, options.graphs, options.seed)
            differing = sum(tally.differing for tally in tallies.values())
            if (differing > 0) != (graph_pass.name == "lie"):
                problems.append(f"{name}: {differing} graphs answer otherwise")
            passes[name] = {
                kind: {
                    "graphs": tally.graphs,
                    "changed": tally.changed,
                    "differing": tally.differing,
                    "max_error": float(f"{tally.max_error:.2e}"),
                    "allowed": tally.tolerance,
                }
                for kind, tally in tallies.items()
            }
    print(json.dumps({"passes": passes, "problems": problems}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
