"""The two protocols: how each kind of proxy subscribes, what a response to it contains, and how its requests are read.

Gateways use delta (DeltaAggregatedResources): requests and responses contain what changed, so a change costs its own size on the wire.
A gateway that reconnects names the version of each resource that it has, so only resources that differ are sent.

gRPC clients use state of the world (StreamAggregatedResources): each request repeats all names, and each response all clusters or listeners.
A gRPC library subscribes to everything by name: listeners first, then the clusters of their routes, then the endpoints of those.
It accepts or rejects each resource of a response by itself, so a rejected resource affects no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from tidegate.xds.inspection import ProxyKind
from tidegate.xds.messages import DeltaRequest, SotwRequest
from tidegate.xds.proxyless import build_placeholder_cluster
from tidegate.xds.resources import TypeUrl, XdsResource
from tidegate.xds.stream import DiscoveryStream
from tidegate.xds.subscription import DELETED_TYPES, Change, Subscription


@dataclass(slots=True)
class DeltaSubscription(Subscription):
    """One type on the stream of a gateway: all clusters, listeners and scopes; endpoints and secrets by name."""

    @classmethod
    def from_first_request(
        cls, type_url: TypeUrl, names: Set[str], versions: Mapping[str, str]
    ) -> DeltaSubscription:
        """Return the subscription that the first request of a type opens.

        `versions` are the versions of the resources that the gateway has from an earlier stream.
        """
        unseen = {name: XdsResource(name, version, b"") for name, version in versions.items()}
        return cls(
            type_url,
            None if type_url in DELETED_TYPES else set(names),
            accepted=dict(unseen) if unseen else None,
            sent=dict(unseen),
            unseen=unseen,
        )

    def response_content(self, change: Change) -> Change:
        """Return `change`, and nothing else."""
        return change

    def change_names(self, added: Set[str], removed: Set[str]) -> None:
        """Apply the names that a request adds and removes. A name that is added again is sent again."""
        if self.names is not None:
            self.names -= removed
            self.names |= added
            self.forget(removed)
        self.forget(added)


class DeltaStream(DiscoveryStream[DeltaRequest]):
    """The stream of one gateway."""

    KIND: ClassVar[ProxyKind] = ProxyKind.GATEWAY

    def _apply_request(self, type_url: TypeUrl, request: DeltaRequest) -> None:
        subscription = self._state.get(type_url)
        if isinstance(subscription, DeltaSubscription):
            if request.nonce and request.nonce == subscription.nonce:
                self._record_answer(subscription, request.error)
            subscription.change_names(request.subscribe, request.unsubscribe)
        else:
            opened = DeltaSubscription.from_first_request(type_url, request.subscribe, request.versions)
            self._open_subscription(opened, resumed=bool(request.versions))


@dataclass(slots=True)
class SotwSubscription(Subscription):
    """One type on the stream of a gRPC client.

    `returning` are the names of the client's resources from an earlier stream; only their names are known.
    """

    returning: Set[str] = frozenset()

    @classmethod
    def from_first_request(cls, type_url: TypeUrl, names: Set[str], *, resumed: bool) -> SotwSubscription:
        """Return the subscription that the first request of a type opens; `resumed`: the client has resources from an earlier stream."""
        returning = names if resumed else frozenset[str]()
        return cls(type_url, set(names), returning=returning, _touched=set(returning))

    def response_content(self, change: Change) -> Change:
        """Return `change`, or all clusters or listeners as they are after it: the client deletes each that a response leaves out."""
        if self.type_url not in DELETED_TYPES:
            return change
        after = {**(self.accepted or {}), **change}
        return {name: resource for name, resource in after.items() if resource is not None}

    def is_emptied_by(self, endpoints: XdsResource) -> bool:
        """Return whether `endpoints` is empty and the client has some under that name, or may have from an earlier stream."""
        if not endpoints.vacant:
            return False
        accepted = self.get(endpoints.name)
        return endpoints.name in self.returning if accepted is None else not accepted.vacant

    def kept_resource(self, name: str) -> XdsResource | None:
        """Return the resource to send so that nothing changes under `name`.

        A cluster from an earlier stream needs a placeholder, or the client deletes it.
        """
        accepted = self.get(name)
        if accepted is None and self.type_url is TypeUrl.CLUSTER and name in self.returning:
            return build_placeholder_cluster(name)
        return accepted

    def record_nack(self, reason: str) -> None:
        """Record that the client rejected some of a response; it uses the rest."""
        self.record_ack()
        self.error = reason

    def replace_names(self, names: Set[str]) -> None:
        """Subscribe to `names` and to nothing else."""
        if self.names is None or names == self.names:
            return
        dropped = self.names - names
        self._touched |= self.names ^ names
        self.names = set(names)
        self.returning -= dropped
        self.forget(dropped)


class SotwStream(DiscoveryStream[SotwRequest]):
    """The stream of one gRPC client."""

    KIND: ClassVar[ProxyKind] = ProxyKind.GRPC_CLIENT

    def _apply_request(self, type_url: TypeUrl, request: SotwRequest) -> None:
        subscription, resumed = self._state.get(type_url), bool(request.version)
        if not isinstance(subscription, SotwSubscription):
            self._open_subscription(
                SotwSubscription.from_first_request(type_url, request.names, resumed=resumed), resumed=resumed
            )
        elif request.nonce == subscription.nonce:
            self._record_answer(subscription, request.error)
            subscription.replace_names(request.names)
        # Otherwise it answers an older response; its answer to the newer response follows, with its newest list of names.
