"""Exports the spans of a process if a receiver is configured; otherwise nothing is imported for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from tidegate.settings import PodIdentity, Settings
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.telemetry.tracing import NOTHING, Span


@asynccontextmanager
async def exported_spans(
    settings: Settings, process: str, pod: PodIdentity, registry: CollectorRegistry
) -> AsyncGenerator[Span]:
    """Yield the root span of the process. Raises PermanentError if a file of the settings cannot be read."""
    metrics = SpanMetrics(registry)
    if not settings.otlp_endpoint:
        yield NOTHING
        return
    from tidegate.telemetry.otlp import Otlp, Receiver

    receiver = Receiver(settings.otlp_endpoint, settings.otlp_authorities, settings.otlp_authorization_file)
    spans = Otlp(receiver, process, f"{pod.namespace}/{pod.name}", metrics)
    try:
        yield spans
    finally:
        await asyncio.to_thread(spans.close)
