"""Counts the calls that were refused for who made them, by access: the filters that refuse count all accesses together."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos

_PREFIX: Final = "tidegate"
_COUNTER: Final = "refused"

_LOGGER: Final = "envoy.access_loggers.stats"
_CONFIG: Final = "envoy.extensions.access_loggers.stats.v3.Config"


def counter() -> dict[str, object]:
    """The access log that writes no line: one more for each answer that is UNAUTHENTICATED or PERMISSION_DENIED, 401 or 403.

    The route's name begins with that of the access; `why` is Envoy's own word for it, and `via_upstream` where the model refused.
    """
    tags = [
        {"name": "route", "value_format": "%ROUTE_NAME%"},
        {"name": "why", "value_format": "%RESPONSE_CODE_DETAILS%"},
    ]
    one = {"stat": {"name": _COUNTER, "tags": tags}, "value_fixed": {"value": 1}}
    statuses = {"statuses": ["UNAUTHENTICATED", "PERMISSION_DENIED"]}
    return {
        **protos.extension(_LOGGER, _CONFIG, {"stat_prefix": _PREFIX, "counters": [one]}),
        "filter": {"grpc_status_filter": statuses},
    }
