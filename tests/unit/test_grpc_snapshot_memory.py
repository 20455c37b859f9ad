"""What the builder for gRPC clients remembers before anybody asks."""

from __future__ import annotations

from tidegate.api.meta import ObjectKey
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.incremental import RoutingChange
from tidegate.xds.proxyless import GrpcSnapshotBuilder


def test_what_came_and_went_before_anybody_asked_is_forgotten() -> None:
    builder = GrpcSnapshotBuilder()
    for number in range(100):
        key = HostKey(HostKind.ACCESS, ObjectKey("ads", f"a{number}"))
        builder.apply_change(RoutingChange({key: None}, {}))
    assert builder._hosts == {}
