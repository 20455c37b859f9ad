"""What became of each write to the API server, for whoever counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidegate.errors import ConflictError, RetryableError, TidegateError


class Verb(StrEnum):
    """How something is written."""

    APPLY = "apply"
    MERGE = "merge"
    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"


class Result(StrEnum):
    """What the API server made of it."""

    OK = "ok"
    GONE = "gone"
    CONFLICT = "conflict"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Write:
    """One write that has ended. `resource` is the plural, and `<plural>/<subresource>` where one was written."""

    verb: Verb
    resource: str
    result: Result
    seconds: float


Observer: TypeAlias = Callable[[Write], None]


def result_of(error: TidegateError) -> Result:
    """What an error of a write says of it."""
    if isinstance(error, ConflictError):
        return Result.CONFLICT
    return Result.UNAVAILABLE if isinstance(error, RetryableError) else Result.REFUSED


def nobody(_: Write) -> None:
    """Counts nothing."""
