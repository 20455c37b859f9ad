"""The rate of one ModelAccess: a token bucket with its virtual host, and a filter that sleeps everywhere else."""

from __future__ import annotations

import math
from typing import Final

from tidegate.routing import protos
from tidegate.routing.ir import RequestRate

NAME: Final = "envoy.filters.http.local_ratelimit"
_TYPE: Final = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_STAT_PREFIX: Final = "access"
_ALWAYS: Final = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}


def sleeping_filter() -> dict[str, object]:
    """The HTTP filter of the listener: no request passes through it whose virtual host does not wake it up."""
    return {**protos.extension(NAME, _TYPE, {"stat_prefix": _STAT_PREFIX}), "disabled": True}


def for_host(rate: RequestRate) -> dict[str, object]:
    """What a virtual host says about the filter; one bucket for all of its routes and both protocols."""
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
    return {NAME: protos.packed(_TYPE, fields)}
