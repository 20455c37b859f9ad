"""Virtual hosts → one Envoy RouteConfiguration, made by joining virtual hosts that are already serialised.

Header and host are one thing here.
The listener writes what a request asks for into `x-tidegate-target` (`ads/ctr`, `features/ads/user`, or its host without the port), and `vhost_header` makes Envoy pick the virtual host by that header instead of the authority.
So a ModelAccess is one virtual host whose domains are its key and its hosts; the look-up is one hash, in any letter case, for 10,000 accesses as for one; and the header wins over the host.
A matcher tree over the header would do the same with every access written once for each name that it has; plain routes would be tried one after the other.

All of it is one resource, which Envoy reads anew at every change: 0.1 s for 1,000 accesses, 0.3 s for 3,000 (Envoy 1.40, one core).
Far beyond that, scoped routes keyed by the same header give every access a RouteConfiguration of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Final

from google.protobuf.message import Message

from tidegate.routing import protos, wire
from tidegate.routing.envoy import rate_limit
from tidegate.routing.envoy.allowlist import GRPC_SERVICE
from tidegate.routing.envoy.clusters import cluster_name
from tidegate.routing.ir import Comparison, HeaderTest, Protocol, RouteRule, User, UserKind, VirtualHost

TYPE: Final = "envoy.config.route.v3.RouteConfiguration"
NAME: Final = "gateway"

ACCESS_HEADER: Final = "x-tidegate-access"
FEATURES_HEADER: Final = "x-tidegate-features"
TARGET_HEADER: Final = "x-tidegate-target"

# Written for the gateway's own use.
_NOT_FOR_MODELS: Final = (TARGET_HEADER, FEATURES_HEADER, "x-envoy-external-address")

_VIRTUAL_HOSTS_FIELD: Final = 2
_GRPC_NOT_FOUND: Final = "5"
_PREFIXES: Final = {Protocol.GRPC: f"/{GRPC_SERVICE}/", Protocol.HTTP: "/v2"}

# Nothing was sent yet under these conditions, so the request is safe on another host whatever it does.
_NOTHING_SENT: Final = "connect-failure,refused-stream,reset-before-request"
_NOTHING_SENT_TRIES: Final = 2

# A dead pod has no requests in flight, so least-request likes it best: of two pods it is picked three times in four.
# Picking is cheap, and only retries pick again.
_PICKS: Final = 64

# Inference changes nothing on the server, so with the user's word for it a request that may have run can run again.
_ASKED: Final = f"{_NOTHING_SENT},reset,gateway-error,unavailable"

# A stalled upload or answer is cut this long after the whole request should have been over.
_IDLE_GRACE: Final = timedelta(seconds=60)

UNKNOWN: Final = (
    "No ModelAccess or FeatureCompute has this name: "
    f"send the header {ACCESS_HEADER}: <namespace>/<name> (or {FEATURES_HEADER}: <namespace>/<name>), "
    "or call the host <name>.<namespace>.tidegate, <name>.<namespace>.features.tidegate or one in spec.hosts\n"
)


@cache
def frame() -> bytes:
    """The serialised RouteConfiguration without virtual hosts: those go behind it, and `nobody` last."""
    return protos.encode(
        TYPE,
        {
            "name": NAME,
            "vhost_header": TARGET_HEADER,
            "request_headers_to_remove": list(_NOT_FOR_MODELS),
        },
    )


def virtual_hosts(bodies: Iterable[bytes]) -> bytes:
    """Some of the virtual hosts of a RouteConfiguration; their order means nothing."""
    return wire.fields(_VIRTUAL_HOSTS_FIELD, bodies)


@cache
def nobody() -> bytes:
    """The last virtual host of a RouteConfiguration: that of requests for names that nobody has."""
    return virtual_hosts(
        [
            protos.encode(
                "envoy.config.route.v3.VirtualHost",
                {"name": "nobody", "domains": ["*"], "routes": _not_found(UNKNOWN)},
            )
        ]
    )


def encode_host(host: VirtualHost) -> bytes:
    """One serialised VirtualHost; the same bytes whatever other hosts there are."""
    routes = [_route(host, rule, protocol) for rule in host.rules for protocol in Protocol]
    if not host.rules or host.rules[-1].headers:
        body = f"{host.title}: no route matches the headers of this request, and there is no route without match\n"
        routes += _not_found(body)
    return protos.encode(
        "envoy.config.route.v3.VirtualHost",
        {
            "name": host.name,
            "domains": list(host.domains),
            "routes": routes,
            # Here and not in every route, which would cost Envoy a sixth more to read.
            "retry_policy": _retry_policy(_NOTHING_SENT, _NOTHING_SENT_TRIES),
            **({"typed_per_filter_config": rate_limit.for_host(host.rate)} if host.rate else {}),
        },
    )


def _header(test: HeaderTest) -> dict[str, object]:
    match: dict[str, object] = {str(test.comparison): test.value}
    if test.comparison is Comparison.REGEX:
        match = {"safe_regex": {"regex": test.value}}
    return {"name": test.name, "string_match": match}


def _route(host: VirtualHost, rule: RouteRule, protocol: Protocol) -> dict[str, object]:
    route: dict[str, object] = {
        "name": f"{host.name}/{rule.name}/{protocol}",
        "stat_prefix": rule.name,
        "match": {
            "prefix": _PREFIXES[protocol],
            "headers": [_header(test) for test in rule.headers],
        },
    }
    if rule.unavailable is not None:
        return route | {
            "direct_response": {"status": 503, "body": {"inline_string": f"{rule.unavailable}\n"}}
        }
    return route | {"route": _action(rule, protocol)}


def _action(rule: RouteRule, protocol: Protocol) -> dict[str, object]:
    action: dict[str, object] = {
        "timeout": protos.duration(rule.timeout),
        "idle_timeout": protos.duration(rule.timeout + _IDLE_GRACE),
    }
    if rule.attempts:
        action["retry_policy"] = _retry_policy(_ASKED, rule.attempts)
    if rule.client_deadline:
        # No second timer where the client says nothing: `timeout` is there for that.
        action["max_stream_duration"] = {"grpc_timeout_header_max": protos.duration(rule.timeout)}
    if rule.mirrors:
        action["request_mirror_policies"] = [
            {
                "cluster": cluster_name(mirror.backend, protocol),
                "runtime_fraction": {
                    "default_value": {"numerator": mirror.percent, "denominator": "HUNDRED"}
                },
            }
            for mirror in rule.mirrors
        ]
    return action | _destination(rule, protocol)


def _destination(rule: RouteRule, protocol: Protocol) -> dict[str, object]:
    if len(rule.targets) == 1:
        return {"cluster": cluster_name(rule.targets[0].backend, protocol)}
    clusters: dict[str, object] = {
        "clusters": [
            {"name": cluster_name(target.backend, protocol), "weight": {"value": target.weight}}
            for target in rule.targets
        ]
    }
    if rule.sticky is None:
        return {"weighted_clusters": clusters}
    return {
        "weighted_clusters": clusters | {"use_hash_policy": {"value": True}},
        "hash_policy": [_hashed(rule.sticky)],
    }


def _hashed(user: User) -> dict[str, object]:
    """Where the point of a user on the line comes from; the pods behind a cluster are picked without it."""
    if user.kind is UserKind.HEADER:
        return {"header": {"header_name": user.name}}
    return {"cookie": {"name": user.name}}


@cache
def _retry_policy(conditions: str, attempts: int) -> Message:
    """Built once for all: protobuf copies a message in a tenth of the time that it takes to make one of a mapping."""
    fields: dict[str, object] = {
        "retry_on": conditions,
        "num_retries": {"value": attempts},
        # On another pod where there is one; if it is picked in vain for too long, on any.
        "retry_host_predicate": [_another_host()],
        "host_selection_retry_max_attempts": _PICKS,
        "retry_back_off": {
            "base_interval": protos.seconds(0.005),
            "max_interval": protos.seconds(0.05),
        },
    }
    return protos.message("envoy.config.route.v3.RetryPolicy", fields)


@cache
def _another_host() -> dict[str, object]:
    return protos.extension(
        "envoy.retry_host_predicates.previous_hosts",
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    )


def _not_found(body: str) -> list[dict[str, object]]:
    """404 for REST; for gRPC NOT_FOUND, where Envoy by itself would say UNIMPLEMENTED."""
    answer: dict[str, object] = {"direct_response": {"status": 404, "body": {"inline_string": body}}}
    grpc_status: dict[str, object] = {
        "header": {"key": "grpc-status", "value": _GRPC_NOT_FOUND},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    return [
        {
            "name": "not-found/grpc",
            "match": {"prefix": "/", "grpc": {}},
            "response_headers_to_add": [grpc_status],
            **answer,
        },
        {"name": "not-found/http", "match": {"prefix": "/"}, **answer},
    ]
