from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass

from builders.column_graphs import TEXTS, ColumnGraph, ColumnSpec
from builders.onnx_models import a_model as make_onnx_model
from builders.onnx_models import a_tensor
from builders.user_model import USER_INPUTS, publish_user_model
from tidegate_dataplane.graph_passes import payoff, pipeline
from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.fuse_embeddings import fuse_embeddings
from tidegate_dataplane.graph_passes.pipeline import (
    PASSES,
    OptimizedModel,
    Pass,
    PassOutcome,
    compare_models,
    compare_requests,
    list_passes,
    optimize_model,
)
from tidegate_dataplane.graph_passes.proof import (
    GraphRefusedError,
    Session,
    compare_answers,
    compare_logged,
    measure_error,
)
from tidegate_dataplane.graph_passes.samples import Request, make_edge_requests, make_requests
from tidegate_dataplane.graph_passes.share_rows import find_shared_inputs, share_rows

COLUMN = ColumnSpec(
    width=16, entries=50, table=0, ids="slice", hots=3, chain="none", pooling="ReduceSum", keepdims=False,
    weights="none", bias=0,
)  # fmt: skip


def a_model(columns: int = 200) -> onnx.ModelProto:
    specs = [replace(COLUMN, entries=20 + number) for number in range(columns)]
    return ColumnGraph(specs, int32=False, dense=True, pairs=False, seed=1).build()


