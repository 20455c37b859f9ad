"""DLRM (Naumov et al., 2019, arXiv:1906.00091): dot products of all pairs of embeddings, and of the dense columns' vector."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

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
BOTTOM = (64, WIDTH)
TOP = (256, 128)
DENSE, SPARSE = "dense", "sparse"
INPUTS: InputSpecs = {DENSE: (np.float32, (len(NUMBERS),)), SPARSE: (np.int64, (len(COLUMNS),))}
OUTPUTS: tuple[str, ...] = ("liked",)
PAIRS = tuple((second, first) for first, second in combinations(range(len(COLUMNS) + 1), 2))
"""Positions below the diagonal of the matrix of dot products."""


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters."""
    return {
        **describe_embeddings(COLUMNS, WIDTH),
        **describe_layers("bottom", (len(NUMBERS), *BOTTOM)),
        **describe_layers("top", (WIDTH + len(PAIRS), *TOP)),
        **describe_linear("top.out", TOP[-1], 1),
    }


def make_inputs(events: Events) -> Inputs:
    """Return the dense columns float32 [rows, numbers] and the ids int64 [rows, columns]."""
    return {DENSE: events.numbers, SPARSE: np.stack([events.ids[name] for name in COLUMNS], axis=1)}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit for each row, [rows, 1]."""
    dense = apply_layers(net, "bottom", inputs[DENSE], len(BOTTOM))
    embedded = [
        net.embed_ids(f"embedding.{name}", net.select_column(inputs[SPARSE], number))
        for number, name in enumerate(COLUMNS)
    ]
    vectors = net.view_values(net.join_values([dense, *embedded], 1), net.read_size(dense, 0), -1, WIDTH)
    products = vectors @ net.transpose_dims(vectors, 1, 2)
    rows, columns = zip(*PAIRS, strict=True)
    top = net.join_values([dense, net.select_pairs(products, rows, columns)], 1)
    return (net.apply_linear("top.out", apply_layers(net, "top", top, len(TOP))),)
