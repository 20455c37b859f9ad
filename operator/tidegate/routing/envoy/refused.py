"""Counts the calls that were refused for who made them, for overload or for want of a pod, by route: the filters that refuse count all accesses together."""

from __future__ import annotations

import re
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import admission

_PREFIX: Final = "tidegate"
_COUNTER: Final = "refused"

OVERLOAD: Final = admission.REFUSED
"""Envoy's word for what admission control refuses."""

NO_POD: Final = "direct_response"
"""Envoy's word for a route that answers by itself: no target has a pod (ir.RouteRule.unavailable)."""

NAME_PATTERN: Final = rf"^{_PREFIX}\.{_COUNTER}\."
"""What the names of its counters begin with, on the page of statistics."""
_NAME: Final = re.compile(rf"{_PREFIX}\.{_COUNTER}\.route\.(.*)\.why\.(.*)\.envoy_cluster_name\.(.*)")

_LOGGER: Final = "envoy.access_loggers.stats"
_CONFIG: Final = "envoy.extensions.access_loggers.stats.v3.Config"


def counter() -> dict[str, object]:
    """The access log that writes no line: one more for each answer that is UNAUTHENTICATED or PERMISSION_DENIED, 401 or 403, each not admitted, and each to which no pod was left.

    The route's name begins with that of the access; `why` is Envoy's own word for it, and `via_upstream` where the model refused.
    The Envoy cluster is the one that would have answered, by the name that it is counted under; none where nobody would.
    """
    tags = [
        {"name": "route", "value_format": "%ROUTE_NAME%"},
        {"name": "why", "value_format": "%RESPONSE_CODE_DETAILS%"},
        # As Envoy calls it in its own counters.
        {"name": "envoy_cluster_name", "value_format": "%UPSTREAM_CLUSTER%"},
    ]
    one = {"stat": {"name": _COUNTER, "tags": tags}, "value_fixed": {"value": 1}}
    callers = _answered("UNAUTHENTICATED", "PERMISSION_DENIED")
    # The status first: it costs less than the expression. Envoy takes a 503 for UNAVAILABLE.
    shed = {"and_filter": {"filters": [_answered("RESOURCE_EXHAUSTED", "UNAVAILABLE"), _not_served()]}}
    return {
        **protos.extension(_LOGGER, _CONFIG, {"stat_prefix": _PREFIX, "counters": [one]}),
        "filter": {"or_filter": {"filters": [callers, shed]}},
    }


def parse_counter(name: str) -> tuple[str, str, str] | None:
    """The route, the cause and the Envoy cluster of a counter on the page of statistics; None for any other name."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2], found[3]) if found else None


def _not_served() -> dict[str, object]:
    """A filter of answers: for overload, and for want of a pod, which the route itself answers."""
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    expression = {"expression": f"response.code_details in ['{admission.REFUSED}', '{NO_POD}']"}
    return {
        "extension_filter": protos.extension("envoy.access_loggers.extension_filters.cel", kind, expression)
    }


def _answered(*statuses: str) -> dict[str, object]:
    return {"grpc_status_filter": {"statuses": list(statuses)}}
