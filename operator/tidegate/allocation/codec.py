"""Snapshots as JSON, so that one process can be asked what another decides from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import Snapshot

_SNAPSHOT: Final = TypeAdapter(Snapshot)


def written(snapshot: Snapshot) -> Mapping[str, Any]:
    """The whole of it, for JSON; what is infinite is a string, since JSON has no such number."""
    found: Mapping[str, Any] = from_json(to_json(snapshot, inf_nan_mode="strings"))
    return found


def read(body: object) -> Snapshot:
    """What `written` gave, equal in all. Raises InvalidInputError for anything else."""
    try:
        return _SNAPSHOT.validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise InvalidInputError(path or "snapshot", first["msg"]) from error
