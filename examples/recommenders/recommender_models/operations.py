"""The operations that a model's forward function is written in: PyTorch's, by jax for training and by a trace for export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

Size = Any
"""An axis's length: an integer, or in a trace the value that the graph computes it as."""
NORM_EPSILON = 1e-12
LAYER_NORM_EPSILON = 1e-5


class Tensor(Protocol):
    """What both kinds of values have."""

    def __add__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __matmul__(self, other: Any, /) -> Self: ...


T = TypeVar("T", bound=Tensor)


class Operations(Protocol[T]):
    """Layers and operations by their meaning in PyTorch, which each docstring quotes."""

    def embed_ids(self, name: str, ids: T) -> T:
        """Return `nn.Embedding(ids)`; its weight is the parameter `<name>.weight`."""
        ...

    def apply_linear(self, name: str, x: T) -> T:
        """Return `nn.Linear(x)`; its weight is [inputs, outputs], unlike PyTorch's."""
        ...

    def apply_relu(self, x: T) -> T:
        """Return `torch.relu(x)`."""
        ...

    def apply_sigmoid(self, x: T) -> T:
        """Return `torch.sigmoid(x)`."""
        ...

    def apply_softmax(self, x: T) -> T:
        """Return `torch.softmax(x, dim=-1)`."""
        ...

    def normalize_layer(self, name: str, x: T) -> T:
        """Return `nn.LayerNorm(x)`."""
        ...

    def normalize_rows(self, x: T) -> T:
        """Return `F.normalize(x, dim=1)`, of a matrix."""
        ...

    def join_values(self, values: Sequence[T], dim: int) -> T:
        """Return `torch.cat(values, dim)`."""
        ...

    def stack_values(self, values: Sequence[T], dim: int) -> T:
        """Return `torch.stack(values, dim)`."""
        ...

    def select_column(self, x: T, column: int) -> T:
        """Return `x[:, column]`."""
        ...

    def slice_columns(self, x: T, start: int, stop: int) -> T:
        """Return `x[:, start:stop]`."""
        ...

    def select_pairs(self, x: T, first: Sequence[int], second: Sequence[int]) -> T:
        """Return `x[:, first, second]`."""
        ...

    def squeeze_dim(self, x: T, dim: int) -> T:
        """Return `x.squeeze(dim)`."""
        ...

    def unsqueeze_dim(self, x: T, dim: int) -> T:
        """Return `x.unsqueeze(dim)`."""
        ...

    def sum_dim(self, x: T, dim: int, *, keepdim: bool = False) -> T:
        """Return `x.sum(dim, keepdim)`."""
        ...

    def square_values(self, x: T) -> T:
        """Return `torch.pow(x, 2)`."""
        ...

    def transpose_dims(self, x: T, first: int, second: int) -> T:
        """Return `x.transpose(first, second)`; dimensions count from the front."""
        ...

    def read_size(self, x: T, dim: int) -> Size:
        """Return `x.size(dim)`."""
        ...

    def view_values(self, x: T, *sizes: Size) -> T:
        """Return `x.view(*sizes)`."""
        ...

    def expand_values(self, x: T, *sizes: Size) -> T:
        """Return `x.expand(*sizes)`."""
        ...

    def flatten_rows(self, x: T) -> T:
        """Return `torch.flatten(x, start_dim=1)`."""
        ...

    def count_up(self, stop: Size) -> T:
        """Return `torch.arange(stop)`."""
        ...

    def cast_to_ids(self, x: T) -> T:
        """Return `x.long()`."""
        ...

    def cast_to_floats(self, x: T) -> T:
        """Return `x.float()`."""
        ...

    def differs_from(self, x: T, number: int) -> T:
        """Return `x != number`."""
        ...

    def equals_number(self, x: T, number: int) -> T:
        """Return `x == number`."""
        ...

    def fill_masked(self, x: T, mask: T, number: float) -> T:
        """Return `x.masked_fill(mask, number)`."""
        ...

    def clamp_values(self, x: T, least: float) -> T:
        """Return `x.clamp(min=least)`."""
        ...


class JaxOperations:
    """Operations on jax arrays: what is trained, and what an export is compared with."""

    def __init__(self, parameters: Mapping[str, jax.Array]) -> None:
        self._parameters = parameters

    def embed_ids(self, name: str, ids: jax.Array) -> jax.Array:
        return self._parameters[f"{name}.weight"][ids]

    def apply_linear(self, name: str, x: jax.Array) -> jax.Array:
        return x @ self._parameters[f"{name}.weight"] + self._parameters[f"{name}.bias"]

    def apply_relu(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)

    def apply_sigmoid(self, x: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x)

    def apply_softmax(self, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=-1)

    def normalize_layer(self, name: str, x: jax.Array) -> jax.Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        normal = centred / jnp.sqrt(variance + LAYER_NORM_EPSILON)
        return normal * self._parameters[f"{name}.weight"] + self._parameters[f"{name}.bias"]

    def normalize_rows(self, x: jax.Array) -> jax.Array:
        squares = jnp.square(x).sum(axis=1, keepdims=True)
        # The gradient of a square root has no value at zero.
        return x / jnp.sqrt(jnp.maximum(squares, NORM_EPSILON**2))

    def join_values(self, values: Sequence[jax.Array], dim: int) -> jax.Array:
        return jnp.concatenate(values, axis=dim)

    def stack_values(self, values: Sequence[jax.Array], dim: int) -> jax.Array:
        return jnp.stack(values, axis=dim)

    def select_column(self, x: jax.Array, column: int) -> jax.Array:
        return x[:, column]

    def slice_columns(self, x: jax.Array, start: int, stop: int) -> jax.Array:
        return x[:, start:stop]

    def select_pairs(self, x: jax.Array, first: Sequence[int], second: Sequence[int]) -> jax.Array:
        return x[:, jnp.array(first), jnp.array(second)]

    def squeeze_dim(self, x: jax.Array, dim: int) -> jax.Array:
        return x.squeeze(dim)

    def unsqueeze_dim(self, x: jax.Array, dim: int) -> jax.Array:
        return jnp.expand_dims(x, dim)

    def sum_dim(self, x: jax.Array, dim: int, *, keepdim: bool = False) -> jax.Array:
        return x.sum(axis=dim, keepdims=keepdim)

    def square_values(self, x: jax.Array) -> jax.Array:
        return jnp.square(x)

    def transpose_dims(self, x: jax.Array, first: int, second: int) -> jax.Array:
        return x.swapaxes(first, second)

    def read_size(self, x: jax.Array, dim: int) -> Size:
        return x.shape[dim]

    def view_values(self, x: jax.Array, *sizes: Size) -> jax.Array:
        return x.reshape(sizes)

    def expand_values(self, x: jax.Array, *sizes: Size) -> jax.Array:
        shape = [own if size == -1 else size for own, size in zip(x.shape, sizes, strict=True)]
        return jnp.broadcast_to(x, shape)

    def flatten_rows(self, x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], -1)

    def count_up(self, stop: Size) -> jax.Array:
        return jnp.arange(stop)

    def cast_to_ids(self, x: jax.Array) -> jax.Array:
        return x.astype(jnp.int32)

    def cast_to_floats(self, x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32)

    def differs_from(self, x: jax.Array, number: int) -> jax.Array:
        return x != number

    def equals_number(self, x: jax.Array, number: int) -> jax.Array:
        return x == number

    def fill_masked(self, x: jax.Array, mask: jax.Array, number: float) -> jax.Array:
        return jnp.where(mask, number, x)

    def clamp_values(self, x: jax.Array, least: float) -> jax.Array:
        return jnp.maximum(x, least)
