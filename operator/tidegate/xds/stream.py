"""The stream of a gRPC client without a gateway (StreamAggregatedResources): state of the world.

Each request repeats all names, and each response all clusters or listeners.
A gRPC library asks for everything by name: listeners first, then the clusters of their routes, then the endpoints of those.
It takes the resources of a response one by one, so what it rejects concerns nothing else.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar

from tidegate.routing.grpc.snapshot import stand_in
from tidegate.routing.snapshot import Resource, TypeUrl
from tidegate.xds.inspection import ProxyKind
from tidegate.xds.messages import DiscoveryRequest
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import WHOLE, Subscription
from tidegate.xds.suspects import Change


@dataclass(slots=True)
class WorldSubscription(Subscription):
    """One type on the stream of a gRPC client.

    `returning` are the names of what the client has from an earlier stream, and of which nothing else is known.
    """

    returning: Set[str] = frozenset()

    @classmethod
    def first(cls, type_url: TypeUrl, request: DiscoveryRequest) -> WorldSubscription:
        """Return the subscription that the first request of a type opens."""
        returning = request.names if request.version else frozenset[str]()
        return cls(type_url, set(request.names), returning=returning, _touched=set(returning))

    def content(self, change: Change) -> Change:
        """Return all clusters or listeners as they are after `change`: the client deletes those that a response leaves out."""
        if self.type_url not in WHOLE:
            return change
        whole = {**(self.accepted or {}), **change}
        return {name: resource for name, resource in whole.items() if resource is not None}

    def may_have_endpoints(self, name: str) -> bool:
        """Return whether the client has endpoints under `name`, or may have some from an earlier stream."""
        held = self.held(name)
        return name in self.returning if held is None else not held.vacant

    def kept(self, name: str) -> Resource | None:
        """Return what keeps `name` as it is. A response without a cluster from an earlier stream would delete that cluster."""
        held = self.held(name)
        if held is None and self.type_url is TypeUrl.CLUSTER and name in self.returning:
            return stand_in(name)
        return held

    def refuse(self, error: str) -> None:
        """Record that the client rejects some of a response; it uses the rest, and goes on with what it had of those."""
        self.accept()
        self.error = error

    def ask_for(self, names: Set[str]) -> None:
        """Replace the names by those of the newest request."""
        if self.names is None or names == self.names:
            return
        gone = frozenset(self.names - names)
        self._touched |= self.names ^ names
        self.names = set(names)
        self.returning -= gone
        self.forget(gone)


class AdsStream(DiscoveryStream[DiscoveryRequest]):
    """The stream of one gRPC client; the steps are those of xds.steps."""

    KIND: ClassVar[ProxyKind] = ProxyKind.GRPC_CLIENT

    def _take(self, type_url: TypeUrl, request: DiscoveryRequest) -> None:
        subscription = self._holdings.get(type_url)
        if not isinstance(subscription, WorldSubscription):
            self._gate.warm = self._gate.warm or bool(request.version)
            self._holdings.subscriptions[type_url] = WorldSubscription.first(type_url, request)
        elif request.nonce == subscription.nonce:
            self._answered(subscription, request.error)
            subscription.ask_for(request.names)
        # Else it answers an older response; it answers the newer one too, with its newest list of names.
