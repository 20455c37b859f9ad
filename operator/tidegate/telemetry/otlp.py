"""Export spans over OTLP/HTTP with OpenTelemetry's SDK; a receiver that does not respond loses spans, nothing else."""

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
from tidegate.routing.bootstrap import TRACES_PATH
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.telemetry.tracing import Attributes, TraceSpan

MAX_WAITING_SPANS: Final = 4096
"""The most spans that wait for the receiver, some kilobytes each; further ones are dropped."""
_BATCH: Final = 512
_EVERY_MS: Final = 1000
_TIMEOUT_S: Final = 5.0
_CLOSE_S: Final = 2.0
_LONGEST_REASON: Final = 1_024
_NS: Final = 1_000_000_000

log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OtlpReceiver:
    """The receiver of spans: `endpoint` is a URL without a path; the files are read once, at the start of the process."""

    endpoint: str
    authorities: Path | None = None
    authorization: Path | None = None

    @property
    def url(self) -> str:
        """Return the URL to which spans are posted."""
        return self.endpoint + TRACES_PATH


class OtlpTracer(TraceSpan):
    """Root of all spans of a process, which creates the first span of each trace."""

    def __init__(self, receiver: OtlpReceiver, process: str, instance: str, metrics: SpanMetrics) -> None:
        """Raises PermanentError if a file of the receiver cannot be read."""
        exporter = _CountingExporter(_make_exporter(receiver), receiver.url, metrics)
        resource = Resource(
            {
                "service.namespace": "tidegate",
                "service.name": f"tidegate-{process}",
                "service.instance.id": instance,
                "service.version": __version__,
            }
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(_BoundedProcessor(exporter))
        self._tracer = self._provider.get_tracer("tidegate", __version__)

    @property
    def provider(self) -> TracerProvider:
        return self._provider

    def start_child(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> TraceSpan:
        """Start the first span of a trace."""
        return _RecordedSpan(self._tracer, None, name, attributes, lasted_s)

    def close(self) -> None:
        """Export the waiting spans, for at most two seconds."""
        # In a thread: the SDK would wait half a minute for a receiver that does not respond.
        closing = threading.Thread(target=self._provider.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class _RecordedSpan(TraceSpan):
    """One span of OpenTelemetry's SDK."""

    def __init__(
        self, tracer: Tracer, parent: SdkSpan | None, name: str, attributes: Attributes, lasted_s: float
    ) -> None:
        self._tracer = tracer
        context = None if parent is None else set_span_in_context(parent)
        start_time = time.time_ns() - int(lasted_s * _NS)
        self._span = tracer.start_span(name, context, attributes=attributes, start_time=start_time)

    def start_child(self, name: str, attributes: Attributes, *, lasted_s: float = 0.0) -> TraceSpan:
        return _RecordedSpan(self._tracer, self._span, name, attributes, lasted_s)

    def add_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def mark_failed(self, reason: str) -> None:
        self._span.set_status(StatusCode.ERROR, reason[:_LONGEST_REASON])

    def end(self) -> None:
        self._span.end()


class _CountingExporter(SpanExporter):
    """Exporter that counts spans, and logs when the receiver starts to fail and when it works again."""

    def __init__(self, exporter: SpanExporter, url: str, metrics: SpanMetrics) -> None:
        self._exporter = exporter
        self._url = url
        self.metrics = metrics
        self._errors = _ExportErrors()
        self._failing = False
        self.taken_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans and count the result."""
        self.taken_spans += len(spans)
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed:
            self.metrics.refused.inc(len(spans))
        else:
            self.metrics.exported.inc(len(spans))
        if failed and not self._failing:
            log.warning("spans_refused", receiver=self._url, error=self._errors.cause)
        elif self._failing and not failed:
            log.info("spans_taken_again", receiver=self._url)
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _ExportErrors(logging.Handler):
    """Log handler that replaces the log of OpenTelemetry's exporter, and keeps the cause of the last failure."""

    def __init__(self) -> None:
        super().__init__()
        self.cause = ""
        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        # The message about a coming retry contains the cause; the one about the last attempt does not.
        if not self.cause or "retrying" in record.msg or "code" in record.msg:
            self.cause = record.getMessage()


class _BoundedProcessor(SpanProcessor):
    """Processor that passes spans to the SDK's thread, and drops them if too many wait there.

    No lock is needed: both counts only grow, and one thread writes each. Spans of a process end in its event loop.
    """

    def __init__(self, exporter: _CountingExporter) -> None:
        self._exporter = exporter
        self._batches = BatchSpanProcessor(
            exporter,
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=_EVERY_MS,
            max_export_batch_size=_BATCH,
        )
        self._passed_spans = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._passed_spans - self._exporter.taken_spans >= MAX_WAITING_SPANS:
            self._exporter.metrics.waiting.inc()
            return
        self._passed_spans += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # of the SDK


def _make_exporter(receiver: OtlpReceiver) -> OTLPSpanExporter:
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
