"""Virtual hosts → Envoy's scoped routes: one RouteConfiguration per access, so that each changes alone.

The listener writes the request's target into `x-tidegate-target`: `access/ads/ctr`, `features/ads/user`, or `hosts` if it
names neither. Envoy selects the scope of that name: one look-up, for 10,000 accesses as for one.
Scopes are case-sensitive and hosts are not, so hosts have a scope of their own, in which each access is a virtual host with
its hosts and nothing else. That virtual host does not answer: it enables the filters of envoy/host_aliases.py, which write the
name of the access into the header and make Envoy select the scope again.
It changes only when accesses are added, deleted or change their hosts; weights, targets and everything else are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cache, lru_cache
from typing import Final

from google.protobuf.message import Message

from tidegate.routing import protos, wire
from tidegate.routing.envoy import admission, authentication, grpc_counts, host_aliases, prices, rate_limit
from tidegate.routing.envoy.allowlist import GRPC_SERVICE
from tidegate.routing.envoy_names import PRICED_OUT, cluster_name
from tidegate.routing.hosts import ACCESS_HEADER, FEATURES_HEADER
from tidegate.routing.ir import (
    Comparison,
    HeaderMatcher,
    InferenceProtocol,
    RouteRule,
    UserSource,
    UserSourceKind,
    VirtualHost,
    WeightedBackend,
)

TYPE: Final = "envoy.config.route.v3.ScopedRouteConfiguration"
_CONFIGURATION: Final = "envoy.config.route.v3.RouteConfiguration"
_VIRTUAL_HOST: Final = "envoy.config.route.v3.VirtualHost"
_ROUTE: Final = "envoy.config.route.v3.Route"
_ROUTE_ACTION: Final = "envoy.config.route.v3.RouteAction"
_ROUTE_MATCH: Final = "envoy.config.route.v3.RouteMatch"

HOSTS_SCOPE: Final = "hosts"
"""The scope of requests that name only a host."""

# Written for the gateway's own use.
_NOT_FOR_MODELS: Final = (host_aliases.TARGET_HEADER, FEATURES_HEADER, "x-envoy-external-address")

# Field numbers of ScopedRouteConfiguration, RouteConfiguration and VirtualHost; those of the messages in a key are all 1.
_NAME: Final = 1
_KEY: Final = 3
_INLINE: Final = 5
_VIRTUAL_HOSTS: Final = 2
_DOMAINS: Final = 2
_ROUTES: Final = 3
_ROUTE_NAME: Final = 14

# Of Route and of RouteAction.
_MATCH: Final = 1
_ACTION: Final = 2
_STAT_PREFIX: Final = 19
_CLUSTER: Final = 1

_EVERY_DOMAIN: Final = wire.encode_field(_DOMAINS, b"*")
GRPC_NOT_FOUND: Final = "5"
_PREFIXES: Final = {InferenceProtocol.GRPC: f"/{GRPC_SERVICE}/", InferenceProtocol.HTTP: "/v2"}

# Nothing was sent yet under these conditions, so any request can be retried on another host.
_NOTHING_SENT: Final = "connect-failure,refused-stream,reset-before-request"
_NOTHING_SENT_TRIES: Final = 2

# A dead pod has no requests in flight, so least-request prefers it: of two pods it is selected three times in four.
# Selecting is cheap, and only retries select again.
_PICKS: Final = 64

# Inference changes nothing on the server, so if the user allows it, a request that may have run can run again.
_RETRY_CONDITIONS: Final = f"{_NOTHING_SENT},reset,gateway-error,unavailable"

# A stalled upload or answer is cut this long after the request's timeout.
_IDLE_GRACE: Final = timedelta(seconds=60)

UNKNOWN_TARGET: Final = (
    "No ModelAccess or FeatureCompute has this name: "
    f"send the header {ACCESS_HEADER}: <namespace>/<name> (or {FEATURES_HEADER}: <namespace>/<name>), "
    "or call the host <name>.<namespace>.tidegate, <name>.<namespace>.features.tidegate or one in spec.hosts\n"
)


def encode_scope(host: VirtualHost) -> bytes:
    """Serialise the ScopedRouteConfiguration of one access; it does not depend on other accesses."""
    return join_scope(host.name, _access_configuration(), join_virtual_hosts([encode_host(host)]))


def referenced_clusters(host: VirtualHost) -> frozenset[str]:
    """Return the names of the clusters that the scope of an access leads to."""
    rules = [rule for rule in host.rules if rule.unavailable is None]
    pools = {target.backend for rule in rules for target in rule.answering_targets}
    pools |= {mirror.backend for rule in rules for mirror in rule.mirrors}
    return frozenset(cluster_name(pool, protocol) for pool in pools for protocol in InferenceProtocol)


def encode_hosts(aliases: Iterable[bytes]) -> bytes:
    """Serialise the ScopedRouteConfiguration of all hosts, from `join_virtual_hosts` of `encode_alias`."""
    return join_scope(HOSTS_SCOPE, _hosts_configuration(), *aliases)


def join_scope(name: str, *configuration: bytes) -> bytes:
    """Serialise a ScopedRouteConfiguration around a RouteConfiguration.

    `configuration` has no name; both messages get `name`, which is the scope's key.
    """
    name_field = wire.encode_field(_NAME, name.encode())
    key = wire.encode_field(_KEY, wire.encode_field(1, name_field))
    return name_field + key + wire.encode_field(_INLINE, b"".join((name_field, *configuration)))


def join_virtual_hosts(bodies: Iterable[bytes]) -> bytes:
    """Serialise some of the virtual hosts of a RouteConfiguration; their order has no meaning."""
    return wire.encode_fields(_VIRTUAL_HOSTS, bodies)


@cache
def _access_configuration() -> bytes:
    return protos.encode(_CONFIGURATION, {"request_headers_to_remove": list(_NOT_FOR_MODELS)})


@cache
def _hosts_configuration() -> bytes:
    return protos.encode(_CONFIGURATION, {"typed_per_filter_config": host_aliases.enable_filters()})


def encode_alias(host: VirtualHost) -> bytes:
    """Serialise the hosts of one access as a VirtualHost, whose route has the name of the scope to select.

    A filter that the access enables must be enabled here already, since Envoy sets up the filters once for each request.
    """
    route = wire.encode_field(_ROUTE_NAME, host.name.encode()) + _encode_any_route()
    hosts = wire.encode_fields(_DOMAINS, (name.encode() for name in host.hosts))
    return (
        wire.encode_field(_NAME, host.name.encode())
        + hosts
        + wire.encode_field(_ROUTES, route)
        + _encode_alias_filters(host)
    )


@cache
def _encode_any_route() -> bytes:
    return protos.encode(_ROUTE, {"match": {"prefix": "/"}, "direct_response": {"status": 404}})


def encode_host(host: VirtualHost) -> bytes:
    """Serialise one VirtualHost; it does not depend on other hosts.

    Fields are joined in the order of their numbers, as protobuf writes them.
    """
    routes = [
        route
        for rule in host.rules
        for protocol in InferenceProtocol
        for route in _encode_routes(host, rule, protocol)
    ]
    if not host.rules or host.rules[-1].headers:
        body = f"{host.title}: no route matches the headers of this request, and there is no route without match\n"
        routes += [protos.encode(_ROUTE, route) for route in _not_found_routes(body)]
    return b"".join(
        (
            wire.encode_field(_NAME, host.name.encode()),
            _EVERY_DOMAIN,
            wire.encode_fields(_ROUTES, routes),
            _encode_host_filters(host),
            _encode_default_retries(),
        )
    )


@cache
def _encode_default_retries() -> bytes:
    """Serialise the retry policy of a virtual host.

    In every route it would cost Envoy a sixth more to read.
    """
    return protos.encode(_VIRTUAL_HOST, {"retry_policy": _retry_policy(_NOTHING_SENT, _NOTHING_SENT_TRIES)})


def _encode_host_filters(host: VirtualHost) -> bytes:
    """Serialise what a virtual host configures of the listener's filters."""
    guard = authentication.configure_host(host.guard) if host.guard else {}
    filter_configs = {**guard, **_counter_filters(host)}
    return (
        protos.encode(_VIRTUAL_HOST, {"typed_per_filter_config": filter_configs}) if filter_configs else b""
    )


