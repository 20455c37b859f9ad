"""The six recommendation models: each export answers as its jax function, and the graph passes keep its answers."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx_ir.passes.common import ShapeInferencePass

from builders.movielens import a_movielens
from builders.recommenders import an_untrained_model, random_events
from movielens_din import din as movielens_din
from movielens_din.data import MovieLens, Ratings, ratings_of
from movielens_din.export import ExportError
from movielens_din.training import Parameters
from recommender_models import bst, din
from recommender_models.columns import COLUMNS, Inputs, list_histories, read_events
from recommender_models.recipe import MODELS, measure_difference, run_function
from tidegate_dataplane.graph_passes import proof
from tidegate_dataplane.graph_passes.pipeline import PASSES, Pass, optimize_model
from tidegate_dataplane.graph_passes.proof import Session, measure_error
from tidegate_dataplane.graph_passes.samples import make_edge_requests, make_requests

every_model = pytest.mark.parametrize("name", MODELS)


def read_model(graph: onnx.ModelProto) -> ir.Model:
    read = ir.from_proto(graph)
    ShapeInferencePass()(read)
    return read


@functools.cache
def score_events(name: str) -> tuple[Parameters, onnx.ModelProto, Inputs, list[NDArray[np.float32]]]:
    """Return a model, its export, a request, and the function's answer."""
    parameters, graph = an_untrained_model(name)
    inputs = MODELS[name].make_inputs(random_events(9))
    return parameters, graph, inputs, run_function(MODELS[name], parameters, inputs)


@every_model
def test_an_export_answers_as_its_function_at_any_number_of_rows(name: str) -> None:
    _, graph, inputs, scores = score_events(name)
    assert [score.shape for score in scores] == [(9, 1)] * len(MODELS[name].OUTPUTS)
    assert measure_difference(graph, scores, inputs) < 1e-6
    last = {name: values[-1:] for name, values in inputs.items()}
    assert measure_difference(graph, [score[-1:] for score in scores], last) < 1e-6


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if "history" in model.INPUTS])
def test_an_export_takes_a_history_of_any_length_and_skips_padding(name: str) -> None:
    _, graph, inputs, scores = score_events(name)
    padded = {**inputs, "history": np.pad(inputs["history"], ((0, 0), (0, 30)))}
    assert measure_difference(graph, scores, padded) < 1e-6


@every_model
def test_an_export_with_one_wrong_weight_is_noticed(name: str) -> None:
    _, graph, inputs, scores = score_events(name)
    broken = onnx.ModelProto()
    broken.CopyFrom(graph)
    weight = next(value for value in broken.graph.initializer if value.name == "embedding.item.weight")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[random_events(9).ids["item"][0], 0] += 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    with pytest.raises(ExportError, match="differs from the trained function"):
        measure_difference(broken, scores, inputs)


@every_model
def test_passes_keep_the_answers(name: str) -> None:
    _, graph, inputs, _ = score_events(name)
    read = read_model(graph)
    requests = [inputs, *make_requests(read), *list(make_edge_requests(read))[:30]]
    original = Session(graph)
    assert all(original.run_request(request) for request in make_requests(read, (128,))), "ids are valid"
    for graph_pass in PASSES:
        rewritten = read_model(graph)
        if not graph_pass.variants[0](rewritten):
            continue
        session = Session(ir.to_proto(rewritten))
        for request in requests:
            expected, answer = original.run_request(request), session.run_request(request)
            assert (expected is None) == (answer is None), graph_pass.name
            for first, second in zip(expected or (), answer or (), strict=True):
                assert measure_error(first, second) <= 1e-5, graph_pass.name


@pytest.mark.parametrize("positions", [256, 20])
def test_a_pass_is_measured_with_the_longest_history_that_the_model_takes(
    positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bst, "POSITIONS", positions)
    monkeypatch.setattr(proof, "RUN_SECONDS", 0.01)
    _, graph = an_untrained_model("bst")
    same = Pass("same", (lambda model: 1,), 0.0)
    [outcome] = optimize_model(graph, passes=[same], measured_rows=(2,)).outcomes
    assert "cannot be compared or measured" not in outcome.reason
    assert set(outcome.speedups) == {2}


def test_din_is_the_network_of_the_movielens_example() -> None:
    parameters, _, inputs, [scores] = score_events("din")
    renamed = {
        name.removesuffix(".weight") if name.startswith("embedding") else name: values
        for name, values in parameters.items()
    }
    expected = movielens_din.scores(
        din.ARCHITECTURE, renamed, {**inputs, movielens_din.HISTORY: inputs[din.HISTORY]}
    )
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


def test_a_history_holds_what_was_liked_strictly_before_newest_first() -> None:
    ratings = ratings_of([(1, 10, 5, 1), (1, 11, 2, 2), (1, 12, 4, 3), (1, 13, 5, 4), (2, 14, 5, 5)])
    assert list_histories(ratings, length=3).tolist() == [
        [0, 0, 0],
        [10, 0, 0],
        [10, 0, 0],
        [12, 10, 0],
        [0, 0, 0],
    ]


def test_ratings_of_the_same_second_are_not_in_their_histories() -> None:
    ratings = ratings_of([(1, 10, 5, 1), (1, 11, 5, 1), (1, 12, 5, 2)])
    histories = list_histories(ratings, length=2)
    assert histories[:2].tolist() == [[0, 0], [0, 0]]
    assert sorted(histories[2].tolist()) == [10, 11]


def test_a_long_history_keeps_the_newest() -> None:
    ratings = ratings_of([(1, item, 5, item) for item in range(1, 8)])
    assert list_histories(ratings, length=3)[-1].tolist() == [6, 5, 4]


def test_columns_of_a_rating_do_not_see_it_nor_what_comes_later() -> None:
    data = a_movielens()
    cut = len(data.ratings) // 2
    flipped = Ratings(
        data.ratings.user_ids,
        data.ratings.item_ids,
        np.where(np.arange(len(data.ratings)) < cut, data.ratings.stars, 6 - data.ratings.stars),
        data.ratings.timestamps,
    )
    events, others = read_events(data), read_events(MovieLens(data.users, data.items, flipped))
    for name in COLUMNS:
        np.testing.assert_array_equal(events.ids[name][: cut + 1], others.ids[name][: cut + 1])
    np.testing.assert_array_equal(events.numbers[: cut + 1], others.numbers[: cut + 1])
    assert np.abs(events.numbers[cut + 1 :] - others.numbers[cut + 1 :]).max() > 0.1
