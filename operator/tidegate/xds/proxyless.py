"""The snapshots for gRPC clients without a gateway; nothing is rendered before the first of them connects."""

from __future__ import annotations

from typing import Final, TypeVar

from tidegate.routing import protos, proxyless
from tidegate.routing.envoy import clusters, endpoints, listener
from tidegate.routing.envoy_names import cluster_name, parse_cluster_name
from tidegate.routing.hosts import HostKey
from tidegate.routing.incremental import RoutingChange
from tidegate.routing.ir import EndpointPool, InferenceProtocol, PoolKey, VirtualHost
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyKind
from tidegate.xds.resources import NO_RESOURCES, Snapshot, TypeUrl, XdsResource, build_resource

K = TypeVar("K")
V = TypeVar("V")

_USER_AGENT: Final = "gRPC"


def kind_from_user_agent(user_agent: str) -> ProxyKind:
    """Return the kind of a proxy by the name it gives itself; gRPC libraries are `gRPC C-core …`, `gRPC Java`, `gRPC Go`."""
    return ProxyKind.GRPC_CLIENT if user_agent.startswith(_USER_AGENT) else ProxyKind.GATEWAY


class GrpcSnapshots:
    """Renders the same routing as the gateways' snapshots have, for gRPC clients."""

    def __init__(self) -> None:
        self._builder = GrpcSnapshotBuilder()
        self._cache = SnapshotCache()
        self._open = False
        self._ready = False

    def apply_change(self, change: RoutingChange) -> None:
        """Apply a change of the routing; the first one contains everything."""
        self._builder.apply_change(change)
        self._ready = True
        self._publish_snapshot()

    @property
    def newest_snapshot(self) -> Snapshot | None:
        """Newest snapshot; None before the first client."""
        return self._cache.snapshot

    def open_cache(self) -> SnapshotCache:
        """Return the cache of these snapshots; the first call renders one."""
        if not self._open:
            self._open = True
            self._publish_snapshot()
        return self._cache

    def _publish_snapshot(self) -> None:
        if self._open and self._ready:
            self._cache.set(self._builder.build_snapshot())


class GrpcSnapshotBuilder:
    """Collects changes of the routing and renders what changed since the last snapshot."""

    def __init__(self) -> None:
        self._listeners = NO_RESOURCES
        self._clusters = NO_RESOURCES
        self._endpoints = NO_RESOURCES
        self._names: dict[HostKey, tuple[str, ...]] = {}
        self._hosts: dict[HostKey, VirtualHost | None] = {}
        self._pools: dict[PoolKey, EndpointPool | None] = {}

    def apply_change(self, change: RoutingChange) -> None:
        """Record a change, to be rendered by the next `build_snapshot`."""
        for key, planned in change.hosts.items():
            _record_pending(
                self._hosts, key, None if planned is None else planned.host, rendered=key in self._names
            )
        for pool_key, pool in change.pools.items():
            _record_pending(
                self._pools, pool_key, pool, rendered=_grpc_cluster_name(pool_key) in self._clusters
            )

    def build_snapshot(self) -> Snapshot:
        """Return the snapshot with all changes that were recorded."""
        self._render_hosts()
        self._render_pools()
        resources = dict.fromkeys(TypeUrl, NO_RESOURCES) | {
            TypeUrl.CLUSTER: self._clusters,
            TypeUrl.ENDPOINT: self._endpoints,
            TypeUrl.LISTENER: self._listeners,
        }
        return Snapshot.from_sets(resources, {})

    def _render_hosts(self) -> None:
        deleted: dict[str, XdsResource | None] = {}
        rendered: dict[str, XdsResource | None] = {}
        for key, host in self._hosts.items():
            deleted |= dict.fromkeys(self._names.pop(key, ()))
            # Without a gateway nothing authenticates callers, so an access with a guard is left out.
            if host is not None and host.guard is None:
                self._names[key] = host.hosts
                rendered |= {name: _render_listener(name, host) for name in host.hosts}
        self._hosts = {}
        # A host may have moved from one access to another.
        self._listeners = self._listeners.with_changes(deleted | rendered)

    def _render_pools(self) -> None:
        rendered = {
            _grpc_cluster_name(key): None if pool is None else _render_pool(pool)
            for key, pool in self._pools.items()
        }
        self._pools = {}
        self._clusters = self._clusters.with_changes(
            {name: pair and pair[0] for name, pair in rendered.items()}
        )
        self._endpoints = self._endpoints.with_changes(
            {name: pair and pair[1] for name, pair in rendered.items()}
        )


def _record_pending(pending: dict[K, V | None], key: K, value: V | None, *, rendered: bool) -> None:
    """Record a pending value; one that is deleted before it was ever rendered is forgotten."""
    if value is None and not rendered:
        pending.pop(key, None)
    else:
        pending[key] = value


def build_placeholder_cluster(name: str) -> XdsResource | None:
    """Return an empty cluster for a client that has it from an earlier stream; None for a name that is not ours."""
    parsed = parse_cluster_name(name)
    return None if parsed is None else _render_pool(EndpointPool(parsed[0], ()))[0]


def _grpc_cluster_name(key: PoolKey) -> str:
    return cluster_name(key, InferenceProtocol.GRPC)


def _render_listener(name: str, host: VirtualHost) -> XdsResource:
    return build_resource(name, protos.encode_any(listener.TYPE, proxyless.encode_listener(name, host)))


def _render_pool(pool: EndpointPool) -> tuple[XdsResource, XdsResource]:
    name = _grpc_cluster_name(pool.backend)
    pods = protos.encode_any(endpoints.TYPE, proxyless.encode_endpoints(pool))
    return (
        build_resource(name, protos.encode_any(clusters.TYPE, proxyless.encode_cluster(pool))),
        build_resource(name, pods, vacant=not pool.answering_pods),
    )
