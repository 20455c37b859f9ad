"""Replacements for Envoy's own error answers."""

from __future__ import annotations

from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import admission, allowlist, authentication, routes

# Envoy's response flags: the route's timeout, a client that was too slow, and a stalled stream; then a reached limit, and no route.
_TIMEOUT_FLAGS: Final = ("UT", "SI", "DT")
_LIMIT_FLAGS: Final = ("UO",)
_NO_ROUTE_FLAGS: Final = ("NR",)

_GRPC_DEADLINE_EXCEEDED: Final = "4"
_GRPC_RESOURCE_EXHAUSTED: Final = "8"

# Limits count requests in flight, which for a model end in a fraction of a second; the header has only whole seconds.
_RETRY_AFTER_S: Final = "1"


def local_reply_config() -> dict[str, object]:
    """Return the listener's local_reply_config; the first mapper that matches counts."""
    return {
        "mappers": [
            _unknown_target_grpc(),
            _unknown_target(),
            _not_allowed(),
            _without_certificate(),
            _deadline_exceeded(),
            _limit_reached(),
            _not_admitted(),
            _service_unavailable(),
        ]
    }


def _unknown_target() -> dict[str, object]:
    """Return the answer if no scope has the target's name."""
    return {"filter": _match_flags(*_NO_ROUTE_FLAGS), "body": {"inline_string": routes.UNKNOWN_TARGET}}


def _unknown_target_grpc() -> dict[str, object]:
    """Return the same answer for gRPC clients, for which Envoy would send UNIMPLEMENTED without a message."""
    return {
        "filter": _match_all(_match_flags(*_NO_ROUTE_FLAGS), _match_grpc()),
        "body": {"inline_string": routes.UNKNOWN_TARGET},
        "headers_to_add": [_set_header("grpc-status", routes.GRPC_NOT_FOUND)],
    }


def _not_allowed() -> dict[str, object]:
    return {
        "filter": _match_all(
            _match_status(403, "tidegate.not_allowed"), _match_details(allowlist.REJECTED_DETAILS)
        ),
        "status_code": {"value": 404},
        "body_format_override": {"text_format_source": {"inline_string": allowlist.REJECTED_BODY}},
    }


def _without_certificate() -> dict[str, object]:
    """Return 401 for callers without a certificate, where Envoy's filter can only send 403."""
    return {
        "filter": _match_all(
            _match_status(403, "tidegate.without_certificate"),
            _match_details(authentication.NO_CERTIFICATE_DETAILS),
        ),
        "status_code": {"value": 401},
        "body": {"inline_string": "this ModelAccess asks for a client certificate, over the TLS port"},
    }


def _match_details(text: str) -> dict[str, object]:
    """Return an access log filter by response code details, which tell the filters apart that answer 403.

    It is an expression, so it is combined with a filter by status that costs less.
    """
    expression = f"response.code_details == '{text}'"
    cel = "envoy.access_loggers.extension_filters.cel"
    kind = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
    return {"extension_filter": protos.extension_config(cel, kind, {"expression": expression})}


def _deadline_exceeded() -> dict[str, object]:
    """Return DEADLINE_EXCEEDED for timeouts: Envoy would send UNAVAILABLE, which gRPC clients retry."""
    return {
        "filter": _match_all(_match_flags(*_TIMEOUT_FLAGS), _match_grpc()),
        "headers_to_add": [_set_header("grpc-status", _GRPC_DEADLINE_EXCEEDED)],
    }


def _limit_reached() -> dict[str, object]:
    """Return RESOURCE_EXHAUSTED for reached limits: Envoy would send UNAVAILABLE, as if there were no pod."""
    return {
        "filter": _match_all(_match_flags(*_LIMIT_FLAGS), _match_grpc()),
        "headers_to_add": [
            _set_header("grpc-status", _GRPC_RESOURCE_EXHAUSTED),
            _set_header("retry-after", _RETRY_AFTER_S),
        ],
    }


def _not_admitted() -> dict[str, object]:
    """Return RESOURCE_EXHAUSTED for admission control: Envoy would send UNAVAILABLE."""
    return {
        "filter": _match_all(_match_status(503, "tidegate.not_admitted"), admission.match_rejected()),
        "body": {"inline_string": admission.REJECTED_BODY},
        "headers_to_add": [
            _set_header("grpc-status", _GRPC_RESOURCE_EXHAUSTED),
            _set_header("retry-after", _RETRY_AFTER_S),
        ],
    }


def _service_unavailable() -> dict[str, object]:
    return {
        "filter": _match_status(503, "tidegate.unavailable"),
        "headers_to_add": [_set_header("retry-after", _RETRY_AFTER_S)],
    }


def _match_all(*filters: dict[str, object]) -> dict[str, object]:
    return {"and_filter": {"filters": list(filters)}}


def _match_flags(*flags: str) -> dict[str, object]:
    return {"response_flag_filter": {"flags": list(flags)}}


def _match_grpc() -> dict[str, object]:
    return {
        "header_filter": {"header": {"name": "content-type", "string_match": {"prefix": "application/grpc"}}}
    }


def _match_status(code: int, runtime_key: str) -> dict[str, object]:
    value = {"default_value": code, "runtime_key": runtime_key}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _set_header(key: str, value: str) -> dict[str, object]:
    return {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
