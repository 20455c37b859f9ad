"""The two families of errors: those worth another try, and those that only a change by a person can cure."""

from __future__ import annotations

import traceback
from datetime import timedelta
from pathlib import Path
from typing import Final

_FRAMES: Final = 3


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class WrongThreadError(RuntimeError):
    """Something that has no locks was changed in another thread than its own: a mistake in our code."""


class RetryableError(TidegateError):
    """The same call may succeed later; the work queue backs off and tries again.

    `retry_after` is the pause that the other side asked for (HTTP Retry-After), if it asked for one.
    """

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ApiUnavailableError(RetryableError):
    """The API server did not answer, was too busy (429) or failed (5xx)."""


class UnauthorizedError(ApiUnavailableError):
    """The API server does not take the credentials, now: they have ended, or it cannot check them right now."""


class UnknownKindError(ApiUnavailableError):
    """The API server has no such kind: its CRD is not installed."""


class ConflictError(RetryableError):
    """Somebody else changed the object between our read and our write."""


class LeadershipLostError(RetryableError):
    """This process no longer leads (or never did), so it must not write; the new leader will."""


class AgentUnreachableError(RetryableError):
    """The agent beside a model did not answer."""


class AgentSilentError(AgentUnreachableError):
    """An agent did not answer in time."""


class PermanentError(TidegateError):
    """Trying again changes nothing: a new spec, another object or a right must come first."""


class NotAllowedError(PermanentError):
    """The API server knows who asks, and they have no right to it, or an admission policy refuses it (403)."""


class InvalidSpecError(PermanentError):
    """The object does not parse. `path` names the field (`spec.routes[0].timeout`), the message says why."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def without_message(error: Exception) -> str:
    """The type of an exception that nobody foresaw, and the innermost places of it: its message may quote what a Secret holds."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = (f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {', '.join(places)}"
