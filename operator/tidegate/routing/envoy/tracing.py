"""Envoy's OpenTelemetry tracer: a span for each sampled request, sent to a cluster in the gateway's bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.routing import protos
from tidegate.routing.bootstrap import COLLECTOR_CLUSTER, TRACES_PATH
from tidegate.routing.envoy import endpoints
from tidegate.routing.hosts import ACCESS_HEADER

_TRACER: Final = "envoy.config.trace.v3.OpenTelemetryConfig"
_SAMPLERS: Final = "envoy.extensions.tracers.opentelemetry.samplers.v3"
_TIMEOUT_S: Final = 5.0
_MAX_PATH: Final = 256
_MAX_NAME: Final = 256
"""Characters of a caller's value: any caller can cause a span, by a traceparent."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """The receiver of spans as `http://host:port`; `percent` is the sample of requests whose callers do not trace."""

    endpoint: str
    percent: float = 1.0


def tracing_config(settings: TracingSettings) -> dict[str, object]:
    """Return the connection manager's tracing.

    A caller's W3C traceparent is continued, and the model's server gets the gateway's.
    """
    service = {
        "http_uri": {
            "uri": settings.endpoint + TRACES_PATH,
            "cluster": COLLECTOR_CLUSTER,
            "timeout": protos.seconds(_TIMEOUT_S),
        }
    }
    return {
        # The header x-client-trace-id, which is not the W3C's, does not cause a span.
        "client_sampling": {"value": 0.0},
        "max_path_tag_length": {"value": _MAX_PATH},
        "custom_tags": [
            _endpoint_tag(
                f"tidegate.{endpoints.DECISION_KEY}", endpoints.METADATA_NAMESPACE, endpoints.DECISION_KEY
            ),
            {"tag": "tidegate.route", "value": "%ROUTE_NAME%"},
            {"tag": "tidegate.target", "value": f"%REQ({ACCESS_HEADER}?:AUTHORITY):{_MAX_NAME}%"},
        ],
        "provider": protos.extension_config(
            "envoy.tracers.opentelemetry",
            _TRACER,
            {
                "http_service": service,
                "service_name": "tidegate-gateway",
                "sampler": _build_sampler(settings.percent),
            },
        ),
    }


def _build_sampler(percent: float) -> dict[str, object]:
    """Return a sampler that follows the caller's decision if there is one, else samples `percent`.

    The connection manager's own sampling would leave callers' traces out.
    """
    share = {"numerator": round(percent * 10_000), "denominator": "MILLION"}
    ratio = protos.extension_config(
        "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
        f"{_SAMPLERS}.TraceIdRatioBasedSamplerConfig",
        {"sampling_percentage": share},
    )
    return protos.extension_config(
        "envoy.tracers.opentelemetry.samplers.parent_based",
        f"{_SAMPLERS}.ParentBasedSamplerConfig",
        {"wrapped_sampler": ratio},
    )


def _endpoint_tag(tag: str, namespace: str, key: str) -> dict[str, object]:
    """Return a tag with the metadata of the endpoint that answers; no tag if the endpoint has none."""
    metadata_key = {"key": namespace, "path": [{"key": key}]}
    return {"tag": tag, "metadata": {"kind": {"host": {}}, "metadata_key": metadata_key}}
