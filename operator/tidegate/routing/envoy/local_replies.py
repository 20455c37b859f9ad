"""Replacements for Envoy's own error answers."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import admission, allowlist, callers, routes

# Envoy's response flags: the route's timeout, a client that was too slow, and a stalled stream; then a reached limit, and no route.
_TIMEOUT_FLAGS: Final = ("UT", "SI", "DT")
_LIMIT_FLAGS: Final = ("UO",)
_NO_ROUTE_FLAGS: Final = ("NR",)

_GRPC_DEADLINE_EXCEEDED: Final = "4"
_GRPC_RESOURCE_EXHAUSTED: Final = "8"

# Limits count requests in flight, which for a model end in a fraction of a second; the header has only whole seconds.
_RETRY_AFTER_S: Final = "1"


def config() -> dict[str, object]:
    """Return the listener's local_reply_config; the first mapper that matches counts."""
    return {
        "mappers": [
            _unknown_to_grpc(),
            _unknown(),
            _not_allowed(),
            _without_certificate(),
            _deadline_exceeded(),
            _limit_reached(),
            _not_admitted(),
            _unavailable(),
        ]
    }


def _unknown() -> dict[str, object]:
    """Return the answer if no scope has the target's name."""
    return {"filter": _flags(*_NO_ROUTE_FLAGS), "body": {"inline_string": routes.UNKNOWN}}


def _unknown_to_grpc() -> dict[str, object]:
    """Return the same answer for gRPC clients, for which Envoy would send UNIMPLEMENTED without a message."""
    return {
        "filter": _all(_flags(*_NO_ROUTE_FLAGS), _grpc()),
        "body": {"inline_string": routes.UNKNOWN},
        "headers_to_add": [_header("grpc-status", routes.GRPC_NOT_FOUND)],
    }


def _not_allowed() -> dict[str, object]:
    return {
        "filter": _all(_status(403, "tidegate.not_allowed"), _details(allowlist.REFUSED)),
        "status_code": {"value": 404},
        "body_format_override": {"text_format_source": {"inline_string": allowlist.ANSWER}},
    }


def _without_certificate() -> dict[str, object]:
    """Return 401 for callers without a certificate, where Envoy's filter can only send 403."""
    return {
        "filter": _all(_status(403, "tidegate.without_certificate"), _details(callers.WITHOUT_CERTIFICATE)),
        "status_code": {"value": 401},
        "body": {"inline_string": "this ModelAccess asks for a client certificate, over the TLS port"},
    }


def _details(text: str) -> dict[str, object]:
    """Return an access log filter by response code details, which tell the filters apart that answer 403.

    It is an expression, so it is combined with a filter by status that costs less.
    """
    expression = f"response.code_details == '{text}'"
    cel = "envoy.access_loggers.extension_filters.cel"
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    return {"extension_filter": protos.extension(cel, kind, {"expression": expression})}


def _deadline_exceeded() -> dict[str, object]:
    """Return DEADLINE_EXCEEDED for timeouts: Envoy would send UNAVAILABLE, which gRPC clients retry."""
    return {
        "filter": _all(_flags(*_TIMEOUT_FLAGS), _grpc()),
        "headers_to_add": [_header("grpc-status", _GRPC_DEADLINE_EXCEEDED)],
    }


def _limit_reached() -> dict[str, object]:
    """Return RESOURCE_EXHAUSTED for reached limits: Envoy would send UNAVAILABLE, as if there were no pod."""
    return {
        "filter": _all(_flags(*_LIMIT_FLAGS), _grpc()),
        "headers_to_add": [
            _header("grpc-status", _GRPC_RESOURCE_EXHAUSTED),
            _header("retry-after", _RETRY_AFTER_S),
        ],
    }


def _not_admitted() -> dict[str, object]:
    """Return RESOURCE_EXHAUSTED for admission control: Envoy would send UNAVAILABLE."""
    return {
        "filter": _all(_status(503, "tidegate.not_admitted"), admission.refused()),
        "body": {"inline_string": admission.ANSWER},
        "headers_to_add": [
            _header("grpc-status", _GRPC_RESOURCE_EXHAUSTED),
            _header("retry-after", _RETRY_AFTER_S),
        ],
    }


def _unavailable() -> dict[str, object]:
    return {
        "filter": _status(503, "tidegate.unavailable"),
        "headers_to_add": [_header("retry-after", _RETRY_AFTER_S)],
    }


def _all(*filters: dict[str, object]) -> dict[str, object]:
    return {"and_filter": {"filters": list(filters)}}


def _flags(*flags: str) -> dict[str, object]:
    return {"response_flag_filter": {"flags": list(flags)}}


def _grpc() -> dict[str, object]:
    return {
        "header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}
    }


def _status(code: int, runtime_key: str) -> dict[str, object]:
    value = {"default_value": code, "runtime_key": runtime_key}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _header(key: str, value: str) -> dict[str, object]:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
