"""Results of writes to the API server, for metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidegate.errors import ConflictError, RetryableError, TidegateError


class WriteVerb(StrEnum):
    """The kind of write."""

    APPLY = "apply"
    MERGE = "merge"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


class WriteResult(StrEnum):
    """The outcome of a write."""

    OK = "ok"
    GONE = "gone"
    CONFLICT = "conflict"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class ApiWrite:
    """One write that has ended. `resource` is the plural, or `<plural>/<subresource>`."""

    verb: WriteVerb
    resource: str
    result: WriteResult
    seconds: float


WriteObserver: TypeAlias = Callable[[ApiWrite], None]


def classify_error(error: TidegateError) -> WriteResult:
    """Return the result that an error of a write stands for."""
    if isinstance(error, ConflictError):
        return WriteResult.CONFLICT
    return WriteResult.UNAVAILABLE if isinstance(error, RetryableError) else WriteResult.REFUSED


def ignore_write(_: ApiWrite) -> None:
    """Ignore the write: the default observer."""
