"""Minimises a loss over rows in random batches, by AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import jax
import optax  # type: ignore[import-untyped]  # publishes no types

Parameters: TypeAlias = dict[str, jax.Array]
Loss: TypeAlias = Callable[[Parameters, jax.Array], jax.Array]
"""The mean loss of the rows with these numbers, int [batch rows]."""


@dataclass(frozen=True, slots=True)
class Training:
    """How long and how carefully to train."""

    seed: int
    epochs: int
    batch_rows: int = 512
    learning_rate: float = 2e-3
    weight_decay: float = 0.1


def minimize_loss(loss: Loss, parameters: Parameters, training: Training, rows: int) -> Parameters:
    """Returns trained parameters; the same seed gives the same ones on the same machine.

    Rows that do not fill a last batch sit that epoch out.
    """
    optimizer = optax.chain(
        optax.scale_by_adam(),
        optax.add_decayed_weights(training.weight_decay, mask=_decayed),
        optax.scale_by_learning_rate(training.learning_rate),
    )
    batches = rows // training.batch_rows

    def step(
        carry: tuple[Parameters, optax.OptState], chosen: jax.Array
    ) -> tuple[tuple[Parameters, optax.OptState], jax.Array]:
        parameters, state = carry
        value, gradients = jax.value_and_grad(loss)(parameters, chosen)
        updates, state = optimizer.update(gradients, state, parameters)
        return (cast(Parameters, optax.apply_updates(parameters, updates)), state), value

    @jax.jit
    def epoch(
        parameters: Parameters, state: optax.OptState, key: jax.Array
    ) -> tuple[tuple[Parameters, optax.OptState], jax.Array]:
        order = jax.random.permutation(key, rows)[: batches * training.batch_rows]
        return jax.lax.scan(step, (parameters, state), order.reshape(batches, training.batch_rows))

    state = optimizer.init(parameters)
    for key in jax.random.split(jax.random.key(training.seed + 1), training.epochs):
        (parameters, state), _ = epoch(parameters, state, key)
    return parameters


def _decayed(parameters: Parameters) -> dict[str, bool]:
    return {name: not name.endswith(".bias") for name in parameters}
