"""The stream of a proxy that speaks 'delta': requests and responses hold what changed, so a change costs its own size on the wire."""

from __future__ import annotations

from typing import ClassVar

from tidegate.routing.snapshot import TypeUrl
from tidegate.xds.delta_messages import DeltaRequest
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import DeltaSubscription


class DeltaStream(DiscoveryStream[DeltaRequest]):
    """The stream of one proxy (DeltaAggregatedResources); the steps are those of xds.steps.

    A proxy that comes back names the version of everything that it has, so that it is sent nothing twice, and needs no stand-ins.
    """

    DIALECT: ClassVar[str] = "delta"

    def _take(self, type_url: TypeUrl, request: DeltaRequest, now: float) -> None:
        subscription = self._subscriptions.get(type_url)
        if isinstance(subscription, DeltaSubscription):
            if request.nonce and request.nonce == subscription.nonce:
                self._answered(subscription, request.error)
            subscription.subscribe(request.subscribe, request.unsubscribe)
        else:
            self._warm = self._warm or bool(request.versions)
            self._subscriptions[type_url] = DeltaSubscription.first(
                type_url, request.subscribe, request.versions
            )
