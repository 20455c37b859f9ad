"""A graph is split so that its parts answer as it does, and no id, hash or 64-bit number reaches an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from builders.column_graphs import COLUMNS, ColumnGraph, ColumnSpec
from builders.engine_models import build_history_model, make_history_request
from builders.onnx_models import a_model, a_tensor
from tidegate_dataplane.compiler.compile_engine import fix_dimensions
from tidegate_dataplane.compiler.split_graph import SplitGraph, UnsplitGraphError, split_graph
from tidegate_dataplane.engines.split_engine import (
    Lookups,
    SplitEngine,
    UnfitRequestError,
    copy_array,
    list_network_names,
)
from tidegate_dataplane.graph_passes.fuse_embeddings import fuse_embeddings
from tidegate_dataplane.graph_passes.proof import Session
from tidegate_dataplane.graph_passes.shape_inference import infer_shapes

Array = NDArray[Any]
Request = Mapping[str, Array]
ROWS = 3


class OrtNetwork:
    """A network in ONNX Runtime, with arrays of its own as those of an engine."""

    def __init__(self, graph: onnx.ModelProto, outputs: Sequence[str]) -> None:
        self._session = Lookups(graph.SerializeToString(), threads=1)
        self._outputs = outputs
        self.inputs: Mapping[str, Array] = {
            value.name: np.zeros(
                [dim.dim_value for dim in value.type.tensor_type.shape.dim],
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            )
            for value in graph.graph.input
        }

    def compute_outputs(self) -> list[Array]:
        results = self._session.run_request(self.inputs)
        return [results[name] for name in self._outputs]


def split(model: onnx.ModelProto, request: Request) -> SplitGraph:
    return split_graph(model, fix_dimensions(model, tuple((name, a.shape) for name, a in request.items())))


def open_parts(model: onnx.ModelProto, request: Request) -> SplitEngine:
    """Return the parts of a model for the shape of a request, with ONNX Runtime in the place of the engine."""
    parts = split(model, request)
    lookups = None if parts.lookups is None else Lookups(parts.lookups.SerializeToString(), threads=1)
    names = [output.name for output in model.graph.output]
    _, computed = list_network_names(list(request), names, lookups)
    values = {**request, **(lookups.run_request(request) if lookups is not None else {})}
    network = OrtNetwork(parts.build_network(values), computed)
    return SplitEngine(lookups, network, checked=parts.checked_inputs, outputs=names)


def fuse(model: onnx.ModelProto, *, columns_first: bool) -> onnx.ModelProto:
    read = ir.from_proto(model)
    infer_shapes(read)
    fuse_embeddings(read, columns_first=columns_first)
    return ir.to_proto(read)


def has_network(model: onnx.ModelProto, request: Request) -> bool:
    try:
        split(model, request)
    except UnsplitGraphError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(
    columns=st.lists(COLUMNS, min_size=2, max_size=6),
    int32=st.booleans(),
    dense=st.booleans(),
    fused=st.sampled_from((None, True, False)),
    seed=st.integers(0, 1000),
)
def test_random_columns_are_answered_and_refused_as_the_graph_does(
    columns: list[ColumnSpec], int32: bool, dense: bool, fused: bool | None, seed: int
) -> None:
    graph = ColumnGraph(columns, int32=int32, dense=dense, pairs=True, seed=seed)
    published = graph.build()
    model = published if fused is None else fuse(published, columns_first=fused)
    random = np.random.default_rng(seed)
    request = graph.request(ROWS, random)
    original, engine = Session(published), open_parts(model, request)
    for number in range(6):
        request = graph.request(ROWS, random, invalid=number % 2 == 1)
        expected = original.run_request(request)
        if expected is None:
            with pytest.raises(Exception, match="indices element out of data bounds"):
                engine.run_request(request)
            continue
        for answer, wanted in zip(engine.run_request(request), expected, strict=True):
            np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-6)


def test_the_network_of_a_fused_graph_has_no_table_and_no_integer() -> None:
    spec = ColumnSpec(8, 1000, 0, "gather", 1, "none", "none", keepdims=False, weights="none", bias=0)
    graph = ColumnGraph([spec] * 20, int32=False, dense=True, pairs=False, seed=1)
    fused = fuse(graph.build(), columns_first=True)
    parts = split(fused, graph.request(ROWS, np.random.default_rng(1)))
    assert parts.lookups is not None
    operators = {node.op_type for node in parts.lookups.graph.node}
    assert {"Gather", "If"} <= operators
    assert {value.dtype for value in parts.network.graph.inputs} == {ir.DataType.FLOAT}
    assert not parts.network.graph.initializers.keys() & {
        tensor.name for tensor in parts.lookups.graph.initializer if len(tensor.dims) == 2
    }
    assert parts.checked_inputs == ("dense",), "rows of tables are finite"


def test_a_network_reads_rows_and_masks_and_keeps_its_shapes() -> None:
    model, request = build_history_model(), make_history_request(4, 7)
    parts = split(model, request)
    assert parts.lookups is not None
    assert set(parts.network_inputs) == {"items", "target", "valid"}
    assert parts.checked_inputs == ()
    assert parts.lookups.SerializeToString() == split_lookups_of(model, make_history_request(9, 3))
    expected = Session(model).run_request(request)
    assert expected is not None
    np.testing.assert_allclose(open_parts(model, request).run_request(request)[0], expected[0], rtol=1e-5)


def split_lookups_of(model: onnx.ModelProto, request: Request) -> bytes:
    lookups = split(model, request).lookups
    assert lookups is not None
    return lookups.SerializeToString()


def a_float_model(
    nodes: Sequence[onnx.NodeProto],
    x: int = TensorProto.FLOAT,
    y: int = TensorProto.FLOAT,
    weights: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """Return `x` [n, 4] → `y` [n, 4]."""
    return a_model(
        [a_tensor("x", ["n", 4], x)],
        [a_tensor("y", ["n", 4], y)],
        nodes=nodes,
        weights=[numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )


def test_a_model_without_lookups_is_a_network_as_a_whole_and_gets_finite_numbers_alone() -> None:
    model = a_float_model([helper.make_node("Relu", ["x"], ["y"])])
    request = {"x": np.arange(-6, 6, dtype=np.float32).reshape(3, 4)}
    parts = split(model, request)
    assert (parts.lookups, parts.checked_inputs) == (None, ("x",))
    engine = open_parts(model, request)
    np.testing.assert_array_equal(engine.run_request(request)[0], np.maximum(request["x"], 0))
    for number in (np.nan, np.inf, -np.inf):
        with pytest.raises(UnfitRequestError):
            engine.run_request({"x": np.full((3, 4), number, np.float32)})


def test_floats_of_64_bits_are_cut_down_by_onnx_runtime_and_checked_after_it() -> None:
    nodes = [
        helper.make_node("Sub", ["x", "epoch"], ["age"]),
        helper.make_node("Cast", ["age"], ["small"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["small"], ["y"]),
    ]
    model = a_float_model(nodes, TensorProto.DOUBLE, weights={"epoch": np.array(1.7e9)})
    request = {"x": np.full((2, 4), 1.7e9 + 0.25)}
    parts = split(model, request)
    assert (parts.network_inputs, parts.checked_inputs) == (("small",), ("small",))
    engine = open_parts(model, request)
    np.testing.assert_array_equal(engine.run_request(request)[0], -0.25)
    with pytest.raises(UnfitRequestError):
        engine.run_request({"x": np.full((2, 4), 1e308)})


def test_infinite_rows_of_a_table_are_checked() -> None:
    model = build_history_model()
    [table] = [tensor for tensor in model.graph.initializer if tensor.name == "table"]
    rows = numpy_helper.to_array(table).copy()
    rows[7, 3] = np.inf
    table.CopyFrom(numpy_helper.from_array(rows, "table"))
    assert set(split(model, make_history_request(4, 7)).checked_inputs) == {"items", "target"}


@pytest.mark.parametrize(
    ("nodes", "y"),
    [
        ([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)], TensorProto.INT64),
        ([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)], TensorProto.DOUBLE),
        ([helper.make_node("ArgMax", ["x"], ["i"], axis=1), helper.make_node("GatherElements", ["x", "i"], ["y"], axis=1)], TensorProto.FLOAT),
        ([helper.make_node("Identity", ["w"], ["y"])], TensorProto.FLOAT),
    ],
    ids=["integers", "64 bits", "positions", "constant"],
)  # fmt: skip
def test_a_graph_whose_outputs_no_engine_may_compute_is_not_split(
    nodes: Sequence[onnx.NodeProto], y: int
) -> None:
    request = {"x": np.zeros((2, 4), np.float32)}
    weights = {"w": np.zeros((2, 4), np.float32)} if nodes[0].op_type == "Identity" else {}
    assert not has_network(a_float_model(nodes, y=y, weights=weights), request)
    assert has_network(a_float_model([helper.make_node("Relu", ["x"], ["y"])]), request)


def test_positions_read_from_the_request_come_from_onnx_runtime_with_what_they_index() -> None:
    """A model that takes the last item of a history, and refuses a position outside of it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["hidden"]),
        helper.make_node("GatherElements", ["hidden", "at"], ["last"], axis=1),
        helper.make_node("Tanh", ["last"], ["y"]),
    ]
    model = a_model(
        [a_tensor("x", ["n", 4], TensorProto.FLOAT), a_tensor("at", ["n", 1], TensorProto.INT64)],
        [a_tensor("y", ["n", 1], TensorProto.FLOAT)],
        nodes=nodes,
    )
    request = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "at": np.array([[1], [3]])}
    engine = open_parts(model, request)
    assert split(model, request).network_inputs == ("last",)
    np.testing.assert_allclose(engine.run_request(request)[0], np.tanh([[1.0], [7.0]]), rtol=1e-6)
    with pytest.raises(Exception, match="GatherElements"):
        engine.run_request({**request, "at": np.array([[1], [4]])})


