"""Passes over the dense part of a graph: products of concatenations, repetitions, and what rows have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx_ir.passes.common import ShapeInferencePass

from builders.random_graphs import GRAPHS, USER, RandomGraph
from stages.examples import examples
from tidegate_dataplane.graph_passes.late_broadcasts import drop_repetitions
from tidegate_dataplane.graph_passes.proof import Session, measure_error
from tidegate_dataplane.graph_passes.samples import share_inputs
from tidegate_dataplane.graph_passes.share_rows import ShareRowsError, share_rows
from tidegate_dataplane.graph_passes.split_products import split_products

TOLERANCE = 1e-5


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
    for count in (rows, 1):
        request, shared = share_inputs(RandomGraph.request(count, graph.seed), USER)
        expected = original.run_request(request)
        answer = session.run_request(shared if change in (share_user, apply_all) else request)
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


def test_what_depends_on_the_user_alone_runs_on_one_row() -> None:
    model = RandomGraph([("Dense", 0, 0), ("Relu", 2, 0), ("Add", 2, 1)], seed=3).build()
    rewritten, operations = rewrite(model, share_user)
    assert operations >= 2
    assert (shape_of(rewritten, "profile"), shape_of(rewritten, "item")) == ([1, 4], ["rows", 4])


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
