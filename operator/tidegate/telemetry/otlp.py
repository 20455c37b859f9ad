"""Spans by OpenTelemetry's SDK to a receiver of OTLP over HTTP; one that does not answer costs spans, and nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import StatusCode, Tracer, set_span_in_context

from tidegate import __version__
from tidegate.errors import PermanentError
from tidegate.routing.envoy.tracing import TRACES_PATH
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.telemetry.tracing import Attributes, Span

WAITING: Final = 4096
"""Spans that wait for the receiver, some kilobytes each; more are dropped."""
_BATCH: Final = 512
_EVERY_MS: Final = 1000
_TIMEOUT_S: Final = 5.0
_CLOSE_S: Final = 2.0
_LONGEST_REASON: Final = 1_024
_NS: Final = 1_000_000_000

log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where spans go: `endpoint` is a URL without path; the files are read once, when the process starts."""

    endpoint: str
    authorities: Path | None = None
    authorization: Path | None = None

    @property
    def url(self) -> str:
        """Where spans are posted to."""
        return self.endpoint + TRACES_PATH


class Otlp(Span):
    """The root of all spans of a process."""

    def __init__(self, receiver: Receiver, process: str, instance: str, metrics: SpanMetrics) -> None:
        """Raises PermanentError when a file of the receiver cannot be read."""
        exporter = _Counting(_exporter(receiver), receiver.url, metrics)
        resource = Resource(
            {
                "service.namespace": "tidegate",
                "service.name": f"tidegate-{process}",
                "service.instance.id": instance,
                "service.version": __version__,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(_Bounded(exporter))
        self._tracer = self._provider.get_tracer("tidegate", __version__)

    @property
    def provider(self) -> TracerProvider:
        return self._provider

    def begin(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> Span:
        """The first span of a trace."""
        return _Begun(self._tracer, None, name, attributes, lasted_s)

    def close(self) -> None:
        """Gives what waits to the receiver, if it takes it within two seconds."""
        # The SDK would wait half a minute for one that does not answer.
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class _Begun(Span):
    """One span of the SDK."""

    def __init__(
        self, tracer: Tracer, parent: SdkSpan | None, name: str, attributes: Attributes, lasted_s: float
    ) -> None:
        self._tracer = tracer
        context = None if parent is None else set_span_in_context(parent)
        began = time.time_ns() - int(lasted_s * _NS)
        self._span = tracer.start_span(name, context, attributes=attributes, start_time=began)

    def begin(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> Span:
        return _Begun(self._tracer, self._span, name, attributes, lasted_s)

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, why: str) -> None:
        self._span.set_status(StatusCode.ERROR, why[:_LONGEST_REASON])

    def end(self) -> None:
        self._span.end()


class _Counting(SpanExporter):
    """Counts what the receiver takes, and says when it begins to take nothing and when it takes some again."""

    def __init__(self, exporter: SpanExporter, url: str, metrics: SpanMetrics) -> None:
        self._exporter = exporter
        self._url = url
        self.metrics = metrics
        self._words = _Words()
        self._failing = False
        self.begun = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the exporter itself."""
        self.begun += len(spans)
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self.metrics.refused.inc(len(spans))
        else:
            self.metrics.exported.inc(len(spans))
        if failed and not self._failing:
            log.warning("spans_refused", receiver=self._url, error=self._words.last)
        elif self._failing and not failed:
            log.info("spans_taken_again", receiver=self._url)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Words(logging.Handler):
    """What the exporter says of each failure; of them all we say the first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        # A retry that is said to come names the reason; that it was the last one does not.
        if not self.last or "retrying" in record.msg or "code" in record.msg:
            self.last = record.getMessage()


class _Bounded(SpanProcessor):
    """Hands spans to the SDK's thread, as long as not too many wait there.

    Both counts only grow, each written by one thread: the spans of a process end in its event loop.
    """

    def __init__(self, exporter: _Counting) -> None:
        self._exporter = exporter
        self._batches = BatchSpanProcessor(
            exporter,
            max_queue_size=WAITING,
            schedule_delay_millis=_EVERY_MS,
            max_export_batch_size=_BATCH,
        )
        self._given = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._given - self._exporter.begun >= WAITING:
            self._exporter.metrics.waiting.inc()
            return
        self._given += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # of the SDK


def _exporter(receiver: Receiver) -> OTLPSpanExporter:
    try:
        headers = (
            {}
            if receiver.authorization is None
            else {"authorization": receiver.authorization.read_text().strip()}
        )
        if receiver.authorities is not None:
            receiver.authorities.read_bytes()
    except OSError as error:
        message = f"telemetry.otlp: cannot read {error.filename}: {error.strerror}"
        raise PermanentError(message) from error
    return OTLPSpanExporter(
        receiver.url,
        certificate_file=None if receiver.authorities is None else str(receiver.authorities),
        headers=headers,
        timeout=_TIMEOUT_S,
    )
