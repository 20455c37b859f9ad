"""Check a request's inputs, and bring them into the form that the engine computes with."""

from collections.abc import Mapping
from typing import assert_never

import numpy as np

from tidegate_dataplane.contract import AS_OF, Entity, EntityKeyType, RequestField, RequestFieldType
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.events import Array, Times


def get_input(inputs: Mapping[str, Array], name: str) -> Array:
    """Return an input.

    Raises:
        FeatureError: it is missing.
    """
    if name not in inputs:
        raise FeatureError(f"input {name!r} is missing")
    return inputs[name]


def check_keys(entity: Entity, values: Array) -> Array:
    """Return the keys of an entity, [n]: integers, or an object array of UTF-8.

    Raises:
        FeatureError: they are of another type or shape.
    """
    flat = _flatten_input(entity.key, values)
    if entity.type is EntityKeyType.INT64:
        return _check_integers(entity.key, flat)
    return _check_texts(entity.key, flat)


def check_field(declared: RequestField, values: Array) -> Array:
    """Return a field of the request, [n]: integers, float32, or an object array of UTF-8.

    Raises:
        FeatureError: it is of another type or shape.
    """
    flat = _flatten_input(declared.name, values)
    match declared.type:
        case RequestFieldType.INT64:
            return _check_integers(declared.name, flat)
        case RequestFieldType.STRING:
            return _check_texts(declared.name, flat)
        case RequestFieldType.FLOAT32:
            if not np.issubdtype(flat.dtype, np.number):
                raise FeatureError(f"input {declared.name!r} has type {flat.dtype}; float32 is needed")
            return flat.astype(np.float32, copy=False)
        case _:
            assert_never(declared.type)


def check_times(values: Array) -> Times:
    """Return the times of the input AS_OF, [n].

    Raises:
        FeatureError: they are of another type or shape.
    """
    return _check_integers(AS_OF, _flatten_input(AS_OF, values)).astype(np.int64, copy=False)


def _flatten_input(name: str, values: Array) -> Array:
    flat = values.reshape(-1) if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1:
        raise FeatureError(f"input {name!r} has shape {list(values.shape)}; [n] or [n, 1] is needed")
    return flat


def _check_integers(name: str, flat: Array) -> Array:
    if not np.issubdtype(flat.dtype, np.integer):
        raise FeatureError(f"input {name!r} has type {flat.dtype}; int64 is needed")
    return flat


def _check_texts(name: str, flat: Array) -> Array:
    values = flat.tolist()
    if flat.dtype == np.object_ and set(map(type, values)) <= {bytes}:
        return flat
    texts = np.empty(len(flat), dtype=object)
    texts[:] = [_to_utf8(value, name) for value in values]
    return texts


def _to_utf8(value: object, name: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise FeatureError(f"input {name!r} holds {type(value).__name__}; strings are needed")
