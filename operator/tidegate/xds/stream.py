"""The stream of a proxy that speaks 'state of the world': each request repeats all names, each response all clusters or listeners."""

from __future__ import annotations

from typing import ClassVar, Final

from tidegate.routing.snapshot import TypeUrl
from tidegate.xds.messages import DiscoveryRequest
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import WHOLE, WILDCARD, Subscription

# A proxy that comes with resources repeats all its subscriptions in one burst; this is long for a burst.
_REPEATS_WITHIN_S: Final = 0.5


class AdsStream(DiscoveryStream[DiscoveryRequest]):
    """The stream of one proxy (StreamAggregatedResources); the steps are those of xds.steps."""

    DIALECT: ClassVar[str] = "state of the world"

    def _take(self, type_url: TypeUrl, request: DiscoveryRequest, now: float) -> None:
        subscription = self._subscriptions.get(type_url)
        if subscription is None:
            self._subscribe(type_url, request, now)
        elif request.nonce == subscription.nonce:
            self._answered(subscription, request.error)
            subscription.ask_for(request.names)
        # Else it answers an older response; it answers the newer one too, with its newest list of names.

    def _subscribe(self, type_url: TypeUrl, request: DiscoveryRequest, now: float) -> None:
        if request.version and not self._warm:
            self._warm = True
            self._repeats_until = now + _REPEATS_WITHIN_S
        everything = type_url in WHOLE and (not request.names or WILDCARD in request.names)
        self._subscriptions[type_url] = Subscription(type_url, None if everything else request.names)
