"""The snapshots for gRPC clients without a gateway; nothing is rendered before the first of them connects."""

from __future__ import annotations

from typing import Final

from tidegate.routing.grpc.snapshot import GrpcSnapshotBuilder
from tidegate.routing.incremental import RoutingChange
from tidegate.routing.snapshot import Snapshot
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyKind

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
