"""Admission control of one target of a route.

Envoy's filter has no settings for a single route, so each route brings the whole filter along.
The filter counts the answers of the last seconds, separately in each of the gateway's threads.
It rejects nothing while they are few or failures are within the limit, and with a growing probability above.
"""

from __future__ import annotations

import math
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy.allowlist import GRPC_SERVICE
from tidegate.routing.envoy_names import OVERLOAD_DETAILS
from tidegate.routing.ir import AdmissionLimit, InferenceProtocol

NAME: Final = "tidegate.admission"

REJECTED_BODY: Final = (
    "the target is overloaded, and requests of low value are refused first (protection.admissionControl)\n"
)

_ADMISSION: Final = "envoy.extensions.filters.http.admission_control.v3.AdmissionControl"
_MATCHING: Final = "envoy.extensions.common.matching.v3"
_COMPOSITE: Final = "envoy.extensions.filters.http.composite.v3"
_SKIP: Final = "envoy.extensions.filters.common.matcher.action.v3.SkipFilter"
_HEADER: Final = "envoy.type.matcher.v3.HttpRequestHeaderMatchInput"
_FILTER_CONFIG: Final = "envoy.config.route.v3.FilterConfig"

# How long a failure counts. While nearly all requests are rejected, few are counted: a shorter window would be empty and start again.
_WINDOW_S: Final = 10

# Below this many requests per second a target is hardly overloaded, and percentages are noise.
_MIN_REQUESTS_PER_SECOND: Final = 5

# The probability of a rejection is (failures above the limit) ^ (1 / this): soon near 1, so that low values are rejected before others fail (ADR 25).
_AGGRESSION: Final = 100.0

# The other requests are admitted, to find out whether the target has recovered.
_MAX_REJECTED_PERCENT: Final = 95.0

# The answers of an overloaded or missing model: DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE.
_OVERLOADED: Final = frozenset({4, 8, 14})
_GRPC_SUCCESS: Final = tuple(sorted(frozenset(range(17)) - _OVERLOADED))
# The same in REST: all but 429, 503 and 504.
_HTTP_SUCCESS: Final = ((100, 429), (430, 503), (505, 600))


def disabled_filter() -> dict[str, object]:
    """Return the HTTP filter of the listener, disabled: only routes that enable it send requests through it."""
    fields: dict[str, object] = {
        "extension_config": protos.extension_config("composite", f"{_COMPOSITE}.Composite"),
        "xds_matcher": {"on_no_match": {"action": protos.extension_config("skip", _SKIP)}},
    }
    return {**protos.extension_config(NAME, f"{_MATCHING}.ExtensionWithMatcher", fields), "disabled": True}


def configure_target(admission: AdmissionLimit, protocol: InferenceProtocol) -> dict[str, object]:
    """Return the filter's configuration for a target.

    It applies to inference only, so probes are neither counted nor rejected.
    """
    run = protos.extension_config(
        "envoy.filters.http.admission_control", _ADMISSION, _admission_control(admission)
    )
    action = protos.extension_config("run", f"{_COMPOSITE}.ExecuteFilterAction", {"typed_config": run})
    inference = {
        "matchers": [
            {"predicate": {"single_predicate": _match_inference(protocol)}, "on_match": {"action": action}}
        ]
    }
    matcher = {"xds_matcher": {"matcher_list": inference}}
    return {NAME: protos.pack_any(f"{_MATCHING}.ExtensionWithMatcherPerRoute", matcher)}


def configure_alias() -> dict[str, object]:
    """Return the filter's configuration for the hosts of an access.

    It enables the filter early, so that it is active once Envoy has selected the access's scope.
    """
    return {NAME: protos.pack_any(_FILTER_CONFIG, {"config": {}})}


def match_rejected() -> dict[str, object]:
    """Return an access log filter for requests that admission control rejected."""
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = {"expression": f"response.code_details == '{OVERLOAD_DETAILS}'"}
    return {
        "extension_filter": protos.extension_config(
            "envoy.access_loggers.extension_filters.cel", kind, expression
        )
    }


def _match_inference(protocol: InferenceProtocol) -> dict[str, object]:
    """Return the predicate for inference, among the calls that pass the allow-list."""
    header, match = ":method", {"exact": "POST"}
    if protocol is InferenceProtocol.GRPC:
        header, match = ":path", {"prefix": f"/{GRPC_SERVICE}/ModelInfer"}
    return {
        "input": protos.extension_config("header", _HEADER, {"header_name": header}),
        "value_match": match,
    }


def _admission_control(admission: AdmissionLimit) -> dict[str, object]:
    def runtime_percent(name: str, value: float) -> dict[str, object]:
        return {"runtime_key": f"tidegate.admission.{name}", "default_value": {"value": value}}

    # Enough requests that one failure in the window is at most half of the limit.
    at_least = max(_MIN_REQUESTS_PER_SECOND, math.ceil(200 / admission.failure_percent / _WINDOW_S))
    return {
        "success_criteria": {
            "http_criteria": {
                "http_success_status": [{"start": start, "end": end} for start, end in _HTTP_SUCCESS]
            },
            "grpc_criteria": {"grpc_success_status": list(_GRPC_SUCCESS)},
        },
        "sampling_window": protos.seconds(_WINDOW_S),
        "aggression": {"runtime_key": "tidegate.admission.aggression", "default_value": _AGGRESSION},
        "sr_threshold": runtime_percent("success", 100 - admission.failure_percent),
        "rps_threshold": {"runtime_key": "tidegate.admission.least", "default_value": at_least},
        "max_rejection_probability": runtime_percent("most", _MAX_REJECTED_PERCENT),
    }