def _encode_alias_filters(host: VirtualHost) -> bytes:
    """Serialise what the hosts of an access configure of the listener's filters."""
    guard = authentication.configure_alias(host.guard) if host.guard else {}
    admits = any(target.admission for rule in host.rules for target in rule.answering_targets)
    filter_configs = {**guard, **_counter_filters(host), **(admission.configure_alias() if admits else {})}
    return (
        protos.encode(_VIRTUAL_HOST, {"typed_per_filter_config": filter_configs}) if filter_configs else b""
    )


def _counter_filters(host: VirtualHost) -> dict[str, object]:
    """Return the configuration of the filters that count requests."""
    rate = rate_limit.configure_host(host.rate) if host.rate else {}
    return {**rate, **(grpc_counts.configure_host() if any(rule.counted for rule in host.rules) else {})}


def _header_matcher(test: HeaderMatcher) -> dict[str, object]:
    match: dict[str, object] = {str(test.comparison): test.value}
    if test.comparison is Comparison.REGEX:
        match = {"safe_regex": {"regex": test.value}}
    return {"name": test.name, "string_match": match}


def _encode_routes(host: VirtualHost, rule: RouteRule, protocol: InferenceProtocol) -> Iterator[bytes]:
    """Yield the entry of a rule; if it is priced, for the admitted requests, and then for the others.

    Envoy draws one number for a request and compares it with the share of each entry, so each share includes those before it.
    """
    match = _encode_match(rule.headers, protocol)
    if not rule.priced or rule.unavailable is not None:
        yield _encode_route(host, rule, protocol, match)
        return
    for accepted in (rule, *rule.reduced):
        share = prices.encode_match_fraction(f"{host.name}/{accepted.name}")
        yield _encode_route(host, accepted, protocol, match + share)
    refused_name = f"{host.name}/{rule.name}/{PRICED_OUT}{protocol.value}"
    yield b"".join(
        (
            wire.encode_field(_MATCH, match),
            _encode_refusal(protocol),
            wire.encode_field(_ROUTE_NAME, refused_name.encode()),
        )
    )


