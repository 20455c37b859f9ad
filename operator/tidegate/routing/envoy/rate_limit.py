"""The rate limit of one ModelAccess: a token bucket in its virtual host, and a filter disabled elsewhere."""

from __future__ import annotations

import math
from typing import Final

from tidegate.routing import protos
from tidegate.routing.ir import RequestRate

NAME: Final = "envoy.filters.http.local_ratelimit"
_TYPE: Final = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_STAT_PREFIX: Final = "access"
_ALWAYS: Final = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


def disabled_filter() -> dict[str, object]:
    """Return the HTTP filter of the listener, disabled: only virtual hosts that enable it send requests through it."""
    return {**protos.extension_config(NAME, _TYPE, {"stat_prefix": _STAT_PREFIX}), "disabled": True}


def configure_host(rate: RequestRate) -> dict[str, object]:
    """Return the filter's configuration for a virtual host; one bucket for all of its routes and both protocols."""
    retry_after = {"key": "retry-after", "value": str(math.ceil(rate.period.total_seconds()))}
    fields: dict[str, object] = {
        "stat_prefix": _STAT_PREFIX,
        "token_bucket": {
            "max_tokens": rate.requests,
            "tokens_per_fill": {"value": rate.requests},
            "fill_interval": protos.duration(rate.period),
        },
        "filter_enabled": _ALWAYS,
        "filter_enforced": _ALWAYS,
        "rate_limited_as_resource_exhausted": True,
        "response_headers_to_add": [{"header": retry_after, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    return {NAME: protos.pack_any(_TYPE, fields)}