@pytest.fixture
def unshared_requests_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graphs that take equally long differ by a tenth on a busy machine, and a pass is left out then."""
    monkeypatch.setattr(payoff, "MIN_UNSHARED_SPEEDUP", 0.0)


def outcome_of(name: str, outcomes: tuple[PassOutcome, ...]) -> PassOutcome:
    return next(outcome for outcome in outcomes if outcome.name == name)


def add_to_weights(model: ir.Model, number: float) -> int:
    """Change a model: the pass that lies."""
    value = next(value for value in model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT)
    assert value.const_value is not None
    value.const_value = ir.tensor(value.const_value.numpy() + np.float32(number), name=value.name)
    return 1


def test_two_hundred_columns_are_fused_and_faster() -> None:
    model = a_model()
    optimized = optimize_model(model, measured_rows=(1, 16))
    fused = outcome_of("fuseEmbeddings", optimized.outcomes)
    assert (fused.applied, fused.reason, fused.changes, fused.max_error) == (True, "", 200, 0.0)
    assert fused.nodes_before > 600
    assert fused.nodes_after == len(optimized.model.graph.node) < 20
    assert set(fused.speedups) == {1, 16}
    assert fused.speedups[1] > 2
    assert len(model.graph.node) > 600, "the given model is not changed"


def fuse_texts(chain: str) -> PassOutcome:
    specs = [
        replace(COLUMN, chain=chain, ids="gather", hots=1, pooling="none", entries=20 + n) for n in range(100)
    ]
    graph = ColumnGraph(specs, int32=False, dense=True, pairs=False, seed=1)
    return outcome_of("fuseEmbeddings", optimize_model(graph.build(), measured_rows=(1,)).outcomes)


def test_columns_of_hashed_texts_are_fused_and_faster() -> None:
    fused = fuse_texts("text")
    assert (fused.applied, fused.reason, fused.changes, fused.max_error) == (True, "", 100, 0.0)
    assert fused.speedups[1] > 2


def test_columns_of_a_vocabulary_each_are_proved_and_measured() -> None:
    fused = fuse_texts("vocabulary")
    assert (fused.changes, fused.max_error, set(fused.speedups)) == (100, 0.0, {1}), "whether it pays or not"


def test_samples_have_the_texts_of_a_vocabulary_and_others() -> None:
    specs = [
        replace(COLUMN, chain="vocabulary", entries=6, ids=ids, pooling="none", hots=1)
        for ids in ("own", "gather")
    ]
    model = ColumnGraph(specs, int32=False, dense=False, pairs=False, seed=1).build()
    [request] = make_requests(ir.from_proto(model), rows=(200,))
    for name in ("input.0", TEXTS):
        assert {"0", "5", "male", ""} <= {str(text) for text in request[name].reshape(-1)}


@pytest.mark.parametrize(("number", "tolerance"), [(0.5, 1e-5), (1e-6, 0.0)])
def test_a_pass_that_changes_answers_is_left_out(number: float, tolerance: float) -> None:
    lie = Pass("lie", (lambda model: add_to_weights(model, number),), tolerance)
    model = a_model(20)
    optimized = optimize_model(model, passes=[lie])
    [outcome] = optimized.outcomes
    assert not outcome.applied
    assert outcome.reason.startswith("answers differ by ")
    assert outcome.max_error > tolerance
    assert optimized.model == model


def drop_a_check(model: ir.Model) -> int:
    """Let ids out of range wrap around, which valid requests do not show."""
    [gather] = [node for node in model.graph if node.op_type == "Gather"]
    size = model.graph.initializers["table"].shape
    assert size is not None
    tape = ir.tape.Tape()
    entries = tape.initializer(ir.tensor(np.array(size[0]), name="entries"))
    wrapped = tape.op("Mod", [gather.inputs[1], entries])
    model.graph.insert_before(gather, tape.nodes)
    model.graph.register_initializer(entries)
    gather.replace_input_with(1, wrapped)
    return 1


def a_lookup() -> onnx.ModelProto:
    table = numpy_helper.from_array(np.eye(4, dtype=np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["out"], axis=0)],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["rows", 4])],
        [table],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_pass_that_answers_what_the_model_refuses_is_left_out() -> None:
    requests = [{"ids": np.array([7])}]
    [outcome] = optimize_model(a_lookup(), requests, passes=[Pass("wrap", (drop_a_check,), 0.0)]).outcomes
    assert (outcome.applied, outcome.reason) == (
        False,
        "answers differ by inf from those of the graph before the pass, 0e+00 is allowed",
    )


class Table:
    """A graph that answers a request with the row of its key; it refuses other keys."""

    def __init__(self, **rows: list[float]) -> None:
        self._rows = rows

    def run_request(self, request: Request) -> list[Array] | None:
        row = self._rows.get(str(request["key"][0]))
        return None if row is None else [np.array(row, np.float32)]


def ask_for(*keys: str) -> list[tuple[Request, Request]]:
    requests = [{"key": np.array([key], dtype=object)} for key in keys]
    return [(request, request) for request in requests]


def test_rounding_of_a_score_near_zero_is_a_small_error_beside_other_requests_of_clients() -> None:
    original, rewritten = Table(near=[1e-7], far=[2.0]), Table(near=[2e-7], far=[2.0])
    assert compare_answers(original, rewritten, ask_for("near")).max_error == pytest.approx(1.0)
    compared = compare_logged(original, rewritten, ask_for("near", "far"))
    assert compared.answered == 2
    assert compared.max_error == pytest.approx(5e-8)
    [(sample, _)] = ask_for("far")
    assert compare_logged(original, rewritten, ask_for("near"), [sample]).max_error == pytest.approx(5e-8)


@pytest.mark.parametrize(
    ("original", "rewritten", "error"),
    [
        (Table(a=[1.0, 4.0]), Table(a=[1.0, 3.0]), 0.25),
        (Table(a=[1.0]), Table(a=[1.0, 1.0]), np.inf),
        (Table(a=[1.0]), Table(), np.inf),
        (Table(), Table(a=[1.0]), 0.0),
        (Table(a=[1.0]), Table(a=[np.nan]), np.inf),
        (Table(a=[np.nan]), Table(a=[np.nan]), 0.0),
        (Table(), Table(), 0.0),
    ],
)
def test_what_differs_for_a_request_of_a_client_is_an_error(
    original: Table, rewritten: Table, error: float
) -> None:
    assert compare_logged(original, rewritten, ask_for("a")).max_error == error


@pytest.mark.usefixtures("unshared_requests_may_take_longer")
def test_requests_of_clients_are_compared_with_one_row_of_shared_inputs_and_with_all() -> None:
    model = a_flattening_tower()
    shared = share_user(model).model
    random = np.random.default_rng(3)
    user = random.standard_normal((1, 8, 4), np.float32)
    items = random.standard_normal((5, 4), np.float32)
    requests = [
        {"user": user, "item": items},
        {"user": np.repeat(user, 5, axis=0), "item": items},
        {"user": np.full((5, 8, 4), np.inf, np.float32), "item": items},
    ]
    for candidate in (shared, model):
        compared = compare_requests(model, candidate, requests, ["user"])
        assert compared.max_error < 1e-5
        assert compared.answered == 2, "not the one with infinite numbers"
    compared = compare_requests(model, model, requests)
    assert (compared.answered, compared.max_error) == (1, 0.0), (
        "without shared inputs, one row of them is refused"
    )


def test_a_graph_that_is_slower_where_the_rows_of_shared_inputs_differ_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ratios = {True: 0.89, False: 2.0}  # requests with all rows of the user go to both graphs as they are
    monkeypatch.setattr(
        pipeline,
        "measure_speedups",
        lambda before, after, pairs: [ratios[first is second] for first, second in pairs],
    )
    [outcome] = share_user(a_flattening_tower()).outcomes
    assert (outcome.applied, outcome.reason) == (
        False,
        "slower where the rows of shared inputs differ: 0.89x",
    )


@pytest.mark.usefixtures("unshared_requests_may_take_longer")
def test_one_row_of_a_shared_input_is_no_reason_to_leave_out_a_pass() -> None:
    random = np.random.default_rng(3)
    request = {
        "user": random.standard_normal((1, 8, 4), np.float32),
        "item": random.standard_normal((5, 4), np.float32),
    }
    share = list_passes(["user"])[-2]
    optimized = optimize_model(
        a_flattening_tower(), [request], shared_inputs=["user"], passes=[share], measured_rows=(64,)
    )
    assert optimized.shared_inputs == ("user",)
    assert optimized.compared_requests == 1


def slow_down(model: ir.Model) -> int:
    [gather] = [node for node in model.graph if node.op_type == "Gather"]
    tape = ir.tape.Tape()
    value = gather.inputs[1]
    for _ in range(200):
        value = tape.op("Neg", [value])
    model.graph.insert_before(gather, tape.nodes)
    gather.replace_input_with(1, value)
    return 200


def test_a_pass_that_does_not_pay_is_left_out() -> None:
    [outcome] = optimize_model(a_lookup(), passes=[Pass("slow", (slow_down,), 0.0)]).outcomes
    assert not outcome.applied
    assert outcome.reason.startswith("slower at ")


def fail(_: ir.Model) -> int:
    raise ZeroDivisionError


def break_graph(model: ir.Model) -> int:
    [gather] = [node for node in model.graph if node.op_type == "Gather"]
    gather.replace_input_with(1, gather.inputs[0])
    return 1


@pytest.mark.parametrize(
    ("rewrite", "reason"), [(fail, "the pass failed: ZeroDivisionError()"), (break_graph, "the rewritten graph was refused: ")]
)  # fmt: skip
def test_a_pass_that_breaks_leaves_the_model_as_it_was(
    rewrite: Callable[[ir.Model], int], reason: str
) -> None:
    model = a_lookup()
    optimized = optimize_model(model, passes=[Pass("broken", (rewrite,), 0.0), *PASSES])
    assert outcome_of("broken", optimized.outcomes).reason.startswith(reason)
    request = {"ids": np.array([0, 3, -1])}
    expected, answer = Session(model).run_request(request), Session(optimized.model).run_request(request)
    assert expected is not None
    assert answer is not None
    assert measure_error(expected[0], answer[0]) == 0.0


@pytest.mark.usefixtures("unshared_requests_may_take_longer")
def test_what_depends_on_the_user_alone_is_computed_once_for_many_rows(tmp_path: Path) -> None:
    publish_user_model(tmp_path, 1)
    model = onnx.load(tmp_path / "1" / "model.onnx")
    optimized = optimize_model(model, shared_inputs=USER_INPUTS, measured_rows=(1, 16, 256))
    shared = outcome_of("shareRows", optimized.outcomes)
    assert (shared.applied, shared.reason) == (True, "")
    assert optimized.shared_inputs == find_shared_inputs(optimized.model) == USER_INPUTS
    assert optimized.speedups[256] > 2
    assert compare_models(model, optimized.model).max_error == 0.0


def test_a_graph_that_answers_one_row_alone_rightly_is_found_out(tmp_path: Path) -> None:
    """The proof covers rows of the user that differ: a graph that reads the first one alone is wrong then."""
    publish_user_model(tmp_path, 1)
    model = onnx.load(tmp_path / "1" / "model.onnx")

    def read_first_row(copy: ir.Model) -> int:
        changes = share_rows(copy, USER_INPUTS)
        user = next(value for value in copy.graph.inputs if value.name == "user")
        first = ir.tape.Tape()
        bounds = [first.initializer(ir.tensor(np.array([end]), name=f"bound{end}")) for end in (0, 1)]
        picked = first.op("Slice", [user, *bounds, bounds[0]])
        for use in list(user.uses()):
            if use.node is not picked.producer():
                use.node.replace_input_with(use.idx, picked)
        copy.graph.extend(first.nodes)
        for bound in bounds:
            copy.graph.register_initializer(bound)
        copy.graph.sort()
        return changes

    wrong = Pass("shareRows", (read_first_row,), 1e-5, USER_INPUTS)
    [outcome] = optimize_model(model, passes=[wrong], measured_rows=(16,)).outcomes
    assert "answers differ by" in outcome.reason
    assert np.isfinite(outcome.max_error), "it answers all requests, also without rows"


def share_user(model: onnx.ModelProto) -> OptimizedModel:
    # At one size of request, so that the time of a measurement decides nothing.
    return optimize_model(model, passes=[list_passes(["user"])[-2]], measured_rows=(64,))


def a_flattening_tower() -> onnx.ModelProto:
    """The user's tower flattens with [0, -1], which ONNX Runtime refuses for a request without rows."""
    return a_user_model(
        [
            helper.make_node("Reshape", ["user", "flat"], ["flattened"]),
            helper.make_node("MatMul", ["flattened", "large"], ["first"]),
            helper.make_node("MatMul", ["first", "small"], ["taste"]),
            helper.make_node("Add", ["taste", "item"], ["out"]),
        ],
        flat=np.array([0, -1]),
        large=np.ones((32, 512), np.float32),
        small=np.ones((512, 4), np.float32),
    )


