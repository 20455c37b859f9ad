"""What one proxy has of one type of resource, and what it said about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.routing.snapshot import Resource, Resources, TypeUrl, differing
from tidegate.xds.suspects import Change, Suspects

# What of these types a proxy has and the server does not is deleted; of the others it is left alone.
WHOLE: Final = frozenset({TypeUrl.CLUSTER, TypeUrl.LISTENER, TypeUrl.SCOPE})

# Envoy takes note of each scope of a response until it meets one that it refuses, tells its workers of none, and takes
# the same scope for known when it comes again. So it is led back to what it accepted first.
TAKES_NOTE: Final = frozenset({TypeUrl.SCOPE})


@dataclass(slots=True)
class Subscription(ABC):
    """One type on one stream.

    `names` None: everything there is.
    `accepted`: what the proxy acknowledged, None before the first time. `sent`: the last that it was sent, accepted or not.
    `in_flight`: what the response that it has not answered changes. `error` is the reason of its last NACK while anything of that is refused.
    `unseen` is what it had before this stream, of which the version is known and nothing else.
    `_doubted` is what it is to be sent again, with the nonce of the last response before that was known.
    """

    type_url: TypeUrl
    names: set[str] | None
    accepted: dict[str, Resource] | None = None
    sent: dict[str, Resource] = field(default_factory=dict[str, Resource])
    in_flight: Change | None = None
    suspects: Suspects = field(default_factory=Suspects)
    nonce: str = ""
    error: str | None = None
    unseen: dict[str, Resource] = field(default_factory=dict[str, Resource])
    _base: Resources | None = None
    _touched: set[str] = field(default_factory=set[str])
    _in_doubt: set[str] = field(default_factory=set[str])
    _doubted: dict[str, str] = field(default_factory=dict[str, str])

    def is_complete(self, resources: Resources) -> bool:
        """Whether it is known that the proxy has of these all that it is to have, and nothing else."""
        return self._base is resources and not self._touched

    def completed(self, resources: Resources, but: Collection[str] = ()) -> None:
        """Remembers that, `but` for some names: from now on only these and what differs or is touched need be looked at."""
        self._base = resources
        self._touched = set(but)

    def candidates(self, resources: Resources) -> Collection[str]:
        """The names under which the proxy may have something else than `resources`."""
        if self._base is None:
            return {*resources, *self.sent, *(self.accepted or ()), *self._touched}
        changed = differing(self._base, resources)
        return changed if not self._touched else self._touched.union(changed)

    @property
    def answered(self) -> bool:
        """Whether the proxy has said anything yet about what it was sent, or came with something."""
        return self.accepted is not None or self.error is not None

    def wants(self, name: str) -> bool:
        """Whether the proxy asked for it."""
        return self.names is None or name in self.names

    def held(self, name: str) -> Resource | None:
        """What the proxy last accepted under `name`."""
        return None if self.accepted is None else self.accepted.get(name)

    def has(self, resource: Resource) -> bool:
        """Whether the proxy runs exactly this, or what this only stands in for, for certain: of a refused response some part may be in use."""
        if resource.name in self.suspects.refused or resource.name in self._doubted:
            return False
        held = self.held(resource.name)
        if held is None:
            return False
        return held.version == resource.version or (resource.stand_in and not held.stand_in)

    def kept(self, name: str) -> Resource | None:
        """Return what keeps `name` as it is."""
        return self.held(name)

    def may_have_endpoints(self, name: str) -> bool:
        """Return whether the proxy has endpoints under `name`."""
        held = self.held(name)
        return held is not None and not held.vacant

    def lacks(self, name: str) -> bool:
        """Whether the proxy has nothing under `name`, for certain."""
        return self.held(name) is None and name not in self.suspects.refused

    def missing(self) -> Mapping[str, str]:
        """The names under which the proxy refused what is to be there and has nothing from before, with its words."""
        return {name: words for name, words in self.suspects.condemned.items() if self.held(name) is None}

    def was_sent(self, resource: Resource) -> bool:
        """Whether this is the last that the proxy was sent under its name."""
        sent = self.sent.get(resource.name)
        return sent is not None and sent.version == resource.version

    def to_send(self, target: Mapping[str, Resource | None]) -> Change | None:
        """What the next response changes if the proxy is to have `target`, which says so for every name where that may differ from what it has.

        None when there is nothing to say. What was refused by itself is not sent again as it was.
        """
        if self._in_doubt:
            return {name: self.held(name) for name in self._in_doubt}
        change = self._changed(target)
        if not change:
            # Who asks for everything is told when there is nothing, or would wait for it.
            untold = not self.answered and self.type_url in WHOLE
            return change if untold else None
        return self.suspects.portion_of(change) or None

    def _changed(self, target: Mapping[str, Resource | None]) -> Change:
        change: Change = {
            name: resource
            for name, resource in target.items()
            if resource is not None and not self.has(resource) and resource is not self.unseen.get(name)
        }
        if self.type_url in WHOLE:
            gone = (name for name, resource in target.items() if resource is None)
            change.update((name, None) for name in gone if not self.lacks(name))
        return change

    @abstractmethod
    def content(self, change: Change) -> Change:
        """What a response holds that makes `change`: resources, and None for names that it deletes."""

    def send(self, change: Change, nonce: str) -> frozenset[str]:
        """`change` is on its way; returns the names of which the proxy forgets what belongs to them: what is deleted."""
        self.nonce = nonce
        self.in_flight = change
        gone = frozenset(name for name, resource in change.items() if resource is None)
        for name, resource in change.items():
            if resource is None or not self.has(resource):
                self._touched.add(name)
            if resource is not None:
                self.sent[name] = resource
        _drop(self.sent, gone)
        return gone

    def doubt(self, names: Collection[str]) -> None:
        """What the proxy has under `names` is to be sent again, though it still counts as what it has.

        The answer to a response that is under way already says nothing about it.
        """
        self._touched.update(names)
        self._doubted.update(dict.fromkeys(names, self.nonce))

    def accept(self) -> None:
        """The proxy acknowledged what is in flight."""
        change = self.in_flight or {}
        self.in_flight = None
        self.accepted = {} if self.accepted is None else self.accepted
        _drop(self.unseen, change)
        for name, resource in change.items():
            if resource is None:
                self.accepted.pop(name, None)
            else:
                self.accepted[name] = resource
            if self._doubted.get(name) != self.nonce:
                self._doubted.pop(name, None)
        if self._in_doubt:
            self._in_doubt = set()
        else:
            self.suspects.accept(change)
        self._forgive()

    def refuse(self, error: str) -> None:
        """The proxy refused what is in flight and keeps what it had."""
        change = self.in_flight or {}
        self.in_flight = None
        self._touched |= change.keys()
        self.error = error
        if self._in_doubt:
            self._in_doubt = set()
            return
        self.suspects.refuse(change, error)
        if self.type_url in TAKES_NOTE and len(change) > 1:
            self._in_doubt = change.keys() - self.unseen.keys()

    def forget(self, names: Collection[str]) -> None:
        """The proxy has dropped these, so they are to be sent again if it asks again."""
        self._touched.update(names)
        for held in (self.accepted, self.sent, self.in_flight):
            if held is not None:
                _drop(held, names)
        _drop(self._doubted, names)
        self._in_doubt.difference_update(names)
        if self.suspects.refused:
            self.suspects.forget(names)
            self._forgive()

    def _forgive(self) -> None:
        if not self.suspects.refused:
            self.error = None


def _drop(by_name: dict[str, Any], names: Collection[str]) -> None:
    for name in [name for name in names if name in by_name]:
        del by_name[name]
