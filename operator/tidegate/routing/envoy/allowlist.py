"""The calls of the Open Inference Protocol that pass the gateway: inference, health and metadata.

An RBAC filter in the listener checks this before any route is selected, so no route can expose model control, shared
memory, trace or log APIs by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.routing import protos

REJECTED_DETAILS: Final = "rbac_access_denied_matched_policy[none]"
"""The response code details of this filter's rejections; no other filter of ours rejects without a policy."""

GRPC_SERVICE: Final = "inference.GRPCInferenceService"
GRPC_METHODS: Final = (
    "ModelInfer",
    "ModelMetadata",
    "ModelReady",
    "ServerLive",
    "ServerMetadata",
    "ServerReady",
)

_MODEL: Final = "/v2/models/[A-Za-z0-9][A-Za-z0-9._-]*(/versions/[0-9]+)?"
_SERVER_PATHS: Final = ("/v2", "/v2/health/live", "/v2/health/ready")

# Triton answers GET /v2/models/stats with the statistics of every model, although the path looks like a model called 'stats'.
_STATISTICS: Final = "/v2/models/stats"

REJECTED_BODY: Final = (
    "This gateway passes inference, health and metadata only: gRPC "
    f"{GRPC_SERVICE}/{{{','.join(GRPC_METHODS)}}}, "
    "POST /v2/models/<name>[/versions/<v>]/infer, GET /v2/models/<name>[/versions/<v>][/ready], "
    "GET /v2/health/{live,ready}, GET /v2\n"
)


def rbac_filter() -> dict[str, object]:
    """Return the HTTP filter; it rejects with a 403, which the listener turns into a 404 with `REJECTED_BODY`."""
    grpc_paths = (f"/{GRPC_SERVICE}/{method}" for method in GRPC_METHODS)
    policies = {
        "grpc": _allow_policy(
            _match_method("POST"), _match_any(_match_path({"exact": path}) for path in grpc_paths)
        ),
        "infer": _allow_policy(_match_method("POST"), _match_path_pattern(f"{_MODEL}/infer")),
        "read": _allow_policy(
            _match_method("GET"),
            _match_any(
                [
                    *(_match_path({"exact": path}) for path in _SERVER_PATHS),
                    _match_path_pattern(f"{_MODEL}(/ready)?"),
                ]
            ),
            {"not_rule": _match_path({"exact": _STATISTICS})},
        ),
    }
    rules: dict[str, object] = {"action": "ALLOW", "policies": policies}
    return protos.extension_config(
        "envoy.filters.http.rbac",
        "envoy.extensions.filters.http.rbac.v3.RBAC",
        {"rules": rules, "rules_stat_prefix": "allowlist"},
    )


def _allow_policy(*permissions: Mapping[str, object]) -> dict[str, object]:
    return {"permissions": [{"and_rules": {"rules": list(permissions)}}], "principals": [{"any": True}]}


def _match_any(permissions: Iterable[Mapping[str, object]]) -> dict[str, object]:
    return {"or_rules": {"rules": list(permissions)}}


def _match_method(name: str) -> dict[str, object]:
    return {"header": {"name": ":method", "string_match": {"exact": name}}}


def _match_path(match: Mapping[str, object]) -> dict[str, object]:
    return {"url_path": {"path": dict(match)}}


def _match_path_pattern(pattern: str) -> dict[str, object]:
    return _match_path({"safe_regex": {"regex": pattern}})
