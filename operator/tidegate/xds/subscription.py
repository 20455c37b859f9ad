"""What one proxy has of one type of resource, and what it said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing.snapshot import Resource, Resources, TypeUrl
from tidegate.xds.messages import DiscoveryRequest

# A response of these types is the whole set, and what it lacks is deleted; of the others it is what changed.
WHOLE: Final = frozenset({TypeUrl.CLUSTER, TypeUrl.LISTENER})

_WILDCARD: Final = "*"


def requested_names(type_url: TypeUrl, request: DiscoveryRequest) -> frozenset[str] | None:
    """The names that a first request asks for; None for everything there is."""
    if type_url in WHOLE and (not request.names or _WILDCARD in request.names):
        return None
    return request.names


@dataclass(slots=True)
class Subscription:
    """One type on one stream.

    `names` None: everything there is.
    `accepted`: what the proxy acknowledged, None before the first time. `sent`: the last that it was sent, accepted or not.
    `in_flight`: the response that it has not answered. `refused`: the one that it answered with a NACK, until the next is sent.
    """

    type_url: TypeUrl
    names: frozenset[str] | None
    accepted: dict[str, Resource] | None = None
    sent: dict[str, Resource] = field(default_factory=dict[str, Resource])
    in_flight: dict[str, Resource] | None = None
    refused: dict[str, Resource] | None = None
    nonce: str = ""
    error: str | None = None
    _complete: Resources | None = None

    def is_complete(self, resources: Resources) -> bool:
        """Whether it is known that the proxy has of these all that it is to have, and nothing else."""
        return self._complete is resources

    def completed(self, resources: Resources) -> None:
        """Remembers that; until the proxy is sent or says anything new, the same set need not be looked through again."""
        self._complete = resources

    def wants(self, name: str) -> bool:
        """Whether the proxy asked for it."""
        return self.names is None or name in self.names

    def held(self, name: str) -> Resource | None:
        """What the proxy last accepted under `name`."""
        return None if self.accepted is None else self.accepted.get(name)

    def has(self, resource: Resource) -> bool:
        """Whether the proxy runs exactly this, for certain: of a refused response some part may be in use."""
        if self.refused is not None and resource.name in self.refused:
            return False
        held = self.held(resource.name)
        return held is not None and held.version == resource.version

    def was_sent(self, resource: Resource) -> bool:
        """Whether this is the last that the proxy was sent under its name."""
        sent = self.sent.get(resource.name)
        return sent is not None and sent.version == resource.version

    def to_send(self, wanted: Resources) -> dict[str, Resource] | None:
        """The resources of the next response if the proxy is to have `wanted`; None when there is nothing to say.

        A response that was refused is not sent again as it was.
        """
        if self.type_url in WHOLE:
            changed = dict(wanted)
            if self.accepted is not None and self.refused is None and _alike(changed, self.accepted):
                return None
        else:
            changed = {name: resource for name, resource in wanted.items() if not self.has(resource)}
            if not changed:
                return None
        if self.refused is not None and _alike(changed, self.refused):
            return None
        return changed

    def send(self, resources: dict[str, Resource], nonce: str) -> None:
        """`resources` are on their way."""
        self._complete = None
        self.nonce = nonce
        self.in_flight = resources
        self.refused = None
        self.sent = dict(resources) if self.type_url in WHOLE else {**self.sent, **resources}

    def accept(self) -> None:
        """The proxy acknowledged what is in flight."""
        self._complete = None
        kept = {} if self.type_url in WHOLE else self.accepted or {}
        self.accepted = {**kept, **(self.in_flight or {})}
        self.in_flight = None
        self.error = None

    def refuse(self, error: str) -> None:
        """The proxy refused what is in flight and keeps what it had."""
        self._complete = None
        self.refused = self.in_flight
        self.in_flight = None
        self.error = error

    def ask_for(self, names: frozenset[str]) -> None:
        """The proxy's newest list of names. Nothing changes for one that asked for everything."""
        if self.names is None:
            return
        if names == self.names:
            return
        self._complete = None
        gone = self.names - names
        self.names = names
        if self.type_url not in WHOLE:
            self.forget(gone)

    def forget(self, names: frozenset[str]) -> None:
        """The proxy has dropped these, so they are to be sent again if it asks again."""
        self._complete = None
        for held in (self.accepted, self.sent, self.in_flight, self.refused):
            if held is not None:
                _drop(held, names)
        if self.refused is not None and not self.refused:
            self.refused = None
            self.error = None


def _drop(resources: dict[str, Resource], names: frozenset[str]) -> None:
    for name in names & resources.keys():
        del resources[name]


def _alike(some: Mapping[str, Resource], others: Mapping[str, Resource]) -> bool:
    return len(some) == len(others) and all(
        name in others and others[name].version == resource.version for name, resource in some.items()
    )
