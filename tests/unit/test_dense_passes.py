"""Passes over the dense part of a graph: products of concatenations, repetitions, and what rows have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass

from builders.onnx_models import a_model, a_tensor
from builders.random_graphs import GRAPHS, USER, RandomGraph
from stages.examples import examples
from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.late_broadcasts import drop_repetitions
from tidegate_dataplane.graph_passes.proof import Session, measure_error
from tidegate_dataplane.graph_passes.samples import share_inputs
from tidegate_dataplane.graph_passes.share_rows import ShareRowsError, share_rows
from tidegate_dataplane.graph_passes.split_products import split_products
from tidegate_dataplane.runner_interface import SHARED_ROWS

TOLERANCE = 1e-5
MATRIX = np.random.default_rng(1).standard_normal((12, 5)).astype(np.float32)


def share_user(model: ir.Model) -> int:
    return share_rows(model, USER)


def apply_all(model: ir.Model) -> int:
    return share_user(model) + split_products(model) + drop_repetitions(model)


def rewrite(model: onnx.ModelProto, change: Callable[[ir.Model], int]) -> tuple[onnx.ModelProto, int]:
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    changes = change(read)
    rewritten = ir.to_proto(read)
    onnx.checker.check_model(rewritten, full_check=True)
    return rewritten, changes


def shape_of(model: onnx.ModelProto, name: str) -> list[int | str]:
    [value] = [each for each in model.graph.input if each.name == name]
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("change", [split_products, drop_repetitions, share_user, apply_all])
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=GRAPHS, rows=st.integers(2, 5))
def test_answers_stay_the_same(change: Callable[[ir.Model], int], graph: RandomGraph, rows: int) -> None:
    model = graph.build()
    rewritten, _ = rewrite(model, change)
    assert [output.name for output in rewritten.graph.output] == [
        output.name for output in model.graph.output
    ]
    original, session = Session(model), Session(rewritten)
    shares = change in (share_user, apply_all)
    for count in (rows, 1):
        # Random rows of the user differ: a graph that shares them takes these as well.
        different = {
            name: np.random.default_rng(graph.seed + count).standard_normal(array.shape).astype(np.float32)
            for name, array in RandomGraph.request(count, graph.seed).items()
        }
        repeated, once = share_inputs(different, USER)
        for request, form in ((different, different), (repeated, once if shares else repeated)):
            expected, answer = original.run_request(request), session.run_request(form)
            assert expected is not None
            assert answer is not None
            assert max(map(measure_error, expected, answer)) <= TOLERANCE


def an_attention(parts: int) -> onnx.ModelProto:
    """Multiply concat(target, history, …) by one matrix, the target repeated for each position."""
    return RandomGraph([("Expand", 1, 0), ("Concat", 1, parts - 2)], seed=3).build()


def test_the_target_of_an_attention_is_multiplied_once_per_row() -> None:
    rewritten, split = rewrite(an_attention(4), split_products)
    assert split == 1
    products = [node for node in rewritten.graph.node if node.op_type == "MatMul"]
    assert len(products) == 3
    shapes = {value.name: value.type.tensor_type.shape.dim for value in rewritten.graph.value_info}
    repeated = [shapes[node.input[0]][1].dim_value for node in products if node.input[0] in shapes]
    assert sorted(repeated)[0] == 1


def test_a_concatenation_of_unrelated_values_is_left_alone() -> None:
    model = RandomGraph([("Concat", 0, 0)], seed=3).build()
    graph = model.graph
    # [profile, item] have the same rows: to split their product would save nothing.
    [concat] = [node for node in graph.node if node.op_type == "Concat"]
    del concat.input[:]
    concat.input.extend(["profile", "item"])
    _, split = rewrite(model, split_products)
    assert split == 0


def a_repeated_product(*nodes: onnx.NodeProto, **weights: Array) -> onnx.ModelProto:
    """Return a model of column [rows, 1, 4] and history [rows, length, 4]; the last node has the output `out`."""
    return a_model(
        [a_tensor("column", ["rows", 1, 4]), a_tensor("history", ["rows", "length", 4])],
        [a_tensor("out", None)],
        nodes=nodes,
        weights=[
            numpy_helper.from_array(array, name) for name, array in {"matrix": MATRIX[:4], **weights}.items()
        ],
    )


SHAPE = helper.make_node("Shape", ["history"], ["shape"])
EXPAND = helper.make_node("Expand", ["column", "shape"], ["repeated"])
MULTIPLY = helper.make_node("MatMul", ["repeated", "matrix"], ["out"])
REPEATED = {
    "for each position": a_repeated_product(SHAPE, EXPAND, MULTIPLY),
    "for a number of positions": a_repeated_product(EXPAND, MULTIPLY, shape=np.array([1, 7, 4])),
    "by Tile": a_repeated_product(
        helper.make_node("Tile", ["column", "counts"], ["repeated"]), MULTIPLY, counts=np.array([1, 7, 1])
    ),
    "as often as a history is long": a_repeated_product(
        SHAPE,
        helper.make_node("Gather", ["shape", "one"], ["length"]),
        helper.make_node("Concat", ["one", "length", "one"], ["counts"], axis=0),
        helper.make_node("Tile", ["column", "counts"], ["repeated"]),
        MULTIPLY,
        one=np.array([1]),
    ),
    "and multiplied twice": a_repeated_product(
        SHAPE,
        EXPAND,
        helper.make_node("MatMul", ["repeated", "matrix"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["out"]),
        second=MATRIX[:5],
    ),
}  # fmt: skip
UNREPEATED = {
    "the width is repeated": a_repeated_product(
        helper.make_node("ReduceSum", ["column", "last"], ["single"], keepdims=1),
        helper.make_node("Expand", ["single", "shape"], ["repeated"]),
        MULTIPLY,
        last=np.array([2]), shape=np.array([1, 7, 4]),
    ),
    "the width is tiled": a_repeated_product(
        helper.make_node("ReduceSum", ["column", "last"], ["single"], keepdims=1),
        helper.make_node("Tile", ["single", "counts"], ["repeated"]),
        MULTIPLY,
        last=np.array([2]), counts=np.array([1, 7, 4]),
    ),
    "nothing is repeated": a_repeated_product(EXPAND, MULTIPLY, shape=np.array([1, 1, 4])),
    "the matrix comes from the request": a_repeated_product(
        SHAPE,
        EXPAND,
        helper.make_node("Transpose", ["history"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["repeated", "turned"], ["out"]),
    ),
}  # fmt: skip


def multiply_both(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Split the products of a model, and check its answers by value."""
    rewritten, split = rewrite(model, split_products)
    random = np.random.default_rng(2)
    request = {
        name: random.standard_normal((6, length, 4)).astype(np.float32)
        for name, length in (("column", 1), ("history", 7))
    }
    expected, answer = Session(model).run_request(request), Session(rewritten).run_request(request)
    assert expected is not None
    assert answer is not None
    assert [array.shape for array in answer] == [array.shape for array in expected]
    assert max(map(measure_error, expected, answer)) <= TOLERANCE
    return rewritten, split


