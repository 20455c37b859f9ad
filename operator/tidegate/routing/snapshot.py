"""The resources that a proxy runs, as values: equal bytes in every replica of the xDS server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar
from weakref import ReferenceType, ref

from tidegate.routing import protos
from tidegate.routing.certificates import Authority, Certificate
from tidegate.routing.envoy import clusters, endpoints, listener, routes, secrets
from tidegate.routing.faults import Faults
from tidegate.routing.gateway_secrets import HeldSecret, SecretRole
from tidegate.routing.hosts import HostKey
from tidegate.routing.ir import Pool, PoolKey, Protocol, VirtualHost
from tidegate.routing.live import RoutingChange
from tidegate.routing.planner import HostState, PlannedHost, RoutingPlan
from tidegate.routing.refusals import Refusal
from tidegate.routing.sharded import Sharded

_VERSION_LENGTH: Final = 16
_STAND_IN: Final = "stand-in-"

K = TypeVar("K")
V = TypeVar("V")


class TypeUrl(StrEnum):
    """The types of resources that are served."""

    CLUSTER = protos.TYPE_URL_PREFIX + clusters.TYPE
    ENDPOINT = protos.TYPE_URL_PREFIX + endpoints.TYPE
    LISTENER = protos.TYPE_URL_PREFIX + listener.TYPE
    SCOPE = protos.TYPE_URL_PREFIX + routes.TYPE
    SECRET = protos.TYPE_URL_PREFIX + secrets.TYPE


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, serialised once for all proxies.

    `body` is a serialised google.protobuf.Any; `version` is a hash of the content.
    `vacant` marks an empty set of endpoints: it must not arrive while a route still leads there.
    `references` are the names of the clusters that a scope leads to; empty for the other types.
    """

    name: str
    version: str
    body: bytes = field(repr=False)
    vacant: bool = False
    references: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def stand_in(self) -> bool:
        """Return whether it is only for a proxy that has nothing under this name.

        Anything else that a proxy has under the name is better.
        The version has a mark for this, since of the resources of a reconnecting proxy only the version is known.
        """
        return self.version.startswith(_STAND_IN)


