from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.column_graphs import GRAPHS, ColumnGraph, ColumnSpec
from stages.examples import examples
from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.fuse_embeddings import FusedColumns, fuse_embeddings
from tidegate_dataplane.graph_passes.proof import Session, measure_error
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes

COLUMN = ColumnSpec(
    width=8, entries=5, table=0, ids="own", hots=1, chain="none", pooling="none", keepdims=False, weights="none", bias=0
)  # fmt: skip


def a_graph(*columns: ColumnSpec) -> ColumnGraph:
    return ColumnGraph(columns, int32=False, dense=False, pairs=False, seed=1)


def fuse(model: onnx.ModelProto, *, columns_first: bool = True) -> tuple[onnx.ModelProto, FusedColumns]:
    read = ir.from_proto(model)
    infer_shapes(read)
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


def count_operators(model: onnx.ModelProto, name: str) -> int:
    return sum(node.op_type == name for node in model.graph.node)


def assert_equal_answers(
    model: onnx.ModelProto, rewritten: onnx.ModelProto, request: Mapping[str, Array]
) -> None:
    expected, answer = Session(model).run_request(request), Session(rewritten).run_request(request)
    assert expected is not None
    assert answer is not None
    assert [measure_error(*arrays) for arrays in zip(expected, answer, strict=True)] == [0.0] * len(expected)


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
@pytest.mark.parametrize("chain", ["none", "mod", "clip", "missing", "shift", "hash", "bits", "text"])
def test_a_hundred_columns_become_one_lookup(ids: str, chain: str) -> None:
    column = replace(COLUMN, ids=ids, chain=chain, bias=2)
    model = a_graph(*(replace(column, entries=3 + number % 5) for number in range(100))).build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=100, lookups=1)
    assert count_lookups(rewritten) == 1
    assert len(rewritten.graph.node) <= 20


@pytest.mark.parametrize("chain", ["hash", "bits", "text"])
@pytest.mark.parametrize("ids", ["own", "list", "slice"])
def test_columns_of_hashed_ids_and_texts_are_hashed_at_once_and_answer_the_same(chain: str, ids: str) -> None:
    column = replace(COLUMN, chain=chain, ids=ids, hots=3, pooling="ReduceSum" if ids != "own" else "none")
    graph = a_graph(*(replace(column, entries=40 + number) for number in range(12)))
    model = graph.build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=12, lookups=1)
    assert count_operators(rewritten, "MurmurHash3") == 1
    assert count_operators(rewritten, "If") == 0, "the remainder bounds the ids"
    assert_equal_answers(model, rewritten, graph.request(50, np.random.default_rng(4)))


def test_columns_with_different_seeds_are_not_hashed_as_one() -> None:
    columns = [replace(COLUMN, chain="text", entries=40, table=seed, bias=seed) for seed in (0, 1, 0, 1)]
    graph = a_graph(*columns)
    model = graph.build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=4, lookups=2)
    seeds = [
        attribute.i
        for node in rewritten.graph.node
        for attribute in node.attribute
        if (node.op_type, attribute.name) == ("MurmurHash3", "seed")
    ]
    assert sorted(seeds) == [0, 1]
    assert_equal_answers(model, rewritten, graph.request(50, np.random.default_rng(4)))


def test_columns_with_a_vocabulary_each_keep_it_and_share_a_lookup() -> None:
    columns = [replace(COLUMN, chain="vocabulary", entries=5, table=0, bias=bias) for bias in (0, 1, 3)]
    graph = a_graph(*columns)
    model = graph.build()
    rewritten, fused = fuse(model)
    assert fused == FusedColumns(columns=3, lookups=1)
    assert (count_lookups(rewritten), count_operators(rewritten, "LabelEncoder")) == (1, 3)
    texts = np.array(["0", "2", "4", "never seen", ""], dtype=object)
    answers = Session(rewritten).run_request({f"input.{number}": texts for number in range(3)})
    assert answers is not None
    [table] = [
        onnx.numpy_helper.to_array(weight) for weight in model.graph.initializer if weight.dims == [5, 8]
    ]
    rows = [[0, 2, 4, 4, 4], [1, 3, 0, 4, 4], [3, 0, 2, 4, 4]]
    assert np.array_equal(answers[0], np.concatenate([table[row] for row in rows], axis=1))
    beyond = {
        f"input.{number}": np.array(["0", "5" if number == 1 else "0"], dtype=object) for number in range(3)
    }
    assert Session(model).run_request(beyond) is None, "a vocabulary that is larger than its table"
    assert Session(rewritten).run_request(beyond) is None


@pytest.mark.parametrize("positive", [0, 1])
def test_a_hash_has_the_type_and_shape_that_onnx_runtime_gives_it(positive: int) -> None:
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [
                onnx.helper.make_node("MurmurHash3", ["x"], ["h"], domain="com.microsoft", positive=positive),
                onnx.helper.make_node("MurmurHash3", ["h"], ["y"], domain="com.microsoft", positive=positive),
            ],
            "hashes",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.STRING, ["rows", 3])],
            [onnx.ValueInfoProto(name="y")],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    answers = Session(model).run_request({"x": np.array([["a", "b", "c"]], dtype=object)})
    assert answers is not None
    read = ir.from_proto(model)
    infer_shapes(read)
    for node in read.graph:
        [hashed] = node.outputs
        assert hashed.dtype is not None
        assert hashed.dtype.numpy() == answers[0].dtype
        assert hashed.shape == ir.Shape(["rows", 3])


def test_pooled_and_weighted_columns_are_fused_with_their_pooling() -> None:
    column = replace(COLUMN, ids="list", hots=4, pooling="ReduceSum", weights="mask")
    rewritten, fused = fuse(a_graph(*(column,) * 50).build())
    assert fused == FusedColumns(columns=50, lookups=1)
    # Of the rows, and of the ids that are out of range.
    assert sum(node.op_type == "ReduceSum" for node in rewritten.graph.node) == 2


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
