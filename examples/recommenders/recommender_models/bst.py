"""BST, the Behavior Sequence Transformer (Chen et al., 2019, arXiv:1905.06874): self-attention over history and film."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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

WIDTH = 32
HEADS = 4
POSITIONS = 256
"""The longest history has one film less."""
HIDDEN = (128, 64)
HISTORY, ITEM = "history", "item"
COLUMNS = {name: entries for name, entries in ALL_COLUMNS.items() if not name.startswith("last_liked")}
INPUTS: InputSpecs = {**dict.fromkeys(COLUMNS, (np.int64, (1,))), HISTORY: (np.int64, ("length",))}
OUTPUTS: tuple[str, ...] = ("liked",)


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters; the history reads the item's embedding."""
    shapes = {**describe_embeddings(COLUMNS, WIDTH), "position.weight": (POSITIONS, WIDTH)}
    for name in ("query", "key", "value", "mix"):
        shapes |= describe_linear(f"attention.{name}", WIDTH, WIDTH)
    for name in ("norm.0", "norm.1"):
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    return {
        **shapes,
        **describe_layers("feed", (WIDTH, 2 * WIDTH)),
        **describe_linear("feed.out", 2 * WIDTH, WIDTH),
        **describe_layers("deep", ((len(COLUMNS) + 2) * WIDTH, *HIDDEN)),
        **describe_linear("deep.out", HIDDEN[-1], 1),
    }


def make_inputs(events: Events) -> Inputs:
    """Return one column int64 [rows, 1] for each input, and the history int64 [rows, length]."""
    return {**{name: events.ids[name][:, None] for name in COLUMNS}, HISTORY: events.history}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit for each row, [rows, 1]."""
    # The film in question comes first, so that it has the same position whatever the length of the history.
    sequence = net.join_values([inputs[ITEM], inputs[HISTORY]], 1)
    x = net.embed_ids(f"embedding.{ITEM}", sequence)
    x = x + net.embed_ids("position", net.count_up(net.read_size(sequence, 1)))
    x = net.normalize_layer("norm.0", x + _attend(net, x, sequence))
    fed = net.apply_linear("feed.out", apply_layers(net, "feed", x, 1))
    x = net.normalize_layer("norm.1", x + fed)
    mask = net.cast_to_floats(net.unsqueeze_dim(net.differs_from(sequence, 0), -1))
    mean = net.sum_dim(x * mask, 1) / net.clamp_values(net.sum_dim(mask, 1), 1.0)
    columns = [net.squeeze_dim(net.embed_ids(f"embedding.{name}", inputs[name]), 1) for name in COLUMNS]
    deep = net.join_values([*columns, net.select_column(x, 0), mean], 1)
    return (net.apply_linear("deep.out", apply_layers(net, "deep", deep, len(HIDDEN))),)


def _attend(net: Operations[T], x: T, sequence: T) -> T:
    """Return multi-head attention of [rows, length, width] to itself, padding left out."""
    rows, length = net.read_size(x, 0), net.read_size(x, 1)
    query, key, value = (
        net.transpose_dims(
            net.view_values(net.apply_linear(f"attention.{name}", x), rows, length, HEADS, WIDTH // HEADS),
            1,
            2,
        )
        for name in ("query", "key", "value")
    )
    scores = query @ net.transpose_dims(key, 2, 3) / (WIDTH / HEADS) ** 0.5
    is_padding = net.unsqueeze_dim(net.unsqueeze_dim(net.equals_number(sequence, 0), 1), 2)
    weights = net.apply_softmax(net.fill_masked(scores, is_padding, -1e9))
    mixed = net.transpose_dims(weights @ value, 1, 2)
    return net.apply_linear("attention.mix", net.view_values(mixed, rows, length, -1))