def test_outputs_of_both_parts_keep_their_order_and_texts_are_read_by_onnx_runtime() -> None:
    nodes = [
        helper.make_node("Equal", ["word", "male"], ["is_male"]),
        helper.make_node("Cast", ["is_male"], ["code"], to=TensorProto.INT64),
        helper.make_node("Cast", ["code"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["number", "x"], ["sum"]),
    ]
    model = a_model(
        [a_tensor("word", ["n"], TensorProto.STRING), a_tensor("x", ["n"], TensorProto.FLOAT)],
        [a_tensor("code", ["n"], TensorProto.INT64), a_tensor("sum", ["n"], TensorProto.FLOAT)],
        nodes=nodes,
        weights=[numpy_helper.from_array(np.array("male", dtype=object), "male")],
    )
    model.opset_import[0].version = 19
    request = {"word": np.array(["male", "x"], dtype=object), "x": np.array([0.5, 1], np.float32)}
    code, total = open_parts(model, request).run_request(request)
    assert (code.tolist(), total.tolist()) == ([1, 0], [1.5, 1.0])


def test_outputs_of_a_request_are_not_those_of_the_next() -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["double"]),
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
    ]
    model = a_model(
        [a_tensor("x", ["n"], TensorProto.INT64)],
        [a_tensor("double", ["n"], TensorProto.INT64), a_tensor("z", ["n"], TensorProto.FLOAT)],
        nodes=[*nodes, helper.make_node("Neg", ["y"], ["z"])],
    )
    engine = open_parts(model, {"x": np.array([1, 2])})
    first = engine.run_request({"x": np.array([1, 2])})
    engine.run_request({"x": np.array([3, 4])})
    assert [array.tolist() for array in first] == [[2, 4], [-1.0, -2.0]]


