"""A two-tower model: a network of the user, a network of the film, and the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recommender_models.columns import ITEM_COLUMNS, USER_COLUMNS, Events, Inputs, InputSpecs
from recommender_models.layers import Shapes, apply_layers, describe_embeddings, describe_layers, pool_history
from recommender_models.operations import Operations, T

WIDTH = 16
TOWER = (128, 64)
SCALE = 8.0
"""Of the cosine: logits are from -8 to 8."""
HISTORY = "history"
COLUMNS = {**USER_COLUMNS, **ITEM_COLUMNS}
INPUTS: InputSpecs = {**dict.fromkeys(COLUMNS, (np.int64, (1,))), HISTORY: (np.int64, ("length",))}
OUTPUTS: tuple[str, ...] = ("liked",)


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters; the history reads the item's embedding."""
    return {
        **describe_embeddings(COLUMNS, WIDTH),
        **describe_layers("user", ((len(USER_COLUMNS) + 1) * WIDTH, *TOWER)),
        **describe_layers("item", (len(ITEM_COLUMNS) * WIDTH, *TOWER)),
    }


def make_inputs(events: Events) -> Inputs:
    """Return one column int64 [rows, 1] for each input, and the history int64 [rows, length]."""
    return {**{name: events.ids[name][:, None] for name in COLUMNS}, HISTORY: events.history}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit for each row, [rows, 1]."""
    user, item = (
        [net.squeeze_dim(net.embed_ids(f"embedding.{name}", inputs[name]), 1) for name in columns]
        for columns in (USER_COLUMNS, ITEM_COLUMNS)
    )
    history = pool_history(net, inputs[HISTORY], net.embed_ids("embedding.item", inputs[HISTORY]))
    user_vector, item_vector = (
        net.normalize_rows(_apply_tower(net, name, net.join_values(parts, 1)))
        for name, parts in (("user", [*user, history]), ("item", item))
    )
    return (net.sum_dim(user_vector * item_vector, 1, keepdim=True) * SCALE,)


def _apply_tower(net: Operations[T], name: str, x: T) -> T:
    """Apply a tower, whose last layer has no ReLU."""
    last = len(TOWER) - 1
    return net.apply_linear(f"{name}.{last}", apply_layers(net, name, x, last))
