"""Layers that several models have, and the shapes of their parameters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from recommender_models.operations import Operations, T

Shapes = dict[str, tuple[int, ...]]
"""Of parameters by name."""


def describe_embeddings(entries: Mapping[str, int], width: int, prefix: str = "embedding") -> Shapes:
    """Return the shape of one embedding for each column."""
    return {f"{prefix}.{name}.weight": (count, width) for name, count in entries.items()}


def describe_linear(name: str, inputs: int, outputs: int) -> Shapes:
    """Return the shapes of a linear layer."""
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def describe_layers(name: str, widths: Sequence[int]) -> Shapes:
    """Return the shapes of linear layers one after the other."""
    shapes: Shapes = {}
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        shapes |= describe_linear(f"{name}.{number}", inputs, outputs)
    return shapes


def apply_layers(net: Operations[T], name: str, x: T, count: int) -> T:
    """Apply linear layers, with a ReLU after each."""
    for number in range(count):
        x = net.apply_relu(net.apply_linear(f"{name}.{number}", x))
    return x


def pool_history(net: Operations[T], history: T, embedded: T) -> T:
    """Return the mean of the embedded films [rows, length, width] that are not padding: [rows, width]."""
    mask = net.cast_to_floats(net.unsqueeze_dim(net.differs_from(history, 0), -1))
    total = net.sum_dim(embedded * mask, 1)
    return total / net.clamp_values(net.sum_dim(mask, 1), 1.0)