@pytest.mark.parametrize("source", [np.zeros(1, np.float32), np.zeros((2, 1), np.float32), np.zeros((2, 3))])
def test_an_engine_takes_arrays_of_its_own_shape_and_type_alone(source: Array) -> None:
    with pytest.raises(ValueError, match="the engine takes float32"):
        copy_array(np.ones((2, 3), np.float32), source)


def test_a_loop_is_run_by_onnx_runtime_with_what_its_body_reads() -> None:
    """The body adds `x` as often as the request asks for; it reads `x` from the graph around it."""
    body = helper.make_graph(
        [helper.make_node("Add", ["before", "x"], ["after"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            a_tensor("step", [], TensorProto.INT64),
            a_tensor("go", [], TensorProto.BOOL),
            a_tensor("before", ["n", 4], TensorProto.FLOAT),
        ],
        [a_tensor("on", [], TensorProto.BOOL), a_tensor("after", ["n", 4], TensorProto.FLOAT)],
    )
    model = a_model(
        [a_tensor("x", ["n", 4], TensorProto.FLOAT), a_tensor("times", [], TensorProto.INT64)],
        [a_tensor("y", ["n", 4], TensorProto.FLOAT)],
        nodes=[
            helper.make_node("Neg", ["x"], ["start"]),
            helper.make_node("Loop", ["times", "", "start"], ["sum"], body=body),
            helper.make_node("Relu", ["sum"], ["y"]),
        ],
    )
    request = {"x": np.ones((2, 4), np.float32), "times": np.array(3)}
    parts = split(model, request)
    assert parts.network_inputs == ("sum",)
    np.testing.assert_array_equal(open_parts(model, request).run_request(request)[0], 2.0)


@pytest.mark.parametrize(("outputs", "is_network"), [(["y", "i"], True), (["y", "z"], False)])
def test_positions_that_nothing_reads_keep_no_operation_from_the_engine(
    outputs: list[str], is_network: bool
) -> None:
    nodes = [
        helper.make_node("TopK", ["x", "k"], outputs),
        helper.make_node("Cast", ["z"], ["c"], to=TensorProto.FLOAT),
    ]
    model = a_model(
        [a_tensor("x", ["n", 4], TensorProto.FLOAT)],
        [
            a_tensor("y", ["n", 2], TensorProto.FLOAT),
            *([] if is_network else [a_tensor("c", ["n", 2], TensorProto.FLOAT)]),
        ],
        nodes=nodes[: 1 if is_network else 2],
        weights=[numpy_helper.from_array(np.array([2]), "k")],
    )
    assert has_network(model, {"x": np.zeros((2, 4), np.float32)}) is is_network


def test_a_network_that_takes_the_size_of_ids_does_not_read_them() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Shape", ["ids"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
        helper.make_node("ReduceSum", ["rows", "last"], ["sums"], keepdims=0),
        helper.make_node("Add", ["sums", "zeros"], ["y"]),
    ]
    model = a_model(
        [a_tensor("ids", ["n", 4], TensorProto.INT64)],
        [a_tensor("y", ["n", 4], TensorProto.FLOAT)],
        nodes=nodes,
        weights=[
            numpy_helper.from_array(np.ones((9, 2), np.float32), "table"),
            numpy_helper.from_array(np.array([-1]), "last"),
        ],
    )
    # As passes leave it: with the shapes of values for any number of rows.
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    request = {"ids": np.zeros((3, 4), np.int64)}
    assert split(model, request).network_inputs == ("rows",)
    np.testing.assert_array_equal(open_parts(model, request).run_request(request)[0], 2.0)


@pytest.mark.parametrize("outputs", [("emb", "s"), ("s", "emb"), ("emb", "s", "emb2")])
def test_rows_that_the_network_reads_are_an_output_too(outputs: tuple[str, ...]) -> None:
    model = a_model(
        [a_tensor("ids", ["n"], TensorProto.INT64)],
        [a_tensor(name, ["n", 2], TensorProto.FLOAT) for name in outputs],
        nodes=[
            helper.make_node("Gather", ["table", "ids"], ["emb"]),
            helper.make_node("Neg", ["emb"], ["s"]),
            *([helper.make_node("Gather", ["table", "ids"], ["emb2"])] if "emb2" in outputs else []),
        ],
        weights=[numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "table")],
    )
    request = {"ids": np.array([2, 0])}
    assert "emb" in split(model, request).network_inputs
    engine = open_parts(model, request)
    first = dict(zip(outputs, engine.run_request(request), strict=True))
    engine.run_request({"ids": np.array([1, 1])})
    assert first["emb"].tolist() == [[4.0, 5.0], [0.0, 1.0]], "not overwritten by the next request"
    assert first["s"].tolist() == [[-4.0, -5.0], [-0.0, -1.0]]


