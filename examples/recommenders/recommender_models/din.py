"""DIN, the Deep Interest Network: the network of examples/movielens, with more columns and a history of any length."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from movielens_din.din import Architecture
from recommender_models.columns import COLUMNS as ALL_COLUMNS
from recommender_models.columns import Events, Inputs, InputSpecs
from recommender_models.layers import (
    Shapes,
    apply_layers,
    describe_embeddings,
    describe_layers,
    describe_linear,
)
from recommender_models.operations import Operations, T

HISTORY, ITEM = "history", "item"
COLUMNS = {name: entries for name, entries in ALL_COLUMNS.items() if not name.startswith("last_liked")}
ARCHITECTURE = Architecture(tuple(COLUMNS.items()))
WIDTH = ARCHITECTURE.dimension
INPUTS: InputSpecs = {**dict.fromkeys(COLUMNS, (np.int64, (1,))), HISTORY: (np.int64, ("length",))}
OUTPUTS: tuple[str, ...] = ("liked",)


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters; the history reads the item's embedding."""
    hidden = ARCHITECTURE.hidden_units
    return {
        **describe_embeddings(COLUMNS, WIDTH),
        **describe_layers("attention", (4 * WIDTH, ARCHITECTURE.attention_units, 1)),
        **describe_layers("top", ((len(COLUMNS) + 1) * WIDTH, *hidden)),
        **describe_linear("top.2", hidden[-1], 1),
    }


def make_inputs(events: Events) -> Inputs:
    """Return one column int64 [rows, 1] for each input, and the history int64 [rows, length]."""
    return {**{name: events.ids[name][:, None] for name in COLUMNS}, HISTORY: events.history}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit for each row, [rows, 1]."""
    embedded = {name: net.embed_ids(f"embedding.{name}", inputs[name]) for name in COLUMNS}
    interest = _attend(net, embedded[ITEM], inputs[HISTORY])
    columns = [net.squeeze_dim(vector, 1) for vector in embedded.values()]
    hidden = apply_layers(net, "top", net.join_values([*columns, interest], -1), 2)
    return (net.apply_linear("top.2", hidden),)


def _attend(net: Operations[T], item: T, history: T) -> T:
    """Return the mean of the history, each film weighed by a network that compares it with the item [rows, 1, width]."""
    films = net.embed_ids(f"embedding.{ITEM}", history)
    target = net.expand_values(item, -1, net.read_size(films, 1), -1)
    pairs = net.join_values([target, films, target - films, target * films], -1)
    weights = net.apply_linear("attention.1", apply_layers(net, "attention", pairs, 1))
    mask = net.cast_to_floats(net.unsqueeze_dim(net.differs_from(history, 0), -1))
    total = net.sum_dim(weights * mask * films, 1)
    return total / net.clamp_values(net.sum_dim(mask, 1), 1.0)
