"""Results of writes to the API server, for metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidegate.errors import ConflictError, RetryableError, TidegateError


class Verb(StrEnum):
    """The kind of write."""

    APPLY = "apply"
    MERGE = "merge"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


class Result(StrEnum):
    """The outcome of a write."""

    OK = "ok"
    GONE = "gone"
    CONFLICT = "conflict"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Write:
    """One write that has ended. `resource` is the plural, or `<plural>/<subresource>`."""

    verb: Verb
    resource: str
    result: Result
    seconds: float


Observer: TypeAlias = Callable[[Write], None]


def result_of(error: TidegateError) -> Result:
    """Return the result that an error of a write stands for."""
    if isinstance(error, ConflictError):
        return Result.CONFLICT
    return Result.UNAVAILABLE if isinstance(error, RetryableError) else Result.REFUSED


def nobody(_: Write) -> None:
    """Ignore the write: the default observer."""
