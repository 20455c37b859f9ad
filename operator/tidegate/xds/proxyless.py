"""The snapshots for gRPC clients that speak xDS themselves; nothing is rendered before the first of them connects."""

from __future__ import annotations

from typing import Final

from tidegate.routing.grpc.snapshot import GrpcSnapshotBuilder
from tidegate.routing.live import RoutingChange
from tidegate.routing.snapshot import Snapshot
from tidegate.xds.cache import SnapshotCache

_USER_AGENT: Final = "gRPC"


def is_grpc_client(user_agent: str) -> bool:
    """Whether this is how a gRPC library introduces itself: `gRPC C-core …`, `gRPC Java`, `gRPC Go`."""
    return user_agent.startswith(_USER_AGENT)


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
