from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_ir.passes.common import ShapeInferencePass

from builders.column_graphs import GRAPHS, ColumnGraph, ColumnSpec
from stages.examples import examples
from tidegate_dataplane.graph_passes.fuse_embeddings import FusedColumns, fuse_embeddings
from tidegate_dataplane.graph_passes.proof import Session, measure_error

COLUMN = ColumnSpec(
    width=8, entries=5, table=0, ids="own", hots=1, chain="none", pooling="none", keepdims=False, weights="none", bias=0
)  # fmt: skip


def a_graph(*columns: ColumnSpec) -> ColumnGraph:
    return ColumnGraph(columns, int32=False, dense=False, pairs=False, seed=1)


def fuse(model: onnx.ModelProto, *, columns_first: bool = True) -> tuple[onnx.ModelProto, FusedColumns]:
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    fused = fuse_embeddings(read, columns_first=columns_first)
    rewritten = ir.to_proto(read)
    onnx.checker.check_model(rewritten, full_check=True)
    return rewritten, fused


def count_lookups(model: onnx.ModelProto) -> int:
    """Count lookups of embeddings, which are those on axis 0."""
    return sum(
        node.op_type == "Gather"
        and not any(attribute.name == "axis" and attribute.i for attribute in node.attribute)
        for node in model.graph.node
    )


@pytest.mark.parametrize("columns_first", [True, False])
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=GRAPHS, rows=st.integers(1, 5))
def test_answers_are_equal_bit_for_bit_and_ids_out_of_range_fail_as_before(
    columns_first: bool, graph: ColumnGraph, rows: int
) -> None:
    model = graph.build()
    rewritten, _ = fuse(model, columns_first=columns_first)
    assert [output.name for output in rewritten.graph.output] == [
        output.name for output in model.graph.output
    ]
    original, fused = Session(model), Session(rewritten)
    random = np.random.default_rng(graph.seed)
    for count, invalid in ((rows, False), (1, False), (0, False), (rows, True)):
        request = graph.request(count, random, invalid=invalid)
        expected, answer = original.run_request(request), fused.run_request(request)
        assert (expected is None) == (answer is None)
        assert expected is not None or invalid
        for left, right in zip(expected or (), answer or (), strict=True):
            assert measure_error(left, right) == 0.0


@pytest.mark.parametrize("ids", ["own", "list", "gather", "slice", "split"])
@pytest.mark.parametrize("chain", ["none", "mod", "clip", "missing", "shift"])
def test_a_hundred_columns_become_one_lookup(ids: str, chain: str) -> None:
    column = replace(COLUMN, ids=ids, chain=chain, bias=2)
    model = a_graph(*(replace(column, entries=3 + number % 5) for number in range(100))).build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=100, lookups=1)
    assert count_lookups(rewritten) == 1
    assert len(rewritten.graph.node) <= 20


def test_pooled_and_weighted_columns_are_fused_with_their_pooling() -> None:
    column = replace(COLUMN, ids="list", hots=4, pooling="ReduceSum", weights="mask")
    rewritten, fused = fuse(a_graph(*(column,) * 50).build())
    assert fused == FusedColumns(columns=50, lookups=1)
    assert sum(node.op_type == "ReduceSum" for node in rewritten.graph.node) == 1


def test_columns_of_different_widths_share_a_lookup_of_pieces() -> None:
    columns = [replace(COLUMN, width=width) for width in (4, 8, 16, 12) * 10]
    _, fused = fuse(a_graph(*columns).build())
    assert fused == FusedColumns(columns=40, lookups=1)


def test_widths_without_a_large_common_divisor_are_fused_by_width() -> None:
    columns = [replace(COLUMN, width=width) for width in (3, 8, 3, 8)]
    _, fused = fuse(a_graph(*columns).build())
    assert fused == FusedColumns(columns=4, lookups=2)


def test_lists_that_are_joined_without_pooling_are_fused_with_the_joining() -> None:
    rewritten, fused = fuse(a_graph(*(replace(COLUMN, ids="list", hots=3),) * 50).build())
    assert fused == FusedColumns(columns=50, lookups=1)
    assert len(rewritten.graph.node) <= 20


def test_columns_of_different_structure_are_left_apart() -> None:
    columns = [COLUMN, replace(COLUMN, chain="mod"), replace(COLUMN, ids="list", hots=3, pooling="ReduceMax")]
    model = a_graph(*columns).build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=0, lookups=0)
    assert count_lookups(rewritten) == 3


def test_a_shared_table_is_stored_once() -> None:
    rewritten, _ = fuse(a_graph(*(replace(COLUMN, entries=1000),) * 10).build())
    sizes = [np.prod(weight.dims) for weight in rewritten.graph.initializer]
    assert sum(size for size in sizes if size >= 1000) == 1000 * COLUMN.width


def test_a_table_that_callers_may_replace_is_left_alone() -> None:
    model = a_graph(COLUMN, COLUMN).build()
    table = model.graph.initializer[0]
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(table.name, table.data_type, list(table.dims))
    )
    _, fused = fuse(model)
    assert fused.columns == 0