def an_attending_item() -> onnx.ModelProto:
    """The item is multiplied with each position of the user, which ONNX Runtime refuses for one user and no items."""
    return a_user_model(
        [
            helper.make_node("MatMul", ["user", "wide"], ["first"]),
            helper.make_node("MatMul", ["first", "narrow"], ["keys"]),
            helper.make_node("Unsqueeze", ["item", "last"], ["query"]),
            helper.make_node("MatMul", ["keys", "query"], ["scores"]),
            helper.make_node("ReduceSum", ["scores", "positions"], ["total"], keepdims=0),
            helper.make_node("Add", ["item", "total"], ["out"]),
        ],
        wide=np.ones((4, 256), np.float32),
        narrow=np.ones((256, 4), np.float32),
        last=np.array([2]),
        positions=np.array([1]),
    )


def a_user_model(nodes: Sequence[onnx.NodeProto], **weights: Array) -> onnx.ModelProto:
    """Return a model of user [rows, 8, 4] and item [rows, 4]."""
    return make_onnx_model(
        [a_tensor("user", ["rows", 8, 4]), a_tensor("item", ["rows", 4])],
        [a_tensor("out", ["rows", 4])],
        nodes=nodes,
        weights=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


@pytest.mark.usefixtures("unshared_requests_may_take_longer")
@pytest.mark.parametrize("make_model", [a_flattening_tower, an_attending_item])
def test_requests_without_rows_do_not_hinder_the_sharing_of_others(
    make_model: Callable[[], onnx.ModelProto],
) -> None:
    optimized = share_user(make_model())
    assert [(outcome.applied, outcome.reason) for outcome in optimized.outcomes] == [(True, "")]
    assert optimized.speedups[64] > 1.5


@pytest.mark.usefixtures("unshared_requests_may_take_longer")
def test_a_graph_that_shares_rows_already_is_proved_in_both_forms_and_not_shared_again() -> None:
    shared = share_user(a_flattening_tower()).model
    optimized = optimize_model(shared, shared_inputs=["user"], measured_rows=(64,))
    assert optimized.shared_inputs == ("user",)
    assert "does not have the rows of input" in outcome_of("shareRows", optimized.outcomes).reason


def test_an_input_that_does_not_exist_is_named_beside_those_that_do() -> None:
    outcomes = optimize_model(a_lookup(), shared_inputs=["age"]).outcomes
    assert outcome_of("shareRows", outcomes).reason == "no input 'age'; the model has ['ids']"


def test_an_old_opset_is_named_with_the_way_out() -> None:
    model = a_lookup()
    model.opset_import[0].version = 11
    assert {outcome.reason for outcome in optimize_model(model).outcomes} == {
        "the model has opset 11: export it with 14 or later"
    }


def test_a_model_that_does_not_load_is_refused() -> None:
    model = a_lookup()
    model.graph.node[0].op_type = "Scry"
    with pytest.raises(GraphRefusedError, match="Scry"):
        optimize_model(model)


def test_made_requests_stay_within_the_tables() -> None:
    model = ir.from_proto(a_model(30))
    session = Session(a_model(30))
    requests = list(make_requests(model, rows=(64,)))
    assert [session.run_request(request) is not None for request in requests] == [True]
    assert int(requests[0]["ids"].max()) > 20, "ids use the tables, and not a corner of them"


def floats(values: Sequence[object]) -> Array:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("expected", "answer", "error"),
    [
        (floats([1, 2]), floats([1, 2]), 0.0),
        (floats([np.nan, 2]), floats([np.nan, 2]), 0.0),
        (floats([4, 2]), floats([4, 1]), 0.25),
        (floats([np.inf, 2]), floats([-np.inf, 2]), np.inf),
        (floats([np.nan, 2]), floats([0, 2]), np.inf),
        (floats([1, 2]), floats([[1, 2]]), np.inf),
        (floats([1, 2]), np.array([1, 2], dtype=np.float64), np.inf),
        (np.array([1, 2]), np.array([1, 3]), np.inf),
        (np.array(["a"], dtype=object), np.array(["a"], dtype=object), 0.0),
    ],
)
def test_errors_are_measured_by_value(expected: Array, answer: Array, error: float) -> None:
    assert measure_error(expected, answer) == error


