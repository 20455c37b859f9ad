"""The snapshot for gRPC clients: from the same plan as the gateways', and rendered only for a client."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, TypeVar

from tidegate.routing import protos
from tidegate.routing.envoy.clusters import cluster_name, parse_cluster_name
from tidegate.routing.grpc import clusters, listeners
from tidegate.routing.hosts import HostKey
from tidegate.routing.incremental import RoutingChange
from tidegate.routing.ir import EndpointPool, InferenceProtocol, PoolKey, VirtualHost
from tidegate.routing.snapshot import ResourceSet, Snapshot, TypeUrl, XdsResource, content_hash

K = TypeVar("K")
V = TypeVar("V")

_NOTHING: Final = ResourceSet()


class GrpcSnapshotBuilder:
    """Collects changes of the routing and renders what changed since the last snapshot."""

    def __init__(self) -> None:
        self._listeners = ResourceSet()
        self._clusters = ResourceSet()
        self._endpoints = ResourceSet()
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
        resources = dict.fromkeys(TypeUrl, _NOTHING) | {
            TypeUrl.CLUSTER: self._clusters,
            TypeUrl.ENDPOINT: self._endpoints,
            TypeUrl.LISTENER: self._listeners,
        }
        versions = {kind: of_kind.version for kind, of_kind in resources.items()}
        return Snapshot(
            revision=content_hash(versions[kind] for kind in TypeUrl),
            resources=MappingProxyType(resources),
            versions=MappingProxyType(versions),
            hosts=MappingProxyType({}),
        )

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


def build_stand_in(name: str) -> XdsResource | None:
    """Return an empty cluster for a client that has it from an earlier stream; None for a name that is not ours."""
    parsed = parse_cluster_name(name)
    return None if parsed is None else _render_pool(EndpointPool(parsed[0], ()))[0]


def _grpc_cluster_name(key: PoolKey) -> str:
    return cluster_name(key, InferenceProtocol.GRPC)


def _render_listener(name: str, host: VirtualHost) -> XdsResource:
    body = protos.encode_any(listeners.TYPE, listeners.encode_listener(name, host))
    return XdsResource(name, content_hash([body]), body)


def _render_pool(pool: EndpointPool) -> tuple[XdsResource, XdsResource]:
    name = _grpc_cluster_name(pool.backend)
    body = protos.encode_any(clusters.TYPE, clusters.encode_cluster(pool))
    pods = protos.encode_any(clusters.ENDPOINTS_TYPE, clusters.encode_endpoints(pool))
    return (
        XdsResource(name, content_hash([body]), body),
        XdsResource(name, content_hash([pods]), pods, vacant=not pool.endpoints),
    )