def test_inputs_that_are_not_finite_are_refused_before_the_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model(
        [a_tensor("ids", ["n"], TensorProto.INT64), a_tensor("x", ["n", 2], TensorProto.FLOAT)],
        [a_tensor("y", ["n", 2], TensorProto.FLOAT)],
        nodes=[
            helper.make_node("Gather", ["table", "ids"], ["emb"]),
            helper.make_node("Add", ["emb", "x"], ["y"]),
        ],
        weights=[numpy_helper.from_array(np.ones((3, 2), np.float32), "table")],
    )
    request: Request = {"ids": np.array([2, 0]), "x": np.ones((2, 2), np.float32)}
    looked_up: list[Request] = []
    bind_results = Lookups.bind_results

    def bind_counted(lookups: Lookups, arrays: Mapping[str, Array]) -> Callable[[Request], dict[str, Array]]:
        run_bound = bind_results(lookups, arrays)

        def run_counted(asked: Request) -> dict[str, Array]:
            looked_up.append(asked)
            return run_bound(asked)

        return run_counted

    monkeypatch.setattr(Lookups, "bind_results", bind_counted)
    engine = open_parts(model, request)
    with pytest.raises(UnfitRequestError):
        engine.run_request({**request, "x": np.full((2, 2), np.nan, np.float32)})
    assert looked_up == []
    assert engine.run_request(request)[0].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert len(looked_up) == 1