def a_table_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str | None]], **weights: Array
) -> onnx.ModelProto:
    """Return a model of these nodes whose integer inputs have these dimensions, and whose output is `out`."""
    graph = helper.make_graph(
        nodes,
        "tables",
        [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, None])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def two_tables(*chain: onnx.NodeProto, index: str) -> onnx.ModelProto:
    """Return a model with two columns of ten entries, whose ids are `index.0` and `index.1`."""
    tables = {
        f"t{number}": 100.0 * number + np.arange(20, dtype=np.float32).reshape(10, 2) for number in range(2)
    }
    constants = {
        "zero": np.int64(0),
        "offset": np.int64(1000),
        "low": np.int64(-3),
        "high": np.int64(-1),
        "five": np.int64(5),
    }
    nodes = [
        *chain,
        *(
            helper.make_node("Gather", [f"t{number}", f"{index}{number}"], [f"e{number}"])
            for number in range(2)
        ),
        helper.make_node("Concat", ["e0", "e1"], ["out"], axis=1),
    ]
    weights = {**tables, **{name: np.array(value) for name, value in constants.items()}}
    return a_table_model(nodes, {"x0": ["rows"], "x1": ["rows"]}, **weights)


def test_nothing_is_applied_if_the_model_answers_no_sample() -> None:
    chain = [helper.make_node("Sub", [f"x{number}", "offset"], [f"i{number}"]) for number in range(2)]
    fused = outcome_of("fuseEmbeddings", optimize_model(two_tables(*chain, index="i")).outcomes)
    assert (fused.applied, fused.reason) == (False, "no sample was answered, so nothing could be compared")


