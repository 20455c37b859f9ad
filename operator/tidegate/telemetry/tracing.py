"""Spans of what the control plane does; whoever asks for one gets a stand-in that records nothing, unless the process exports them.

Nothing of OpenTelemetry's SDK is imported before a process has a receiver (telemetry.otlp).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

DECISION: Final = "tidegate.decision"
"""The attribute by which spans of gateways, controllers and xDS servers are found together: the AllocationDecision's name."""
REVISION: Final = "tidegate.revision"
"""The attribute that names a snapshot."""

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]


class Span:
    """Something that lasts, and what is known of it. This one records nothing; not for threads."""

    @property
    def provider(self) -> TracerProvider | None:
        """For a library that records spans itself; None where nothing is recorded."""
        return None

    def begin(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> Span:
        """A span within this one, which began so many seconds ago and goes on until its `end`."""
        del name, attributes, lasted_s
        return self

    def note(self, attributes: Attributes) -> None:
        """More that is known of it."""

    def fail(self, why: str) -> None:
        """It did not come to what it was for."""

    def end(self) -> None:
        """It is over."""

    def happened(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0, failed: str = "") -> Span:
        """A span within this one that ends now; `failed` says why, where it did."""
        span = self.begin(name, attributes, lasted_s=lasted_s)
        if failed:
            span.fail(failed)
        span.end()
        return span


NOTHING: Final = Span()

_current: ContextVar[Span] = ContextVar("span", default=NOTHING)


def note(attributes: Attributes) -> None:
    """More that is known of what is under way in this task."""
    _current.get().note(attributes)


def failed(why: str) -> None:
    """What is under way in this task did not come to what it was for, though nothing is raised."""
    _current.get().fail(why)


@contextmanager
def span(name: str, attributes: Attributes, *, root: Span | None = None) -> Generator[Span]:
    """What is done in this block, as part of what is under way in this task, or of `root`.

    Where nothing is under way nothing is recorded: the process exports no spans, or this is called from outside of any.
    """
    within = _current.get() if root is None else root
    if within is NOTHING:
        yield NOTHING
        return
    begun = within.begin(name, attributes)
    before = _current.set(begun)
    try:
        yield begun
    except BaseException as error:
        begun.fail(str(error) or type(error).__name__)
        raise
    finally:
        _current.reset(before)
        begun.end()
