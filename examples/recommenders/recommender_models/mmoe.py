"""MMoE (Ma et al., KDD 2018): experts that two tasks share, and a gate of each task that weighs them.

The tasks: does the user like the film, and does the user rate another one within an hour?
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
EXPERTS = 4
EXPERT = (128, 64)
TOWER = 32
DENSE = "dense"
INPUTS: InputSpecs = {**dict.fromkeys(COLUMNS, (np.int64, (1,))), DENSE: (np.float32, (len(NUMBERS),))}
OUTPUTS: tuple[str, ...] = ("liked", "stayed")


def describe_parameters() -> Shapes:
    """Return the shapes of all parameters."""
    inputs = len(COLUMNS) * WIDTH + len(NUMBERS)
    shapes = describe_embeddings(COLUMNS, WIDTH)
    for expert in range(EXPERTS):
        shapes |= describe_layers(f"expert.{expert}", (inputs, *EXPERT))
    for task in OUTPUTS:
        shapes |= describe_linear(f"gate.{task}", inputs, EXPERTS)
        shapes |= describe_layers(f"tower.{task}", (EXPERT[-1], TOWER))
        shapes |= describe_linear(f"tower.{task}.out", TOWER, 1)
    return shapes


def make_inputs(events: Events) -> Inputs:
    """Return one column int64 [rows, 1] for each input, and the dense columns float32 [rows, numbers]."""
    return {**{name: events.ids[name][:, None] for name in COLUMNS}, DENSE: events.numbers}


def compute_logits(net: Operations[T], inputs: Mapping[str, T]) -> tuple[T, ...]:
    """Return one logit of each task for each row, [rows, 1]."""
    embedded = [net.squeeze_dim(net.embed_ids(f"embedding.{name}", inputs[name]), 1) for name in COLUMNS]
    x = net.join_values([*embedded, inputs[DENSE]], -1)
    experts = net.stack_values(
        [apply_layers(net, f"expert.{number}", x, len(EXPERT)) for number in range(EXPERTS)], 1
    )
    return tuple(_apply_task(net, task, x, experts) for task in OUTPUTS)


def _apply_task(net: Operations[T], task: str, x: T, experts: T) -> T:
    gate = net.unsqueeze_dim(net.apply_softmax(net.apply_linear(f"gate.{task}", x)), 1)
    mixed = net.squeeze_dim(gate @ experts, 1)
    return net.apply_linear(f"tower.{task}.out", apply_layers(net, f"tower.{task}", mixed, 1))
