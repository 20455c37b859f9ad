"""The snapshots for gRPC clients that speak xDS themselves; nothing is rendered before the first of them connects."""

from __future__ import annotations

from typing import Final

from tidegate.routing.grpc.snapshot import GrpcSnapshotBuilder
from tidegate.routing.live import RoutingChange
from tidegate.routing.snapshot import Snapshot
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.inspection import ProxyKind

_USER_AGENT: Final = "gRPC"


def kind_from_user_agent(user_agent: str) -> ProxyKind:
    """Return the kind of a proxy by the name it gives itself; gRPC libraries are `gRPC C-core …`, `gRPC Java`, `gRPC Go`."""
    return ProxyKind.GRPC_CLIENT if user_agent.startswith(_USER_AGENT) else ProxyKind.GATEWAY


class GrpcSnapshots:
    """Follows the routing beside the gateways' snapshots."""

    def __init__(self) -> None:
        self._builder = GrpcSnapshotBuilder()
        self._cache = SnapshotCache()
        self._asked = False
        self._ready = False

    def take(self, change: RoutingChange) -> None:
        """A change of the routing; the first is the whole."""
        self._builder.take(change)
        self._ready = True
        self._publish()

    @property
    def rendered(self) -> Snapshot | None:
        """The newest, None while nobody has asked."""
        return self._cache.snapshot

    def open(self) -> SnapshotCache:
        """The cache that gRPC clients are led by; the first caller waits for the rendering."""
        if not self._asked:
            self._asked = True
            self._publish()
        return self._cache

    def _publish(self) -> None:
        if self._asked and self._ready:
            self._cache.set(self._builder.snapshot())