@pytest.mark.parametrize("model", REPEATED.values(), ids=REPEATED)
def test_a_value_that_is_repeated_is_multiplied_before(model: onnx.ModelProto) -> None:
    products = sum(node.op_type == "MatMul" for node in model.graph.node)
    rewritten, split = multiply_both(model)
    assert split == products
    producers = {name: node for node in rewritten.graph.node for name in node.output}
    last = producers["out"]
    assert last.op_type in ("Expand", "Tile"), "the result is repeated"
    value = last.input[0]
    for _ in range(products):
        assert producers[value].op_type == "MatMul"
        value = producers[value].input[0]
    assert value == "column", "what is multiplied has one position"


@pytest.mark.parametrize("model", UNREPEATED.values(), ids=UNREPEATED)
def test_a_product_that_would_save_nothing_or_is_not_provable_is_left_alone(model: onnx.ModelProto) -> None:
    _, split = multiply_both(model)
    assert split == 0


@pytest.mark.parametrize(("bias", "split"), [(MATRIX[0], 1), (MATRIX[:1], 1), (MATRIX[:6], 0)])
def test_a_row_that_is_repeated_for_a_layer_with_a_bias_is_multiplied_before(bias: Array, split: int) -> None:
    model = a_model(
        [a_tensor("user", [1, 4]), a_tensor("item", ["rows", 4])],
        [a_tensor("out", None)],
        nodes=[
            helper.make_node("Shape", ["item"], ["shape"]),
            helper.make_node("Expand", ["user", "shape"], ["repeated"]),
            helper.make_node("Gemm", ["repeated", "turned", "bias"], ["out"], transB=1),
        ],
        weights=[
            numpy_helper.from_array(np.ascontiguousarray(MATRIX[:4].T), "turned"),
            numpy_helper.from_array(bias, "bias"),
        ],
    )
    rewritten, changed = rewrite(model, split_products)
    assert changed == split
    random = np.random.default_rng(2)
    request = {
        name: random.standard_normal((rows, 4)).astype(np.float32)
        for name, rows in (("user", 1), ("item", 6))
    }
    expected, answer = Session(model).run_request(request), Session(rewritten).run_request(request)
    assert expected is not None
    assert answer is not None
    assert max(map(measure_error, expected, answer)) <= TOLERANCE
    fewer = {**request, "item": request["item"][:1]}
    assert (Session(model).run_request(fewer) is None) == (Session(rewritten).run_request(fewer) is None)


