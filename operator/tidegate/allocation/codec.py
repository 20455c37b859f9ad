"""JSON form of snapshots, so that one process can solve the inputs of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import AllocationSnapshot

_SNAPSHOT: Final = TypeAdapter(AllocationSnapshot)


def encode_snapshot(snapshot: AllocationSnapshot) -> Mapping[str, Any]:
    """Return a snapshot as JSON values; infinite numbers become strings, because JSON has none."""
    document: Mapping[str, Any] = from_json(to_json(snapshot, inf_nan_mode="strings"))
    return document


def decode_snapshot(body: object) -> AllocationSnapshot:
    """Parse the result of `encode_snapshot` into an equal snapshot; raise InvalidInputError for anything else."""
    try:
        return _SNAPSHOT.validate_python(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in problem["loc"])
        raise InvalidInputError(path or "snapshot", problem["msg"]) from error
