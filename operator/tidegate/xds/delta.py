"""The stream of a gateway (DeltaAggregatedResources): requests and responses hold what changed, so a change costs its own size on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from tidegate.routing.snapshot import Resource, TypeUrl
from tidegate.xds.delta_messages import DeltaRequest
from tidegate.xds.inspection import ProxyKind
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import WHOLE, Subscription
from tidegate.xds.suspects import Change


@dataclass(slots=True)
class DeltaSubscription(Subscription):
    """One type on the stream of a gateway: all clusters, listeners and scopes; endpoints and secrets by name."""

    @classmethod
    def first(cls, type_url: TypeUrl, names: Set[str], versions: Mapping[str, str]) -> DeltaSubscription:
        """Return the subscription that the first request of a type opens.

        `versions` are those of the resources that the gateway has from an earlier stream.
        """
        unseen = {name: Resource(name, version, b"") for name, version in versions.items()}
        return cls(
            type_url,
            None if type_url in WHOLE else set(names),
            accepted=dict(unseen) if unseen else None,
            sent=dict(unseen),
            unseen=unseen,
        )

    def content(self, change: Change) -> Change:
        """Return what a response holds that makes `change`: nothing else."""
        return change

    def subscribe(self, added: Set[str], removed: Set[str]) -> None:
        """Apply the names that a request adds and removes. A name that is added again is sent again."""
        if self.names is not None:
            self.names -= removed
            self.names |= added
            self.forget(removed)
        self.forget(added)


class DeltaStream(DiscoveryStream[DeltaRequest]):
    """The stream of one gateway; the steps are those of xds.steps.

    A gateway that reconnects names the version of everything that it has, so it is sent only what differs.
    """

    KIND: ClassVar[ProxyKind] = ProxyKind.GATEWAY

    def _take(self, type_url: TypeUrl, request: DeltaRequest) -> None:
        subscription = self._holdings.get(type_url)
        if isinstance(subscription, DeltaSubscription):
            if request.nonce and request.nonce == subscription.nonce:
                self._answered(subscription, request.error)
            subscription.subscribe(request.subscribe, request.unsubscribe)
        else:
            self._gate.warm = self._gate.warm or bool(request.versions)
            self._holdings.subscriptions[type_url] = DeltaSubscription.first(
                type_url, request.subscribe, request.versions
            )
