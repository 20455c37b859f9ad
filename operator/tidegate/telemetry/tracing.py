"""Create spans of the control plane's work; they record nothing unless the process exports spans.

OpenTelemetry's SDK is imported only by a process that has a receiver (telemetry.otlp).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

DECISION: Final = "tidegate.decision"
"""The attribute with the name of an AllocationDecision, which relates spans of gateways, controllers and xDS servers."""
REVISION: Final = "tidegate.revision"
"""The attribute with the revision of a snapshot."""

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]


class TraceSpan:
    """A span, which this base class does not record. Use it in one thread only."""

    @property
    def provider(self) -> TracerProvider | None:
        """Return the provider for libraries that record spans themselves; None if nothing is recorded."""
        return None

    def start_child(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> TraceSpan:
        """Start a child span that began `lasted_s` seconds ago."""
        del name, attributes, lasted_s
        return self

    def add_attributes(self, attributes: Attributes) -> None:
        """Add attributes."""

    def mark_failed(self, reason: str) -> None:
        """Mark the span as failed."""

    def end(self) -> None:
        """End the span."""

    def record_child(
        self, name: str, attributes: Attributes, *, lasted_s: float = 0.0, error: str = ""
    ) -> TraceSpan:
        """Record a child span that ends now; `failed` is the error, if any."""
        span = self.start_child(name, attributes, lasted_s=lasted_s)
        if error:
            span.mark_failed(error)
        span.end()
        return span


NO_SPAN: Final = TraceSpan()

_current: ContextVar[TraceSpan] = ContextVar("span", default=NO_SPAN)


def add_attributes(attributes: Attributes) -> None:
    """Add attributes to the current span of this task."""
    _current.get().add_attributes(attributes)


def mark_failed(reason: str) -> None:
    """Mark the current span of this task as failed, for failures that raise no exception."""
    _current.get().mark_failed(reason)


@contextmanager
def start_span(name: str, attributes: Attributes, *, root: TraceSpan | None = None) -> Generator[TraceSpan]:
    """Record the block as a child of the current span of this task, or of `root`.

    Without a current span nothing is recorded: the process exports no spans, or the call is outside any span.
    """
    parent = _current.get() if root is None else root
    if parent is NO_SPAN:
        yield NO_SPAN
        return
    child = parent.start_child(name, attributes)
    token = _current.set(child)
    try:
        yield child
    except BaseException as error:
        child.mark_failed(str(error) or type(error).__name__)
        raise
    finally:
        _current.reset(token)
        child.end()