@pytest.mark.parametrize("is_counted", [False, True])
def test_results_whose_size_depends_on_the_content_follow_each_request(is_counted: bool) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("NonZero", ["ids"], ["at"]),
        helper.make_node("Shape", ["at"], ["size"]),
        helper.make_node("Cast", ["size"], ["sizes"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["sizes"], ["count"], keepdims=0),
        helper.make_node("Add", ["numbers", "count" if is_counted else "numbers"], ["y"]),
    ]
    at = [] if is_counted else [a_tensor("at", [1, "k"], TensorProto.INT64)]
    model = a_model(
        [a_tensor("ids", ["n"], TensorProto.INT64)],
        [*at, a_tensor("y", ["n"], TensorProto.FLOAT)],
        nodes=nodes if is_counted else [*nodes[:2], nodes[-1]],
    )
    engine, original = open_parts(model, {"ids": np.array([5, 0, 0])}), Session(model)
    requests = [{"ids": np.array(ids)} for ids in ([5, 0, 0], [1, 2, 3], [0, 0, 0], [0, 7, 2])]
    answers = [[array.tolist() for array in engine.run_request(request)] for request in requests]
    expected = [original.run_request(request) or [] for request in requests]
    assert answers == [[array.tolist() for array in arrays] for arrays in expected]


def a_gelu_model(*after: onnx.NodeProto, rows: int = 9) -> onnx.ModelProto:
    """Return `ids` [n] → rows → Gelu, an operator of ONNX Runtime alone → `after` → `y` [n, 4]; without types between them."""
    model = a_model(
        [a_tensor("ids", ["n"], TensorProto.INT64)],
        [a_tensor("y", ["n", 4], TensorProto.FLOAT)],
        nodes=[
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("Gelu", ["rows"], ["hidden"], domain="com.microsoft"),
            *after,
        ],
        weights=[
            numpy_helper.from_array(np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4), "table")
        ],
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("rows", [9, 5000])
def test_what_follows_an_operator_of_another_domain_is_left_to_the_engine(rows: int) -> None:
    model = a_gelu_model(
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("Shape", ["positive"], ["size"]),
        helper.make_node("Reshape", ["positive", "size"], ["same"]),
        helper.make_node("Neg", ["same"], ["y"]),
        rows=rows,
    )
    request = {"ids": np.array([8, 0, 4])}
    parts = split(model, request)
    assert (parts.network_inputs, parts.checked_inputs) == (("hidden",), ("hidden",))
    assert {node.op_type for node in parts.network.graph} >= {"Relu", "Neg"}
    [expected] = Session(model).run_request(request) or []
    np.testing.assert_allclose(open_parts(model, request).run_request(request)[0], expected, rtol=1e-5)


def test_the_reason_names_the_operators_of_other_domains() -> None:
    rename = helper.make_node("Gelu", ["hidden"], ["y"], domain="com.microsoft")
    with pytest.raises(UnsplitGraphError, match=r"operators beyond ONNX, here com\.microsoft\.Gelu$"):
        split(a_gelu_model(rename), {"ids": np.array([1])})


def test_a_graph_that_onnx_runtime_does_not_load_has_no_network_behind_unknown_types() -> None:
    nodes = [
        helper.make_node("Missing", ["hidden"], ["odd"], domain="acme"),
        helper.make_node("Relu", ["odd"], ["y"]),
    ]
    model = a_gelu_model(*nodes)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    with pytest.raises(UnsplitGraphError, match=r"here acme\.Missing, com\.microsoft\.Gelu$"):
        split(model, {"ids": np.array([1])})