@cache
def _encode_refusal(protocol: InferenceProtocol) -> bytes:
    return prices.encode_refusal(protocol)


def _encode_route(host: VirtualHost, rule: RouteRule, protocol: InferenceProtocol, match: bytes) -> bytes:
    if rule.unavailable is None:
        answer = wire.encode_field(_ACTION, _encode_action(rule, protocol))
    else:
        no_endpoint = {"status": 503, "body": {"inline_string": f"{rule.unavailable}\n"}}
        answer = protos.encode(_ROUTE, {"direct_response": no_endpoint})
    return b"".join(
        (
            wire.encode_field(_MATCH, match),
            answer,
            _encode_request_headers(rule.request_headers),
            _encode_target_filters(rule, protocol),
            wire.encode_field(_ROUTE_NAME, f"{host.name}/{rule.name}/{protocol.value}".encode()),
            wire.encode_field(_STAT_PREFIX, rule.name.encode()),
        )
    )


@cache
def _encode_request_headers(headers: tuple[tuple[str, str], ...]) -> bytes:
    additions = [
        {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for name, value in headers
    ]
    return protos.encode(_ROUTE, {"request_headers_to_add": additions})


def _encode_target_filters(rule: RouteRule, protocol: InferenceProtocol) -> bytes:
    """Serialise what the route of a single target configures of the listener's filters.

    If there are several targets, each has its own configuration.
    """
    filters = _target_filters(rule.targets[0], protocol) if len(rule.targets) == 1 else {}
    return protos.encode(_ROUTE, filters) if filters and rule.unavailable is None else b""


def _target_filters(target: WeightedBackend, protocol: InferenceProtocol) -> dict[str, object]:
    """Return what a target of a route configures of the listener's filters: admission control or nothing."""
    if target.admission is None:
        return {}
    return {"typed_per_filter_config": admission.configure_target(target.admission, protocol)}


@lru_cache(maxsize=1024)
def _encode_match(headers: tuple[HeaderMatcher, ...], protocol: InferenceProtocol) -> bytes:
    fields = {"prefix": _PREFIXES[protocol], "headers": [_header_matcher(test) for test in headers]}
    return protos.encode(_ROUTE_MATCH, fields)


def _encode_action(rule: RouteRule, protocol: InferenceProtocol) -> bytes:
    if len(rule.targets) == 1 and not rule.mirrors:
        # The most frequent case by far: many routes share everything except the cluster's name, whose field number is lower.
        cluster = cluster_name(rule.targets[0].backend, protocol)
        return wire.encode_field(_CLUSTER, cluster.encode()) + _encode_common_action(
            rule.timeout, rule.attempts, client_deadline=rule.client_deadline
        )
    fields = _common_fields(rule.timeout, rule.attempts, client_deadline=rule.client_deadline)
    if rule.mirrors:
        fields["request_mirror_policies"] = [
            {
                "cluster": cluster_name(mirror.backend, protocol),
                "runtime_fraction": {
                    "default_value": {"numerator": mirror.percent, "denominator": "HUNDRED"}
                },
            }
            for mirror in rule.mirrors
        ]
    return protos.encode(_ROUTE_ACTION, fields | _destination_fields(rule, protocol))


@lru_cache(maxsize=1024)
def _encode_common_action(timeout: timedelta, attempts: int | None, *, client_deadline: bool) -> bytes:
    return protos.encode(_ROUTE_ACTION, _common_fields(timeout, attempts, client_deadline=client_deadline))


def _common_fields(timeout: timedelta, attempts: int | None, *, client_deadline: bool) -> dict[str, object]:
    """Return the fields of a route's action that do not depend on its destination."""
    action: dict[str, object] = {
        "timeout": protos.duration(timeout),
        "idle_timeout": protos.duration(timeout + _IDLE_GRACE),
    }
    if attempts:
        action["retry_policy"] = _retry_policy(_RETRY_CONDITIONS, attempts)
    if client_deadline:
        # Without a deadline of the client there is no second timer: `timeout` applies.
        action["max_stream_duration"] = {"grpc_timeout_header_max": protos.duration(timeout)}
    return action


def _destination_fields(rule: RouteRule, protocol: InferenceProtocol) -> dict[str, object]:
    if len(rule.targets) == 1:
        return {"cluster": cluster_name(rule.targets[0].backend, protocol)}
    clusters: dict[str, object] = {
        "clusters": [
            {
                "name": cluster_name(target.backend, protocol),
                "weight": {"value": target.weight},
                **_target_filters(target, protocol),
            }
            for target in rule.targets
        ]
    }
    if rule.sticky is None:
        return {"weighted_clusters": clusters}
    return {
        "weighted_clusters": clusters | {"use_hash_policy": {"value": True}},
        "hash_policy": [_hash_policy(rule.sticky)],
    }


def _hash_policy(user: UserSource) -> dict[str, object]:
    """Return the hash policy for a user's point on the line; the selection of a pod does not use it."""
    if user.kind is UserSourceKind.HEADER:
        return {"header": {"header_name": user.name}}
    return {"cookie": {"name": user.name}}


@cache
def _retry_policy(conditions: str, attempts: int) -> Message:
    """Build a retry policy once for all routes.

    protobuf copies a message in a tenth of the time that it takes to build one from a mapping.
    """
    fields: dict[str, object] = {
        "retry_on": conditions,
        "num_retries": {"value": attempts},
        # On another pod if there is one; on any if too many selections find none.
        "retry_host_predicate": [_previous_hosts_predicate()],
        "host_selection_retry_max_attempts": _PICKS,
        "retry_back_off": {
            "base_interval": protos.seconds(0.005),
            "max_interval": protos.seconds(0.05),
        },
    }
    return protos.build_message("envoy.config.route.v3.RetryPolicy", fields)


@cache
def _previous_hosts_predicate() -> dict[str, object]:
    return protos.extension_config(
        "envoy.retry_host_predicates.previous_hosts",
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    )


def _not_found_routes(body: str) -> list[dict[str, object]]:
    """Return routes that answer 404 for REST, and NOT_FOUND for gRPC, where Envoy would send UNIMPLEMENTED."""
    answer: dict[str, object] = {"direct_response": {"status": 404, "body": {"inline_string": body}}}
    grpc_status: dict[str, object] = {
        "header": {"key": "grpc-status", "value": GRPC_NOT_FOUND},
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
