"""Counts the calls that were refused for who made them or for overload, by route: the filters that refuse count all accesses together."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import admission

_PREFIX: Final = "tidegate"
_COUNTER: Final = "refused"

_LOGGER: Final = "envoy.access_loggers.stats"
_CONFIG: Final = "envoy.extensions.access_loggers.stats.v3.Config"


def counter() -> dict[str, object]:
    """The access log that writes no line: one more for each answer that is UNAUTHENTICATED or PERMISSION_DENIED, 401 or 403, and each not admitted.

    The route's name begins with that of the access; `why` is Envoy's own word for it, and `via_upstream` where the model refused.
    """
    tags = [
        {"name": "route", "value_format": "%ROUTE_NAME%"},
        {"name": "why", "value_format": "%RESPONSE_CODE_DETAILS%"},
    ]
    one = {"stat": {"name": _COUNTER, "tags": tags}, "value_fixed": {"value": 1}}
    callers = _answered("UNAUTHENTICATED", "PERMISSION_DENIED")
    # The status first: it costs less than the expression. Envoy takes a 503 for UNAVAILABLE.
    shed = {"and_filter": {"filters": [_answered("RESOURCE_EXHAUSTED", "UNAVAILABLE"), admission.refused()]}}
    return {
        **protos.extension(_LOGGER, _CONFIG, {"stat_prefix": _PREFIX, "counters": [one]}),
        "filter": {"or_filter": {"filters": [callers, shed]}},
    }


def _answered(*statuses: str) -> dict[str, object]:
    return {"grpc_status_filter": {"statuses": list(statuses)}}