def test_what_depends_on_the_user_alone_runs_on_one_row() -> None:
    model = RandomGraph([("Dense", 0, 0), ("Relu", 2, 0), ("Add", 2, 1)], seed=3).build()
    rewritten, operations = rewrite(model, share_user)
    assert operations >= 2
    assert (shape_of(rewritten, "profile"), shape_of(rewritten, "item")) == (
        [SHARED_ROWS, 4],
        ["rows", 4],
    )


PARTS = ("profile", "item", "history")


def a_mixed_product(*nodes: onnx.NodeProto, outputs: Sequence[str] = (), **weights: Array) -> onnx.ModelProto:
    """Return a model of three inputs [rows, 4] whose concatenation `joined` the nodes read; the first output is `out`."""
    concat = helper.make_node("Concat", PARTS, ["joined"], axis=1)
    return a_model(
        [a_tensor(name, ["rows", 4]) for name in PARTS],
        [a_tensor("out", None), *(a_tensor(name, None) for name in outputs)],
        nodes=[concat, *nodes],
        weights=[
            numpy_helper.from_array(array, name) for name, array in {"matrix": MATRIX, **weights}.items()
        ],
    )


def share_mixed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Share the user's inputs, and check that the answers are those of the original, in both forms and by value."""
    rewritten, operations = rewrite(model, share_user)
    random = np.random.default_rng(2)
    request = {name: random.standard_normal((6, 4)).astype(np.float32) for name in PARTS}
    repeated, once = share_inputs(request, USER)
    for whole, form in ((request, request), (repeated, once)):
        expected, answer = Session(model).run_request(whole), Session(rewritten).run_request(form)
        assert expected is not None
        assert answer is not None
        assert max(map(measure_error, expected, answer)) <= TOLERANCE
    return rewritten, operations


