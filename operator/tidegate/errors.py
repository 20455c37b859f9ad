"""Errors in two families: retryable ones, and permanent ones that only a change can clear."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

_FRAMES: Final = 3


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class WrongThreadError(RuntimeError):
    """Change of an object without locks from another thread than its own: a bug in our code."""


class RetryableError(TidegateError):
    """Error that another attempt may clear; the work queue retries with backoff.

    `retry_after` is the pause that the server asked for (HTTP Retry-After), if any.
    """

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ApiUnavailableError(RetryableError):
    """Failure of the API server: no response, too many requests (429) or a server error (5xx)."""


class UnauthorizedError(ApiUnavailableError):
    """Rejection of our credentials: they have expired, or the API server cannot check them right now."""


class UnknownKindError(ApiUnavailableError):
    """Kind that the API server does not serve: its CRD is not installed."""


class ConflictError(RetryableError):
    """Change of the object by another client between our read and our write."""


class LeadershipLostError(RetryableError):
    """Write by a process that does not lead (any more); the new leader does it."""


class AgentUnreachableError(RetryableError):
    """Agent of a pod that did not answer."""


class AgentSilentError(AgentUnreachableError):
    """Agent that did not answer in time."""


class PermanentError(TidegateError):
    """Error that another attempt cannot clear: it takes a new spec, another object or a permission."""


class NotAllowedError(PermanentError):
    """Request that the API server or an admission policy forbids to this client (403)."""


class InvalidRequestError(PermanentError):
    """Request that the API server does not understand (400), such as a selector that does not parse."""


class InvalidSpecError(PermanentError):
    """Object that does not parse; `path` names the field (`spec.routes[0].timeout`), the message says why.

    `problems` has a line for every invalid field; the message counts those after the first.
    """

    def __init__(self, message: str, *, path: str = "", further_problems: Sequence[str] = ()) -> None:
        first = f"{path}: {message}" if path else message
        super().__init__(f"{first} (and {len(further_problems)} more)" if further_problems else first)
        self.path = path
        self.problems = (first, *further_problems)


def describe_without_message(error: Exception) -> str:
    """Return the type and innermost locations of an unexpected exception.

    Its message is left out, because it may quote the content of a Secret.
    """
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    locations = (f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {', '.join(locations)}"
