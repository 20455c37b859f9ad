"""Counters by route of calls that were rejected for their caller, for overload or without a ready pod.

The filters that reject them count all accesses together.
"""

from __future__ import annotations

import re
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import admission

_PREFIX: Final = "tidegate"
_COUNTER: Final = "refused"

OVERLOAD_DETAILS: Final = admission.REJECTED_DETAILS
"""The response code details when admission control rejects a request."""

NO_POD_DETAILS: Final = "direct_response"
"""The response code details of a route that answers directly, as no target has a pod (ir.RouteRule.unavailable)."""

NAME_PATTERN: Final = rf"^{_PREFIX}\.{_COUNTER}\."
"""The pattern of its counters' names on the page of statistics."""
_NAME: Final = re.compile(rf"{_PREFIX}\.{_COUNTER}\.route\.(.*)\.why\.(.*)\.envoy_cluster_name\.(.*)")

_LOGGER: Final = "envoy.access_loggers.stats"
_CONFIG: Final = "envoy.extensions.access_loggers.stats.v3.Config"


def rejection_logger() -> dict[str, object]:
    """Return the access logger that counts rejected calls and writes no line.

    It counts answers that are UNAUTHENTICATED or PERMISSION_DENIED, 401 or 403, that admission control rejected, or for which
    no pod was left.
    The route's name begins with that of the access; `why` has the response code details, `via_upstream` if the model rejected the call.
    The Envoy cluster is the one that would have answered, by its statistics' name; empty if there is none.
    """
    tags = [
        {"name": "route", "value_format": "%ROUTE_NAME%"},
        {"name": "why", "value_format": "%RESPONSE_CODE_DETAILS%"},
        # As Envoy calls it in its own counters.
        {"name": "envoy_cluster_name", "value_format": "%UPSTREAM_CLUSTER%"},
    ]
    counter_config = {"stat": {"name": _COUNTER, "tags": tags}, "value_fixed": {"value": 1}}
    callers = _match_grpc_status("UNAUTHENTICATED", "PERMISSION_DENIED")
    # The status is first, as it costs less than the expression. Envoy maps a 503 to UNAVAILABLE.
    shed = {
        "and_filter": {
            "filters": [_match_grpc_status("RESOURCE_EXHAUSTED", "UNAVAILABLE"), _match_not_served()]
        }
    }
    return {
        **protos.extension_config(_LOGGER, _CONFIG, {"stat_prefix": _PREFIX, "counters": [counter_config]}),
        "filter": {"or_filter": {"filters": [callers, shed]}},
    }


def parse_counter(name: str) -> tuple[str, str, str] | None:
    """Return the route, the response code details and the Envoy cluster in a counter's name; None for others."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2], match[3]) if match else None


def _match_not_served() -> dict[str, object]:
    """Return an access log filter for admission control, and for routes without a pod, which answer directly."""
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = {
        "expression": f"response.code_details in ['{admission.REJECTED_DETAILS}', '{NO_POD_DETAILS}']"
    }
    return {
        "extension_filter": protos.extension_config(
            "envoy.access_loggers.extension_filters.cel", kind, expression
        )
    }


def _match_grpc_status(*statuses: str) -> dict[str, object]:
    return {"grpc_status_filter": {"statuses": list(statuses)}}
