"""A recipe from end to end: train a model on the past, judge it on the future, export it, and compare both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types
import optax  # type: ignore[import-untyped]  # publishes no types
from numpy.typing import NDArray

from movielens_din.data import TRAIN_SHARE
from movielens_din.export import TOLERANCE, ExportError
from movielens_din.metrics import area_under_curve
from movielens_din.training import Parameters, Training, minimize_loss
from recommender_models import bst, deepfm, din, dlrm, mmoe, two_tower
from recommender_models.columns import SMOOTHING, Events, Inputs, InputSpecs
from recommender_models.layers import Shapes
from recommender_models.operations import JaxOperations, Operations, T
from recommender_models.torch_export import Trace

EMBEDDING_SCALE: Final = 0.01
BATCH_ROWS: Final = 512


class Model(Protocol):
    """What the module of a model has."""

    INPUTS: InputSpecs
    OUTPUTS: tuple[str, ...]
    """Each is a column of Events that the model predicts."""

    def describe_parameters(self) -> Shapes: ...
    def make_inputs(self, events: Events) -> Inputs: ...
    def compute_logits(self, net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]: ...


MODELS: Final[Mapping[str, Model]] = {
    "din": din,
    "bst": bst,
    "deepfm": deepfm,
    "dlrm": dlrm,
    "two-tower": two_tower,
    "mmoe": mmoe,
}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model that was trained, exported and compared."""

    graph: onnx.ModelProto
    parameters: Parameters
    areas: Mapping[str, float]
    """AUC of each output on later ratings."""
    baseline: float
    """AUC of the film's mean rating, for `liked`."""
    difference: float
    """Largest difference between graph and function, over the later ratings."""


def make_parameters(shapes: Shapes, seed: int) -> Parameters:
    """Return small random embeddings and He-initialised layers."""
    random = np.random.default_rng(seed)
    parameters: Parameters = {}
    for name, shape in shapes.items():
        is_layer = name.replace(".weight", ".bias") in shapes
        if len(shape) == 1:
            values = np.zeros(shape) if name.endswith(".bias") else np.ones(shape)
        else:
            scale = (2.0 / shape[0]) ** 0.5 if is_layer else EMBEDDING_SCALE
            values = scale * random.standard_normal(shape)
        parameters[name] = jnp.asarray(values, dtype=jnp.float32)
    return parameters


def train_model(name: str, events: Events, training: Training) -> TrainedModel:
    """Train on the first four fifths of the ratings, and judge by the rest.

    Raise ExportError if the exported graph does not answer as the trained function.
    """
    model = MODELS[name]
    cut = int(len(events) * TRAIN_SHARE)
    past, future = events.select_rows(slice(0, cut)), events.select_rows(slice(cut, None))
    parameters = make_parameters(model.describe_parameters(), training.seed)
    parameters = minimize_loss(_make_loss(model, past), parameters, training, len(past))
    graph = export_model(name, parameters)
    inputs = model.make_inputs(future)
    scores = run_function(model, parameters, inputs)
    return TrainedModel(
        graph,
        parameters,
        {
            output: area_under_curve(getattr(future, output), score)
            for output, score in zip(model.OUTPUTS, scores, strict=True)
        },
        area_under_curve(future.liked, _score_by_mean(past, future)),
        measure_difference(graph, scores, inputs),
    )


def export_model(name: str, parameters: Parameters) -> onnx.ModelProto:
    """Return the graph of a model that answers probabilities, one output float32 [rows, 1] for each task."""
    model = MODELS[name]
    trace = Trace({name: np.asarray(values, dtype=np.float32) for name, values in parameters.items()})
    inputs = {name: trace.add_input(name, dtype, dims) for name, (dtype, dims) in model.INPUTS.items()}
    logits = model.compute_logits(trace, inputs)
    scores = [trace.apply_sigmoid(logit) for logit in logits]
    return trace.build_model(name, dict(zip(model.OUTPUTS, scores, strict=True)))


def run_function(model: Model, parameters: Parameters, inputs: Inputs) -> list[NDArray[np.float32]]:
    """Return the probabilities of each output by jax, float32 [rows, 1]."""

    @jax.jit
    def compute_scores(batch: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
        return tuple(map(jax.nn.sigmoid, model.compute_logits(JaxOperations(parameters), batch)))

    parts = [
        [np.asarray(score) for score in compute_scores(batch)] for batch in _split_rows(_shrink_ids(inputs))
    ]
    return [np.concatenate(scores) for scores in zip(*parts, strict=True)]


def run_graph(graph: onnx.ModelProto, inputs: Inputs) -> list[NDArray[np.float32]]:
    """Return the probabilities of each output by ONNX Runtime on one thread, float32 [rows, 1]."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    parts = [[np.asarray(score) for score in session.run(None, batch)] for batch in _split_rows(inputs)]
    return [np.concatenate(scores) for scores in zip(*parts, strict=True)]


def measure_difference(graph: onnx.ModelProto, expected: list[NDArray[np.float32]], inputs: Inputs) -> float:
    """Return the largest difference of a graph's probabilities from those of the function.

    Raise ExportError if it is above TOLERANCE.
    """
    pairs = zip(expected, run_graph(graph, inputs), strict=True)
    difference = max(float(np.abs(score - answer).max()) for score, answer in pairs)
    if not difference <= TOLERANCE:
        message = (
            f"the graph differs from the trained function by {difference:.2e}; {TOLERANCE:.0e} is allowed"
        )
        raise ExportError(message)
    return difference


def _make_loss(model: Model, events: Events) -> Any:
    inputs = {name: jnp.asarray(values) for name, values in _shrink_ids(model.make_inputs(events)).items()}
    targets = [jnp.asarray(getattr(events, output)) for output in model.OUTPUTS]

    def compute_loss(parameters: Parameters, rows: jax.Array) -> jax.Array:
        batch = {name: values[rows] for name, values in inputs.items()}
        logits = model.compute_logits(JaxOperations(parameters), batch)
        losses = [
            optax.sigmoid_binary_cross_entropy(logit[:, 0], target[rows]).mean()
            for logit, target in zip(logits, targets, strict=True)
        ]
        return jnp.stack(losses).sum()

    return compute_loss


def _score_by_mean(past: Events, future: Events) -> NDArray[np.float64]:
    """Return the smoothed share of users who liked each film in the past."""
    items = past.ids["item"]
    size = int(max(items.max(), future.ids["item"].max())) + 1
    counts, likes = np.bincount(items, minlength=size), np.bincount(items, past.liked, minlength=size)
    means = (likes + SMOOTHING * past.liked.mean()) / (counts + SMOOTHING)
    return np.asarray(means[future.ids["item"]], dtype=np.float64)


def _shrink_ids(inputs: Inputs) -> Inputs:
    """Return ids as int32, since jax has no int64 by default."""
    return {
        name: values.astype(np.int32) if values.dtype == np.int64 else values
        for name, values in inputs.items()
    }


def _split_rows(inputs: Inputs) -> list[Inputs]:
    rows = len(next(iter(inputs.values())))
    return [
        {name: values[start : start + BATCH_ROWS] for name, values in inputs.items()}
        for start in range(0, rows, BATCH_ROWS)
    ]
