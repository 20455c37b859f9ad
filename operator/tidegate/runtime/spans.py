"""Exports the spans of a process if a receiver is configured; otherwise nothing is imported for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from tidegate.settings import ControlPlaneSettings, PodIdentity
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.telemetry.tracing import NO_SPAN, TraceSpan


@asynccontextmanager
async def export_spans(
    settings: ControlPlaneSettings, process: str, pod: PodIdentity, registry: CollectorRegistry
) -> AsyncGenerator[TraceSpan]:
    """Yield the root span of the process. Raises PermanentError if a file of the settings cannot be read."""
    metrics = SpanMetrics(registry)
    if not settings.otlp_endpoint:
        yield NO_SPAN
        return
    from tidegate.telemetry.otlp import OtlpReceiver, OtlpTracer

    receiver = OtlpReceiver(
        settings.otlp_endpoint, settings.otlp_authorities, settings.otlp_authorization_file
    )
    spans = OtlpTracer(receiver, process, f"{pod.namespace}/{pod.name}", metrics)
    try:
        yield spans
    finally:
        await asyncio.to_thread(spans.close)
