"""The stream of a proxy that speaks 'state of the world': each request repeats all names, each response all clusters or listeners."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.routing.snapshot import TypeUrl
from tidegate.xds.inspection import ProxyKind
from tidegate.xds.messages import DiscoveryRequest
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import WHOLE, WILDCARD, Subscription
from tidegate.xds.suspects import Change

# A proxy that comes with resources repeats all its subscriptions in one burst; this is long for a burst.
_REPEATS_WITHIN_S: Final = 0.5


@dataclass(slots=True)
class WorldSubscription(Subscription):
    """One type on one stream in this dialect: what a response leaves out is deleted, so what stays is repeated.

    What a refused response changed is therefore halved beside all that the proxy has accepted before.
    """

    def content(self, change: Change) -> Change:
        """The whole set after `change` where a response is the whole set."""
        if self.type_url not in WHOLE:
            return change
        whole = {**(self.accepted or {}), **change}
        return {name: resource for name, resource in whole.items() if resource is not None}

    def send(self, change: Change, nonce: str) -> frozenset[str]:
        """`change` is on its way; what was sent and refused before, and is not in it, is deleted as well."""
        before, self.sent = self.sent, dict(self.sent)
        if self.type_url in WHOLE:
            self.sent = dict(self.accepted or {})
        Subscription.send(self, change, nonce)  # super() does not know the class with slots
        gone = frozenset(before.keys() - self.sent.keys())
        self._touched |= gone
        return gone

    def may_change(self, change: Change) -> Set[str]:
        """Of everything that was refused some part may be in use, and is put back if it is not sent again."""
        return change.keys() | self.suspects.refused.keys()

    def refuse(self, error: str) -> None:
        """The proxy refused what is in flight and keeps what it had.

        Who asks for clusters or listeners by name is a gRPC client: it takes each by itself and goes on with all that are good.
        To halve a response would take them away from it, so it is left with what it was sent.
        """
        if self.type_url not in WHOLE or self.names is None:
            Subscription.refuse(self, error)
            return
        self.accept()
        self.error = error

    def ask_for(self, names: Set[str]) -> None:
        """The proxy's newest list of names. Nothing changes for one that asked for everything."""
        if self.names is None or names == self.names:
            return
        gone = frozenset(self.names - names)
        self._touched |= self.names ^ names
        self.names = names
        if self.type_url not in WHOLE:
            self.forget(gone)


class AdsStream(DiscoveryStream[DiscoveryRequest]):
    """The stream of one proxy (StreamAggregatedResources); the steps are those of xds.steps."""

    KIND: ClassVar[ProxyKind] = ProxyKind.GRPC_CLIENT

    def _take(self, type_url: TypeUrl, request: DiscoveryRequest, now: float) -> None:
        subscription = self._holdings.get(type_url)
        if not isinstance(subscription, WorldSubscription):
            self._subscribe(type_url, request, now)
        elif request.nonce == subscription.nonce:
            self._answered(subscription, request.error)
            subscription.ask_for(request.names)
        # Else it answers an older response; it answers the newer one too, with its newest list of names.

    def _subscribe(self, type_url: TypeUrl, request: DiscoveryRequest, now: float) -> None:
        if request.version and not self._gate.warm:
            self._gate.warm = True
            self._repeats_until = now + _REPEATS_WITHIN_S
        everything = type_url in WHOLE and (not request.names or WILDCARD in request.names)
        self._holdings.subscriptions[type_url] = WorldSubscription(
            type_url, None if everything else request.names
        )