Resources = Mapping[str, Resource]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent set of all resources.

    `revision` and `versions` are hashes of the content: equal in every replica and after every restart.
    `hosts` has the objects that it was made from.
    """

    revision: str
    resources: Mapping[TypeUrl, Resources]
    versions: Mapping[TypeUrl, str]
    hosts: Mapping[HostKey, HostState]
    refusals: tuple[Refusal, ...] = ()


def content_hash(parts: Iterable[str | bytes]) -> str:
    """Hash `parts` in their order; 64 bits are enough against accidental collisions."""
    chunks: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        chunks += (len(data).to_bytes(8, "big"), data)
    return hashlib.sha256(b"".join(chunks)).hexdigest()[:_VERSION_LENGTH]


def body_hash(body: bytes, *texts: str) -> str:
    """Hash a body and further texts, as `content_hash` does."""
    content = len(body).to_bytes(8, "big") + body
    for text in texts:
        data = text.encode()
        content += len(data).to_bytes(8, "big") + data
    return hashlib.sha256(content).hexdigest()[:_VERSION_LENGTH]


def version_of(resources: Resources) -> str:
    """Return the version of a set of resources: a hash over their names and versions."""
    return content_hash(part for name in sorted(resources) for part in (name, resources[name].version))


_EMPTY: Final = version_of({})


class ResourceSet(Mapping[str, Resource]):
    """All resources of one type; a change copies little of it, and its version depends only on the content."""

    __slots__ = ("__weakref__", "_compared", "_digests", "_referencing", "_resources", "version")

    def __init__(self) -> None:
        self._set(Sharded(), [_EMPTY] * len(Sharded[str, Resource]().parts))
        self._compared: tuple[ReferenceType[ResourceSet], frozenset[str]] | None = None
        self._referencing: dict[str, frozenset[str]] = {}

    def _set(self, resources: Sharded[str, Resource], digests: list[str]) -> None:
        self._resources = resources
        self._digests = digests
        self.version = content_hash(["".join(digests)])

    def __getitem__(self, name: str) -> Resource:
        return self._resources[name]

    def __contains__(self, name: object) -> bool:
        return name in self._resources

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def changed(self, changes: Mapping[str, Resource | None]) -> ResourceSet:
        """Return this set with other resources, and without those that are None; itself if nothing changes."""
        resources = self._resources.changed(changes)
        if resources is self._resources:
            return self
        parts = zip(resources.parts, self._resources.parts, self._digests, strict=True)
        result = ResourceSet()
        result._set(
            resources, [digest if part is before else version_of(part) for part, before, digest in parts]
        )
        return result

    @property
    def shards(self) -> Sharded[str, Resource]:
        """Resources as a map; the parts that two sets share are the same objects."""
        return self._resources

    def differing(self, before: ResourceSet) -> frozenset[str]:
        """Return the names under which this set and `before` have different resources.

        The result is cached, since it is the same for many proxies.
        """
        if self._compared is None or self._compared[0]() is not before:
            self._compared = ref(before), self._resources.differing(before.shards)
        return self._compared[1]

    def referencing(self, cluster: str) -> frozenset[str]:
        """Return the names of the resources that lead to `cluster`.

        The result is cached, since it is the same for every proxy that rejects the cluster.
        """
        if cluster not in self._referencing:
            self._referencing[cluster] = frozenset(
                name for name, resource in self.items() if cluster in resource.references
            )
        return self._referencing[cluster]


def differing(before: Resources, after: Resources) -> frozenset[str]:
    """Return the names under which two sets have different resources."""
    if before is after:
        return frozenset()
    if isinstance(before, ResourceSet) and isinstance(after, ResourceSet):
        return after.differing(before)
    return frozenset(
        name for name in {**before, **after} if name not in after or after[name] != before.get(name)
    )


def referencing(resources: Resources, cluster: str) -> frozenset[str]:
    """Return the names of those of `resources` that lead to `cluster`."""
    if isinstance(resources, ResourceSet):
        return resources.referencing(cluster)
    return frozenset(name for name, resource in resources.items() if cluster in resource.references)


class SnapshotBuilder:
    """Renders routing plans and their changes to snapshots, and only what changed since the last one.

    Its caches affect the speed and never the result: snapshots share what they can, and are never changed in place.
    """

    def __init__(self, settings: listener.ListenerSettings) -> None:
        listeners = {
            name: _resource(name, protos.any_of(listener.TYPE, encoded))
            for name, encoded in listener.encode(settings).items()
        }
        self.faults = Faults()
        self._listeners = ResourceSet().changed(listeners)
        self._secrets = ResourceSet()
        self._clusters = ResourceSet()
        self._endpoints = ResourceSet()
        self._scopes = _ScopeTable()
        self._pools: dict[PoolKey, Pool] = {}
        self._hosts: dict[HostKey, PlannedHost] = {}
        self._states: Sharded[HostKey, HostState] = Sharded()
        self._refusals: tuple[Refusal, ...] = ()

    def take_secrets(self, gateway_secrets: Iterable[HeldSecret]) -> None:
        """Render the Secrets of the TLS port for the next snapshots."""
        rendered = {secret.name: secret for secret in render_secrets(gateway_secrets)}
        self._secrets = self._secrets.changed({**dict.fromkeys(self._secrets), **rendered})

    def build(self, plan: RoutingPlan) -> Snapshot:
        """Return the snapshot of `plan`."""
        no_hosts = dict.fromkeys(self._hosts.keys() - plan.hosts.keys())
        no_pools = dict.fromkeys(self._pools.keys() - plan.pools.keys())
        return self.apply(RoutingChange({**no_hosts, **plan.hosts}, {**no_pools, **plan.pools}))

    def apply(self, change: RoutingChange) -> Snapshot:
        """Return the snapshot of the last plan with `change`."""
        self._take_pools(change.pools)
        self._take_hosts(change.hosts)
        resources: dict[TypeUrl, ResourceSet] = {
            TypeUrl.CLUSTER: self._clusters,
            TypeUrl.ENDPOINT: self._endpoints,
            TypeUrl.LISTENER: self._listeners,
            TypeUrl.SCOPE: self._scopes.resources,
            TypeUrl.SECRET: self._secrets,
        }
        versions = {type_url: of_type.version for type_url, of_type in resources.items()}
        return Snapshot(
            revision=content_hash(versions[type_url] for type_url in TypeUrl),
            resources=MappingProxyType(resources),
            versions=MappingProxyType(versions),
            hosts=self._states,
            refusals=self._refusals,
        )

    def _take_pools(self, pools: Mapping[PoolKey, Pool | None]) -> None:
        cluster_changes: dict[str, Resource | None] = {}
        endpoint_changes: dict[str, Resource | None] = {}
        for key, pool in pools.items():
            if pool == self._pools.get(key):
                self.faults.clear(f"pool {key}")
                continue
            with self.faults.about(f"pool {key}"):
                rendered = {
                    clusters.cluster_name(key, protocol): (None, None)
                    if pool is None
                    else render_pool(pool, protocol)
                    for protocol in Protocol
                }
                cluster_changes |= {name: cluster for name, (cluster, _) in rendered.items()}
                endpoint_changes |= {name: endpoints for name, (_, endpoints) in rendered.items()}
                _keep(self._pools, key, pool)
        self._clusters = self._clusters.changed(cluster_changes)
        self._endpoints = self._endpoints.changed(endpoint_changes)

    def _take_hosts(self, planned: Mapping[HostKey, PlannedHost | None]) -> None:
        rendered: dict[str, _RenderedHost | None] = {}
        states: dict[HostKey, HostState | None] = {}
        refusals_changed = False
        for key, after in planned.items():
            before = self._hosts.get(key)
            if after == before:
                self.faults.clear(f"host {key}")
                continue
            with self.faults.about(f"host {key}"):
                if after is None or before is None or after.host != before.host:
                    rendered_host = None if after is None else _RenderedHost.of(after.host)
                    if before is not None:
                        rendered[before.host.name] = None
                    if after is not None:
                        rendered[after.host.name] = rendered_host
                states[key] = None if after is None else after.state
                refusals_changed = refusals_changed or bool(
                    (after and after.refusals) or (before and before.refusals)
                )
                _keep(self._hosts, key, after)
        self._scopes.take(rendered)
        self._states = self._states.changed(states)
        if refusals_changed:
            self._refusals = tuple(
                refusal for key in sorted(self._hosts) for refusal in self._hosts[key].refusals
            )


@dataclass(frozen=True, slots=True)
class _RenderedHost:
    """A virtual host as gateways get it: in a scope of its own, and as an alias if it has hosts."""

    scope: Resource
    alias: Resource | None

    @classmethod
    def of(cls, host: VirtualHost) -> _RenderedHost:
        alias = _resource(host.name, routes.encode_alias(host)) if host.hosts else None
        body = protos.any_of(routes.TYPE, routes.encode_scope(host))
        return cls(_resource(host.name, body, references=routes.referenced_clusters(host)), alias)


class _ScopeTable:
    """The scope of each virtual host, and the scope of all hosts, joined from serialised parts.

    Only a change of hosts joins a part again; the others are copied.
    """

    def __init__(self) -> None:
        self._aliases = ResourceSet()
        self._joined = [b""] * len(self._aliases.shards.parts)
        self.resources = ResourceSet().changed({routes.HOSTS: self._hosts()})

    def take(self, hosts: Mapping[str, _RenderedHost | None]) -> None:
        """Update virtual hosts by name; None for one that is deleted."""
        changes = {name: None if host is None else host.scope for name, host in hosts.items()}
        before = self._aliases
        self._aliases = before.changed(
            {name: None if host is None else host.alias for name, host in hosts.items()}
        )
        if self._aliases is not before:
            parts = zip(self._aliases.shards.parts, before.shards.parts, strict=True)
            for number, (new_part, old_part) in enumerate(parts):
                if new_part is not old_part:
                    self._joined[number] = routes.virtual_hosts(
                        new_part[name].body for name in sorted(new_part)
                    )
            changes[routes.HOSTS] = self._hosts()
        self.resources = self.resources.changed(changes)

    def _hosts(self) -> Resource:
        body = protos.any_of(routes.TYPE, routes.encode_hosts(self._joined))
        return Resource(routes.HOSTS, content_hash([self._aliases.version]), body)


def _resource(
    name: str, body: bytes, *, stand_in: bool = False, references: frozenset[str] = frozenset()
) -> Resource:
    version = f"{_STAND_IN if stand_in else ''}{body_hash(body)}"
    return Resource(name, version, body, references=references)


def _keep(values: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def render_pool(pool: Pool, protocol: Protocol) -> tuple[Resource, Resource]:
    """Render the cluster of a pool and its endpoints.

    The version of the endpoints covers the cluster's configuration too.
    A changed cluster waits for its endpoints, up to 15 s and without a message; so they are sent again whenever it changes.
    """
    name = clusters.cluster_name(pool.backend, protocol)
    cluster_body = protos.any_of(clusters.TYPE, clusters.encode(name, pool, protocol))
    cluster = Resource(name, body_hash(cluster_body), cluster_body)
    body = protos.any_of(endpoints.TYPE, endpoints.encode(name, pool, protocol))
    version = body_hash(body, cluster.version)
    return cluster, Resource(name, version, body, vacant=not pool.endpoints)


def render_secrets(secret_states: Iterable[HeldSecret]) -> Iterator[Resource]:
    """Render a resource for each Secret of the TLS port.

    Envoy serves the port only once it has all secrets that the listener names.
    So a certificate that was never valid is replaced by another that is, and an authority by one that verifies no client.
    Both are stand-ins: a gateway that has something from an earlier stream keeps that.
    If no certificate was ever valid there is none to send.
    """
    states = tuple(secret_states)
    any_certificate = next(
        (state.content for state in states if isinstance(state.content, Certificate)), None
    )
    for state in states:
        if state.role is SecretRole.CLIENT_AUTHORITY:
            name = secrets.authority_name(state.name)
            trusted = state.content if isinstance(state.content, Authority) else None
            encoded = secrets.encode_authority(name, trusted)
        elif any_certificate is not None:
            name = secrets.certificate_name(state.name)
            served = state.content if isinstance(state.content, Certificate) else any_certificate
            encoded = secrets.encode_certificate(name, served)
        else:
            continue
        yield _resource(name, protos.any_of(secrets.TYPE, encoded), stand_in=state.content is None)
