"""The resources that a proxy runs, as values: what the xDS server sends, and what two replicas agree on byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import clusters, endpoints, listener, routes
from tidegate.routing.hosts import HostKey
from tidegate.routing.ir import Pool, Protocol
from tidegate.routing.planner import HostState, RoutingPlan
from tidegate.routing.refusals import Refusal

_VERSION_LENGTH: Final = 16


class TypeUrl(StrEnum):
    """The types of resources that are served."""

    CLUSTER = protos.TYPE_URL_PREFIX + clusters.TYPE
    ENDPOINT = protos.TYPE_URL_PREFIX + endpoints.TYPE
    LISTENER = protos.TYPE_URL_PREFIX + listener.TYPE
    ROUTE = protos.TYPE_URL_PREFIX + routes.TYPE


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, serialised once for all proxies.

    `body` is a serialised google.protobuf.Any; `version` is a hash of the content.
    `vacant` marks endpoints of which there are none: they must not arrive while a route still leads there.
    """

    name: str
    version: str
    body: bytes
    vacant: bool = False


Resources = Mapping[str, Resource]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent state of all resources.

    `revision` and `versions` are hashes of the content: equal content has equal ones in every replica and after every restart.
    `hosts` says which objects this state is made from.
    """

    revision: str
    resources: Mapping[TypeUrl, Resources]
    versions: Mapping[TypeUrl, str]
    hosts: Mapping[HostKey, HostState]
    refusals: tuple[Refusal, ...] = ()


def content_hash(parts: Iterable[str | bytes]) -> str:
    """A short name for `parts`, in their order; collisions are out of reach of chance (64 bits)."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:_VERSION_LENGTH]


def version_of(resources: Resources) -> str:
    """The version of a set of resources: a hash over their names and versions."""
    return content_hash(part for name in sorted(resources) for part in (name, resources[name].version))


@dataclass(slots=True)
class RenderedPools:
    """Cluster and endpoints by pool: what one build leaves for the next."""

    by_pool: dict[tuple[Pool, Protocol], tuple[Resource, Resource]] = field(
        default_factory=dict[tuple[Pool, Protocol], tuple[Resource, Resource]]
    )


class SnapshotBuilder:
    """Turns routing plans into snapshots, and renders again only what changed since the last one.

    What it remembers changes the speed and never the result.
    """

    def __init__(self, settings: listener.ListenerSettings) -> None:
        body = protos.any_of(listener.TYPE, listener.encode(settings))
        self._listener = Resource(listener.NAME, content_hash([body]), body)
        self._hosts = routes.RenderedHosts()
        self._pools = RenderedPools()

    def build(self, plan: RoutingPlan) -> Snapshot:
        """The snapshot of `plan`."""
        cluster_set, endpoint_set = self._render_pools(plan.ir.pools)
        route_body = protos.any_of(routes.TYPE, routes.encode(plan.ir.hosts, self._hosts))
        route = Resource(routes.NAME, content_hash([route_body]), route_body)
        resources: dict[TypeUrl, Resources] = {
            TypeUrl.CLUSTER: MappingProxyType(cluster_set),
            TypeUrl.ENDPOINT: MappingProxyType(endpoint_set),
            TypeUrl.LISTENER: MappingProxyType({self._listener.name: self._listener}),
            TypeUrl.ROUTE: MappingProxyType({route.name: route}),
        }
        versions = {type_url: version_of(of_type) for type_url, of_type in resources.items()}
        return Snapshot(
            revision=content_hash(versions[type_url] for type_url in TypeUrl),
            resources=MappingProxyType(resources),
            versions=MappingProxyType(versions),
            hosts=MappingProxyType(dict(plan.hosts)),
            refusals=plan.refusals,
        )

    def _render_pools(self, pools: Iterable[Pool]) -> tuple[dict[str, Resource], dict[str, Resource]]:
        known = self._pools.by_pool
        self._pools.by_pool = {
            (pool, protocol): known.get((pool, protocol)) or render_pool(pool, protocol)
            for pool in pools
            for protocol in Protocol
        }
        rendered = self._pools.by_pool.values()
        return {cluster.name: cluster for cluster, _ in rendered}, {
            assignment.name: assignment for _, assignment in rendered
        }


def render_pool(pool: Pool, protocol: Protocol) -> tuple[Resource, Resource]:
    """The cluster and its endpoints.

    The version of the endpoints covers the cluster's configuration too.
    A changed cluster is a new one that waits for its endpoints, up to 15 s and without a word; so they are sent again whenever it changes.
    """
    name = clusters.cluster_name(pool.backend, protocol)
    cluster_body = protos.any_of(clusters.TYPE, clusters.encode(pool, protocol))
    cluster = Resource(name, content_hash([cluster_body]), cluster_body)
    body = protos.any_of(endpoints.TYPE, endpoints.encode(pool, protocol))
    version = content_hash([body, cluster.version])
    return cluster, Resource(name, version, body, vacant=not pool.endpoints)


def placeholder_cluster(name: str) -> Resource | None:
    """A stand-in for a cluster that this process never knew, to keep it alive until no route leads there.

    It equals the real one where no retry budget was set; where one was, Envoy goes on with the real one while the stand-in waits for endpoints.
    None for a name that is not one of ours.
    """
    parsed = clusters.parse_cluster_name(name)
    if parsed is None:
        return None
    backend, protocol = parsed
    return render_pool(Pool(backend, ()), protocol)[0]
