"""Metrics of the export of spans."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from tidegate_dataplane.contract.metrics import MetricCatalog

SPANS: Final = MetricCatalog("tidegate_spans_")
_EXPORTED = SPANS.add_counter("exported_total", "Spans that the receiver of telemetry.otlp accepted.")
_DROPPED = SPANS.add_counter(
    "dropped_total",
    "Spans that were dropped: `refused` by the receiver (or it did not respond), or too many were `waiting` for it.",
    "reason",
)


class SpanMetrics:
    """Counters of exported and dropped spans; they stay 0 without a receiver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = _EXPORTED.register(registry)
        dropped = _DROPPED.register(registry)
        self.refused = dropped.labels("refused")
        self.waiting = dropped.labels("waiting")