def test_ids_that_are_always_negative_are_counted_from_the_end_of_their_own_table() -> None:
    chain = [
        node
        for number in range(2)
        for node in (
            helper.make_node("Mod", [f"x{number}", "five"], [f"m{number}"]),
            helper.make_node("Clip", [f"m{number}", "low", "high"], [f"i{number}"]),
        )
    ]
    model = two_tables(*chain, index="i")
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    assert fuse_embeddings(read).columns == 2
    request = {"x0": np.array([3, 7]), "x1": np.array([1, 2])}
    expected, answer = Session(model).run_request(request), Session(ir.to_proto(read)).run_request(request)
    assert expected is not None
    assert answer is not None
    assert np.array_equal(expected[0], answer[0])


def test_inputs_with_different_numbers_of_rows_are_refused_and_not_mixed_up() -> None:
    model = two_tables(index="x")
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    assert fuse_embeddings(read).columns == 2
    request = {"x0": np.array([1, 2, 3]), "x1": np.array([1])}
    assert Session(model).run_request(request) is None
    assert Session(ir.to_proto(read)).run_request(request) is None


def test_inputs_whose_rows_have_no_common_name_are_not_fused() -> None:
    model = two_tables(index="x")
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].Clear()
    read = ir.from_proto(model)
    ShapeInferencePass()(read)
    assert fuse_embeddings(read).columns == 0


def test_a_model_with_a_scalar_input_is_reported_and_not_a_crash() -> None:
    nodes = [helper.make_node("Gather", ["t0", "x"], ["out"])]
    model = a_table_model(nodes, {"x": []}, t0=np.eye(4, dtype=np.float32))
    assert {outcome.applied for outcome in optimize_model(model).outcomes} == {False}


def test_the_samples_reach_both_ends_of_a_table_and_beyond() -> None:
    requests = list(make_edge_requests(ir.from_proto(two_tables(index="x"))))
    ids = {int(number) for request in requests for number in request["x0"]}
    assert {-1, -10, 10, -11} <= ids
    assert 0 in {len(request["x0"]) for request in requests}
