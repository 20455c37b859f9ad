"""DeepFM (Guo et al., IJCAI 2017, arXiv:1703.04247): a factorization machine and a deep network over the same embeddings.

As DeepCTR-Torch writes it: all columns come in one matrix of floats, from which each one is sliced and cast.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from recommender_models.columns import COLUMNS, NUMBERS, Events, Inputs, InputSpecs
from recommender_models.layers import (
    Shapes,
    apply_layers,
    describe_embeddings,
    describe_layers,
    describe_linear,
)
from recommender_models.operations import Operations, T

WIDTH = 16
HIDDEN = (256, 128)
INPUT = "features"
INPUTS: InputSpecs = {INPUT: (np.float32, (len(COLUMNS) + len(NUMBERS),))}
OUTPUTS: tuple[str, ...] = ("liked",)


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters."""
    inputs = len(COLUMNS) * WIDTH + len(NUMBERS)
    return {
        **describe_embeddings(COLUMNS, WIDTH),
        **describe_embeddings(COLUMNS, 1, "linear"),
        **describe_linear("linear.numbers", len(NUMBERS), 1),
        **describe_layers("deep", (inputs, *HIDDEN)),
        **describe_linear("deep.out", HIDDEN[-1], 1),
    }


def make_inputs(events: Events) -> Inputs:
    """Return the matrix float32 [rows, columns]: ids first, then numbers."""
    ids = np.stack([events.ids[name] for name in COLUMNS], axis=1)
    return {INPUT: np.concatenate([ids.astype(np.float32), events.numbers], axis=1)}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit for each row, [rows, 1]."""
    x = inputs[INPUT]
    embedded, weights = (
        [
            net.embed_ids(f"{table}.{name}", net.cast_to_ids(net.slice_columns(x, number, number + 1)))
            for number, name in enumerate(COLUMNS)
        ]
        for table in ("embedding", "linear")
    )
    numbers = net.slice_columns(x, len(COLUMNS), len(COLUMNS) + len(NUMBERS))
    linear = net.flatten_rows(net.sum_dim(net.join_values(weights, -1), -1))
    linear = linear + net.apply_linear("linear.numbers", numbers)
    fields = net.join_values(embedded, 1)
    square_of_sum = net.square_values(net.sum_dim(fields, 1, keepdim=True))
    sum_of_squares = net.sum_dim(fields * fields, 1, keepdim=True)
    pairs = net.sum_dim(square_of_sum - sum_of_squares, 2) * 0.5
    deep = net.join_values([net.flatten_rows(net.join_values(embedded, -1)), numbers], -1)
    deep = net.apply_linear("deep.out", apply_layers(net, "deep", deep, len(HIDDEN)))
    return (linear + pairs + deep,)
