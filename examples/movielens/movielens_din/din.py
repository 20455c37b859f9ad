"""DIN, the Deep Interest Network (Zhou et al., KDD 2018, arXiv:1706.06978), as pure jax functions.

Every categorical feature has an embedding. The films that a user liked are weighed by a small network that compares
each of them with the film in question, so that the same history says something else about another film.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]  # publishes no types
from numpy.typing import NDArray

from movielens_din.data import Labels
from movielens_din.training import Parameters, Training, minimize_loss

HISTORY: Final = "hist_items"
ITEM: Final = "item"
"""A history is made of items, so both features read the item embedding."""
PADDING_ITEM: Final = 0
"""Films are numbered from 1, so 0 is an empty place in a history, and a film that is not in the table."""
EMBEDDING_SCALE: Final = 0.005
"""Near zero: 85 % of the test rows are of users who were not in training, whose untrained embedding must say nothing."""

Inputs = Mapping[str, NDArray[Any]]
"""By feature: int64 [rows, 1] for an embedding, int64 [rows, length] for the history, float32 [rows, 1] for a number."""


@dataclass(frozen=True, slots=True)
class NumberFeature:
    """A feature that is a number, with its mean and deviation in training, by which the network standardises it."""

    name: str
    mean: float
    deviation: float

    @classmethod
    def measure(cls, name: str, values: NDArray[np.float32]) -> NumberFeature:
        """The feature with these values in training."""
        return cls(name, mean=float(values.mean()), deviation=float(values.std()) or 1.0)


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of the network. `vocabulary`: rows of the embedding of each scalar feature, in input order."""

    vocabulary: tuple[tuple[str, int], ...]
    numbers: tuple[NumberFeature, ...] = ()
    history_length: int = 50
    dimension: int = 32
    attention_units: int = 16
    hidden_units: tuple[int, int] = (64, 32)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The features with one value per row, in the order in which the network reads them."""
        return tuple(name for name, _ in self.vocabulary)

    @property
    def top_inputs(self) -> int:
        """The width of the network's first layer: embeddings, the interest, and numbers."""
        return (len(self.vocabulary) + 1) * self.dimension + len(self.numbers)


def initial_parameters(architecture: Architecture, seed: int) -> Parameters:
    """Small random embeddings and He-initialised layers."""
    # NumPy's generator, since jax would compile one program for every shape: seconds, for nothing.
    generator = np.random.default_rng(seed)
    width = architecture.dimension
    values: dict[str, NDArray[np.float64]] = {}
    for name, rows in architecture.vocabulary:
        values[f"embedding.{name}"] = EMBEDDING_SCALE * generator.standard_normal((rows, width))
    sizes = (
        ("attention.0", 4 * width, architecture.attention_units),
        ("attention.1", architecture.attention_units, 1),
        ("top.0", architecture.top_inputs, architecture.hidden_units[0]),
        ("top.1", architecture.hidden_units[0], architecture.hidden_units[1]),
        ("top.2", architecture.hidden_units[1], 1),
    )
    for name, inputs, outputs in sizes:
        scale = (2.0 / inputs) ** 0.5
        values[f"{name}.weight"] = scale * generator.standard_normal((inputs, outputs))
        values[f"{name}.bias"] = np.zeros((outputs,))
    # At first each film of a history counts the same: with weights near zero it would count for nothing, and not learn.
    values["attention.1.bias"] += 1.0
    return {name: jnp.asarray(array, dtype=jnp.float32) for name, array in values.items()}


def logits(architecture: Architecture, parameters: Parameters, inputs: Mapping[str, jax.Array]) -> jax.Array:
    """float32 [rows]. `inputs` as Inputs, with any integers."""
    scalars = [parameters[f"embedding.{name}"][inputs[name][:, 0]] for name in architecture.scalars]
    item = parameters[f"embedding.{ITEM}"][inputs[ITEM][:, 0]]
    history = parameters[f"embedding.{ITEM}"][inputs[HISTORY]]
    mask = (inputs[HISTORY] != PADDING_ITEM).astype(jnp.float32)
    interest = _attend(parameters, item, history, mask)
    numbers = [(inputs[number.name] - number.mean) / number.deviation for number in architecture.numbers]
    hidden = jnp.concatenate([*scalars, interest, *numbers], axis=-1)
    hidden = jax.nn.relu(hidden @ parameters["top.0.weight"] + parameters["top.0.bias"])
    hidden = jax.nn.relu(hidden @ parameters["top.1.weight"] + parameters["top.1.bias"])
    return (hidden @ parameters["top.2.weight"] + parameters["top.2.bias"])[:, 0]


def scores(
    architecture: Architecture, parameters: Parameters, inputs: Inputs, batch_rows: int = 2048
) -> NDArray[np.float32]:
    """The probability that the user likes the film: float32 [rows, 1]."""

    @jax.jit
    def probabilities(batch: Mapping[str, jax.Array]) -> jax.Array:
        return jax.nn.sigmoid(logits(architecture, parameters, batch))

    rows = len(next(iter(inputs.values())))
    parts: list[NDArray[np.float32]] = []
    for at in range(0, rows, batch_rows):
        batch = {name: values[at : at + batch_rows] for name, values in inputs.items()}
        parts.append(np.asarray(probabilities(_to_device(batch)), dtype=np.float32))
    return np.concatenate(parts)[:, None]


def train(architecture: Architecture, training: Training, inputs: Inputs, labels: Labels) -> Parameters:
    """Minimises the logistic loss. `labels`: float32 [rows]."""
    rows = _to_device(inputs)
    targets = jnp.asarray(labels)

    def loss(parameters: Parameters, chosen: jax.Array) -> jax.Array:
        batch = {name: values[chosen] for name, values in rows.items()}
        predicted = logits(architecture, parameters, batch)
        losses: jax.Array = optax.sigmoid_binary_cross_entropy(predicted, targets[chosen])
        return losses.mean()

    parameters = initial_parameters(architecture, training.seed)
    return minimize_loss(loss, parameters, training, len(labels))


def _to_device(inputs: Inputs) -> dict[str, jax.Array]:
    """The same arrays for jax, whose integers have 32 bits."""
    return {
        name: jnp.asarray(values, dtype=jnp.int32 if values.dtype == np.int64 else jnp.float32)
        for name, values in inputs.items()
    }


def _attend(parameters: Parameters, item: jax.Array, history: jax.Array, mask: jax.Array) -> jax.Array:
    """The history weighed by relevance: float32 [rows, dimension].

    No softmax, as in the paper, but the mean in place of its sum: a sum grows with the history, whose length says little
    (AUC 0.735 against 0.738).
    """
    target = jnp.broadcast_to(item[:, None, :], history.shape)
    pairs = jnp.concatenate([target, history, target - history, target * history], axis=-1)
    hidden = jax.nn.relu(pairs @ parameters["attention.0.weight"] + parameters["attention.0.bias"])
    weights = (hidden @ parameters["attention.1.weight"] + parameters["attention.1.bias"])[:, :, 0] * mask
    liked = jnp.maximum(mask.sum(axis=-1, keepdims=True), 1.0)
    return jnp.einsum("rl,rld->rd", weights, history) / liked
