"""The layer of admitted shares for gateways: renewed while it limits anything, and dropped by them when it is not.

It is not a part of the snapshots: it changes every second, and nothing waits until gateways have accepted it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.routing import protos
from tidegate.routing.envoy import prices
from tidegate.routing.envoy_names import SHARES_LAYER
from tidegate.xds.messages import DeltaRequest, DiscoveryResponse
from tidegate.xds.resources import XdsResource

SHARES_TYPE_URL: Final = protos.TYPE_URL_PREFIX + prices.TYPE

SHARES_TTL_S: Final = 10.0
"""How long gateways use the shares that nobody renews; then they admit everything."""


class AdmittedShares:
    """Holds the newest admitted shares by route; at first, every route admits everything.

    Not thread-safe: everything happens on the server's event loop.
    """

    def __init__(self, ttl_s: float = SHARES_TTL_S) -> None:
        self._ttl_s = ttl_s
        self._shares: Mapping[str, float] = {}
        self._version = 0
        self._listeners: list[Callable[[], None]] = []
        self.resource = self._build_resource()

    @property
    def by_route(self) -> Mapping[str, float]:
        """Newest shares of the routes that do not admit everything."""
        return self._shares

    def publish_shares(self, shares: Mapping[str, float]) -> None:
        """Make `shares` the newest; unchanged shares are renewed. Raises ValueError for a share outside 0 to 1."""
        limiting = {route: share for route, share in shares.items() if share != 1}
        if not limiting and not self._shares:
            return
        body = prices.encode_layer(limiting)
        self._shares = limiting
        self._version += 1
        self.resource = self._build_resource(body)
        for wake in tuple(self._listeners):
            wake()

    def add_listener(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must not block, after every change and renewal."""
        self._listeners.append(wake)

    def _build_resource(self, body: bytes | None = None) -> XdsResource:
        ttl_s = self._ttl_s if self._shares else None
        return XdsResource(
            SHARES_LAYER, str(self._version), body or prices.encode_layer(self._shares), ttl_s=ttl_s
        )


class SharesStream:
    """What one gateway has of the layer. One response is in flight at a time, so a slow gateway gets only the newest."""

    def __init__(self) -> None:
        self._subscribed = False
        self._sent: XdsResource | None = None
        self._nonce = 0
        self._in_flight = False

    def advance_stream(self, request: object | None, newest: XdsResource) -> list[DiscoveryResponse]:
        """Take a request of any kind, None for none, and return the response with the newest layer if one is due.

        What a gateway rejects is replaced by the next shares.
        """
        if isinstance(request, DeltaRequest) and request.type_url == SHARES_TYPE_URL:
            if SHARES_LAYER in request.subscribe:
                self._subscribed, self._sent, self._in_flight = True, None, False
            elif request.nonce == str(self._nonce):
                self._in_flight = False
        if not self._subscribed or self._in_flight or newest is self._sent:
            return []
        self._sent, self._in_flight = newest, True
        self._nonce += 1
        return [DiscoveryResponse(SHARES_TYPE_URL, newest.version, str(self._nonce), (newest,))]