PRODUCT = helper.make_node("MatMul", ["joined", "matrix"], ["out"])
SPLIT = {
    "MatMul": a_mixed_product(PRODUCT),
    "Gemm": a_mixed_product(
        helper.make_node("Gemm", ["joined", "matrix", "bias"], ["out"]), bias=MATRIX[0]
    ),
    "a transposed matrix and a bias with a row": a_mixed_product(
        helper.make_node("Gemm", ["joined", "turned", "bias"], ["out"], transB=1), turned=MATRIX.T, bias=MATRIX[:1]
    ),
    "a bias of the user": a_mixed_product(
        helper.make_node("MatMul", ["profile", "small"], ["bias"]),
        helper.make_node("Gemm", ["joined", "matrix", "bias"], ["out"]),
        small=MATRIX[:4],
    ),
    "a bias of the item": a_mixed_product(
        helper.make_node("MatMul", ["item", "small"], ["bias"]),
        helper.make_node("Gemm", ["joined", "matrix", "bias"], ["out"]),
        small=MATRIX[:4],
    ),
    "two products": a_mixed_product(PRODUCT, helper.make_node("MatMul", ["joined", "matrix"], ["second"]), outputs=["second"]),
}  # fmt: skip
WHOLE = {
    "an answer itself": a_mixed_product(PRODUCT, outputs=["joined"]),
    "read by another operation": a_mixed_product(PRODUCT, helper.make_node("Relu", ["joined"], ["second"]), outputs=["second"]),
    "read for its shape": a_mixed_product(
        PRODUCT,
        helper.make_node("Shape", ["joined"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["second"], to=TensorProto.FLOAT),
        outputs=["second"],
    ),
    "a scaled product": a_mixed_product(helper.make_node("Gemm", ["joined", "matrix"], ["out"], alpha=2.0)),
    "a matrix from the request": a_mixed_product(
        helper.make_node("MatMul", ["item", "small"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["matrix", "sum"], ["scaled"]),
        helper.make_node("MatMul", ["joined", "scaled"], ["out"]),
        small=MATRIX[:4],
    ),
    "normalized before": a_mixed_product(
        helper.make_node("LayerNormalization", ["joined", "scale"], ["normal"]),
        helper.make_node("MatMul", ["normal", "matrix"], ["out"]),
        scale=np.ones(12, np.float32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", SPLIT.values(), ids=SPLIT)
def test_of_a_product_of_user_and_item_the_users_part_is_computed_once(model: onnx.ModelProto) -> None:
    rewritten, operations = share_mixed(model)
    assert operations >= 1
    assert "Expand" not in {node.op_type for node in rewritten.graph.node}


@pytest.mark.parametrize("model", WHOLE.values(), ids=WHOLE)
def test_a_concatenation_that_more_than_products_read_has_the_requests_rows(model: onnx.ModelProto) -> None:
    rewritten, _ = share_mixed(model)
    assert "Expand" in {node.op_type for node in rewritten.graph.node}


def test_parts_that_a_request_may_give_other_lengths_stay_together() -> None:
    """The original refuses parts of different lengths, and a sum would broadcast one of length 1."""
    model = a_model(
        [a_tensor("profile", ["rows", "length", 3]), a_tensor("item", ["rows", "length", 4])],
        [a_tensor("out", None)],
        nodes=[
            helper.make_node("Concat", ["profile", "item"], ["joined"], axis=2),
            helper.make_node("MatMul", ["joined", "matrix"], ["out"]),
        ],
        weights=[numpy_helper.from_array(MATRIX[:7], "matrix")],
    )
    rewritten, _ = rewrite(model, lambda copy: share_rows(copy, ["profile"]))
    request = {"profile": np.ones((2, 1, 3), np.float32), "item": np.ones((2, 5, 4), np.float32)}
    assert Session(model).run_request(request) is None
    assert Session(rewritten).run_request(request) is None


def test_inputs_that_do_not_name_their_rows_have_the_same_ones() -> None:
    model = a_mixed_product(PRODUCT)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].ClearField("dim_param")
    rewritten, operations = share_mixed(model)
    assert operations == 1
    assert shape_of(rewritten, "item")[0] == "tidegate_rows"


def test_a_model_of_an_older_opset_is_left_as_it_is_with_the_way_out() -> None:
    model = a_mixed_product(PRODUCT)
    model.opset_import[0].version = 14
    with pytest.raises(ShareRowsError, match="the model has opset 14: export it with 15 or later"):
        rewrite(model, share_user)


def test_an_answer_about_the_user_alone_has_the_requests_rows() -> None:
    model = RandomGraph([("Relu", 0, 0)], seed=3).build()
    del model.graph.output[0]
    rewritten, _ = rewrite(model, share_user)
    _, shared = share_inputs(RandomGraph.request(5, 0), USER)
    answers = Session(rewritten).run_request(shared)
    assert answers is not None
    assert [len(answer) for answer in answers] == [5]


def test_rows_that_see_each_other_are_not_shared() -> None:
    """A softmax over the rows of one request depends on how many there are."""
    model = RandomGraph([("Softmax", 0, 1)], seed=3).build()
    [softmax] = [node for node in model.graph.node if node.op_type == "Softmax"]
    softmax.attribute[0].i = 0
    rewritten, _ = rewrite(model, share_user)
    request, shared = share_inputs(RandomGraph.request(4, 0), USER)
    expected, answer = Session(model).run_request(request), Session(rewritten).run_request(shared)
    assert expected is not None
    assert answer is not None
    assert np.allclose(expected[0], answer[0])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["age"], "no input 'age'; the model has"),
        (["profile", "history", "item"], "every input with rows is to be shared"),
    ],
)
def test_a_choice_that_cannot_be_shared_is_refused(names: list[str], message: str) -> None:
    model = ir.from_proto(RandomGraph([("Relu", 0, 0)], seed=3).build())
    with pytest.raises(ShareRowsError, match=message):
        share_rows(model, names)
