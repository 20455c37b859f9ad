"""The stream of a proxy that speaks 'delta': requests and responses hold what changed, so a change costs its own size on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar

from tidegate.routing.snapshot import Resource, TypeUrl
from tidegate.xds.delta_messages import DeltaRequest
from tidegate.xds.inspection import ProxyKind
from tidegate.xds.steps import DiscoveryStream
from tidegate.xds.subscription import WHOLE, WILDCARD, Subscription
from tidegate.xds.suspects import Change


@dataclass(slots=True)
class DeltaSubscription(Subscription):
    """One type on one stream in this dialect: a response holds what changed and names what is deleted.

    `explicit` are the names that the proxy asked for; `names` is None while it asks for everything besides.
    """

    explicit: set[str] = field(default_factory=set[str])

    @classmethod
    def first(cls, type_url: TypeUrl, names: Set[str], versions: Mapping[str, str]) -> DeltaSubscription:
        """As the first request of a stream says: the names, and the versions of what the proxy has from an earlier one."""
        wildcard = WILDCARD in names or (type_url in WHOLE and not names)
        explicit = set(names - {WILDCARD})
        unseen = {name: Resource(name, version, b"") for name, version in versions.items()}
        return cls(
            type_url,
            None if wildcard else explicit,
            accepted=dict(unseen) if unseen else None,
            sent=dict(unseen),
            unseen=unseen,
            explicit=explicit,
        )

    def content(self, change: Change) -> Change:
        """Nothing else than `change`."""
        return change

    def subscribe(self, added: Set[str], removed: Set[str]) -> None:
        """The proxy wants more and less; what it asks for again it is sent again."""
        if removed:
            self.explicit -= removed
            if WILDCARD in removed and self.names is None:
                self.names = self.explicit
                self.forget((self.accepted or {}).keys() - self.explicit)
            self.forget(removed - {WILDCARD} if self.names is not None else frozenset[str]())
        if added:
            if WILDCARD in added:
                self.names, self._base = None, None
            self.explicit |= added - {WILDCARD}
            self.forget(added - {WILDCARD})


class DeltaStream(DiscoveryStream[DeltaRequest]):
    """The stream of one proxy (DeltaAggregatedResources); the steps are those of xds.steps.

    A proxy that comes back names the version of everything that it has, so that it is sent nothing twice, and needs no stand-ins.
    """

    KIND: ClassVar[ProxyKind] = ProxyKind.GATEWAY

    def _take(self, type_url: TypeUrl, request: DeltaRequest, now: float) -> None:
        del now
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
