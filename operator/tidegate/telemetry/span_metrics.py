"""Metrics of the export of spans."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from tidegate_dataplane.contract.metrics import Catalog

SPANS: Final = Catalog("tidegate_spans_")
_EXPORTED = SPANS.counter("exported_total", "Spans that the receiver of telemetry.otlp accepted.")
_DROPPED = SPANS.counter(
    "dropped_total",
    "Spans that were dropped: `refused` by the receiver (or it did not respond), or too many were `waiting` for it.",
    "reason",
)


class SpanMetrics:
    """Counters of exported and dropped spans; they stay 0 without a receiver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = _EXPORTED.on(registry)
        dropped = _DROPPED.on(registry)
        self.refused = dropped.labels("refused")
        self.waiting = dropped.labels("waiting")
