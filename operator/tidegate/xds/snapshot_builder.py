"""The snapshots for gateways: renders the plan of the routing, and only what changed since the last snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidegate.routing import protos
from tidegate.routing.certificates import AuthorityBundle, Certificate
from tidegate.routing.envoy import clusters, endpoints, listener, routes, tls
from tidegate.routing.envoy_names import cluster_name
from tidegate.routing.failures import ObjectFailures
from tidegate.routing.gateway_secrets import GatewaySecretState, SecretRole
from tidegate.routing.hosts import HostKey
from tidegate.routing.incremental import RoutingChange
from tidegate.routing.ir import EndpointPool, HostState, InferenceProtocol, PlannedHost, PoolKey, VirtualHost
from tidegate.routing.planner import RoutingPlan
from tidegate.routing.refusals import RoutingRefusal
from tidegate.xds.persistent_map import PersistentMap
from tidegate.xds.resources import (
    NO_RESOURCES,
    Snapshot,
    TypeUrl,
    XdsResource,
    body_hash,
    build_resource,
    content_hash,
)

K = TypeVar("K")
V = TypeVar("V")


class SnapshotBuilder:
    """Renders routing plans and their changes to snapshots, and only what changed since the last one.

    Its caches affect the speed and never the result: snapshots share what they can, and are never changed in place.
    """

    def __init__(self, settings: listener.ListenerSettings) -> None:
        listeners = {
            name: build_resource(name, protos.encode_any(listener.TYPE, encoded))
            for name, encoded in listener.encode_listeners(settings).items()
        }
        self.faults = ObjectFailures()
        self._listeners = NO_RESOURCES.with_changes(listeners)
        self._secrets = NO_RESOURCES
        self._clusters = NO_RESOURCES
        self._endpoints = NO_RESOURCES
        self._scopes = _ScopeTable()
        self._pools: dict[PoolKey, EndpointPool] = {}
        self._hosts: dict[HostKey, PlannedHost] = {}
        self._states: PersistentMap[HostKey, HostState] = PersistentMap()
        self._refusals: tuple[RoutingRefusal, ...] = ()

    def set_secrets(self, gateway_secrets: Iterable[GatewaySecretState]) -> None:
        """Render the Secrets of the TLS port for the next snapshots."""
        rendered = {secret.name: secret for secret in render_secrets(gateway_secrets)}
        self._secrets = self._secrets.with_changes({**dict.fromkeys(self._secrets), **rendered})

    def build_snapshot(self, plan: RoutingPlan) -> Snapshot:
        """Return the snapshot of `plan`."""
        no_hosts = dict.fromkeys(self._hosts.keys() - plan.hosts.keys())
        no_pools = dict.fromkeys(self._pools.keys() - plan.pools.keys())
        return self.apply_change(RoutingChange({**no_hosts, **plan.hosts}, {**no_pools, **plan.pools}))

    def apply_change(self, change: RoutingChange) -> Snapshot:
        """Return the snapshot of the last plan with `change`."""
        self._apply_pools(change.pools)
        self._apply_hosts(change.hosts)
        resources = {
            TypeUrl.CLUSTER: self._clusters,
            TypeUrl.ENDPOINT: self._endpoints,
            TypeUrl.LISTENER: self._listeners,
            TypeUrl.SCOPE: self._scopes.resources,
            TypeUrl.SECRET: self._secrets,
        }
        return Snapshot.from_sets(resources, self._states, self._refusals)

    def _apply_pools(self, pools: Mapping[PoolKey, EndpointPool | None]) -> None:
        cluster_changes: dict[str, XdsResource | None] = {}
        endpoint_changes: dict[str, XdsResource | None] = {}
        for key, pool in pools.items():
            if pool == self._pools.get(key):
                self.faults.clear(f"pool {key}")
                continue
            with self.faults.isolate(f"pool {key}"):
                rendered = {
                    cluster_name(key, protocol): (None, None) if pool is None else render_pool(pool, protocol)
                    for protocol in InferenceProtocol
                }
                cluster_changes |= {name: cluster for name, (cluster, _) in rendered.items()}
                endpoint_changes |= {name: endpoints for name, (_, endpoints) in rendered.items()}
                _put_or_delete(self._pools, key, pool)
        self._clusters = self._clusters.with_changes(cluster_changes)
        self._endpoints = self._endpoints.with_changes(endpoint_changes)

    def _apply_hosts(self, planned: Mapping[HostKey, PlannedHost | None]) -> None:
        rendered: dict[str, _RenderedHost | None] = {}
        states: dict[HostKey, HostState | None] = {}
        refusals_changed = False
        for key, after in planned.items():
            before = self._hosts.get(key)
            if after == before:
                self.faults.clear(f"host {key}")
                continue
            with self.faults.isolate(f"host {key}"):
                if after is None or before is None or after.host != before.host:
                    rendered_host = None if after is None else _RenderedHost.from_host(after.host)
                    if before is not None:
                        rendered[before.host.name] = None
                    if after is not None:
                        rendered[after.host.name] = rendered_host
                states[key] = None if after is None else after.state
                refusals_changed = refusals_changed or bool(
                    (after and after.refusals) or (before and before.refusals)
                )
                _put_or_delete(self._hosts, key, after)
        self._scopes.apply_hosts(rendered)
        self._states = self._states.with_changes(states)
        if refusals_changed:
            self._refusals = tuple(
                refusal for key in sorted(self._hosts) for refusal in self._hosts[key].refusals
            )


@dataclass(frozen=True, slots=True)
class _RenderedHost:
    """A virtual host as gateways get it: in a scope of its own, and as an alias if it has hosts."""

    scope: XdsResource
    alias: XdsResource | None

    @classmethod
    def from_host(cls, host: VirtualHost) -> _RenderedHost:
        alias = build_resource(host.name, routes.encode_alias(host)) if host.hosts else None
        body = protos.encode_any(routes.TYPE, routes.encode_scope(host))
        return cls(build_resource(host.name, body, references=routes.referenced_clusters(host)), alias)


class _ScopeTable:
    """The scope of each virtual host, and the scope of all hosts, joined from serialised parts.

    Only a change of hosts joins a part again; the others are copied.
    """

    def __init__(self) -> None:
        self._aliases = NO_RESOURCES
        self._joined = [b""] * len(self._aliases.resource_map.parts)
        self.resources = NO_RESOURCES.with_changes({routes.HOSTS_SCOPE: self._render_hosts_scope()})

    def apply_hosts(self, hosts: Mapping[str, _RenderedHost | None]) -> None:
        """Update virtual hosts by name; None for one that is deleted."""
        changes = {name: None if host is None else host.scope for name, host in hosts.items()}
        before = self._aliases
        self._aliases = before.with_changes(
            {name: None if host is None else host.alias for name, host in hosts.items()}
        )
        if self._aliases is not before:
            parts = zip(self._aliases.resource_map.parts, before.resource_map.parts, strict=True)
            for number, (new_part, old_part) in enumerate(parts):
                if new_part is not old_part:
                    self._joined[number] = routes.join_virtual_hosts(
                        new_part[name].body for name in sorted(new_part)
                    )
            changes[routes.HOSTS_SCOPE] = self._render_hosts_scope()
        self.resources = self.resources.with_changes(changes)

    def _render_hosts_scope(self) -> XdsResource:
        body = protos.encode_any(routes.TYPE, routes.encode_hosts(self._joined))
        return XdsResource(
            routes.HOSTS_SCOPE, content_hash([self._aliases.version]), body, aliases=self._aliases
        )


def _put_or_delete(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def render_pool(pool: EndpointPool, protocol: InferenceProtocol) -> tuple[XdsResource, XdsResource]:
    """Render the cluster of a pool and its endpoints.

    The version of the endpoints covers the cluster's configuration too.
    A changed cluster waits for its endpoints, up to 15 s and without a message; so they are sent again whenever it changes.
    """
    name = cluster_name(pool.backend, protocol)
    cluster = build_resource(
        name, protos.encode_any(clusters.TYPE, clusters.encode_cluster(name, pool, protocol))
    )
    body = protos.encode_any(endpoints.TYPE, endpoints.encode_endpoints(name, pool, protocol))
    version = body_hash(body, cluster.version)
    return cluster, XdsResource(name, version, body, vacant=not pool.answering_pods)


def render_secrets(secret_states: Iterable[GatewaySecretState]) -> Iterator[XdsResource]:
    """Render a resource for each Secret of the TLS port.

    Envoy serves the port only once it has all secrets that the listener names.
    So a certificate that was never valid is replaced by another that is, and an authority by one that verifies no client.
    Both are placeholders: a gateway that has something from an earlier stream keeps that.
    If no certificate was ever valid there is none to send.
    """
    states = tuple(secret_states)
    any_certificate = next(
        (state.content for state in states if isinstance(state.content, Certificate)), None
    )
    for state in states:
        if state.role is SecretRole.CLIENT_AUTHORITY:
            name = tls.authority_name(state.name)
            trusted = state.content if isinstance(state.content, AuthorityBundle) else None
            encoded = tls.encode_authority(name, trusted)
        elif any_certificate is not None:
            name = tls.certificate_name(state.name)
            served = state.content if isinstance(state.content, Certificate) else any_certificate
            encoded = tls.encode_certificate(name, served)
        else:
            continue
        yield build_resource(name, protos.encode_any(tls.TYPE, encoded), placeholder=state.content is None)
