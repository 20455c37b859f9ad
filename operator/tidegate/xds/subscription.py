"""What one proxy has of one type of resource, and what it said about it; the two dialects differ in what a response means."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing.snapshot import Resource, Resources, TypeUrl, differing

# What of these types a proxy has and the server does not is deleted; of the others it is left alone.
# In a state of the world, a response of these types is therefore the whole set.
WHOLE: Final = frozenset({TypeUrl.CLUSTER, TypeUrl.LISTENER, TypeUrl.SCOPE})

WILDCARD: Final = "*"

Change = dict[str, Resource | None]
"""Resources by name; None for one that is deleted."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a proxy should have of one type: `changes` under every name where that may differ from what it has, `whole()` under all names."""

    changes: Mapping[str, Resource | None]
    whole: Callable[[], dict[str, Resource]]


@dataclass(slots=True)
class Subscription:
    """One type on one stream, in the dialect 'state of the world'.

    `names` None: everything there is.
    `accepted`: what the proxy acknowledged, None before the first time. `sent`: the last that it was sent, accepted or not.
    `in_flight`: the response that it has not answered. `refused`: the one that it answered with a NACK, until the next is sent.
    """

    type_url: TypeUrl
    names: Set[str] | None
    accepted: dict[str, Resource] | None = None
    sent: dict[str, Resource] = field(default_factory=dict[str, Resource])
    in_flight: Change | None = None
    refused: Change | None = None
    nonce: str = ""
    error: str | None = None
    _base: Resources | None = None
    _touched: set[str] = field(default_factory=set[str])

    def is_complete(self, resources: Resources) -> bool:
        """Whether it is known that the proxy has of these all that it is to have, and nothing else."""
        return self._base is resources and not self._touched

    def completed(self, resources: Resources) -> None:
        """Remembers that: from now on only what differs from these, or is touched, need be looked at."""
        self._base = resources
        self._touched.clear()

    def candidates(self, resources: Resources) -> Collection[str]:
        """The names under which the proxy may have something else than `resources`."""
        if self._base is None:
            return {*resources, *self.sent, *(self.accepted or ()), *self._touched}
        changed = differing(self._base, resources)
        return changed if not self._touched else self._touched.union(changed)

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

    def lacks(self, name: str) -> bool:
        """Whether the proxy has nothing under `name`, for certain."""
        return self.held(name) is None and (self.refused is None or name not in self.refused)

    def gave_up(self, resource: Resource) -> bool:
        """Whether the proxy refused this by itself, so that there is no use in waiting for it."""
        del resource
        return False

    def missing(self) -> Collection[str]:
        """The names under which the proxy refused what is to be there and has nothing from before."""
        return ()

    @property
    def is_stuck(self) -> bool:
        """Whether a refusal stops everything that comes after this type: who is to blame is not known."""
        return self.refused is not None

    def was_sent(self, resource: Resource) -> bool:
        """Whether this is the last that the proxy was sent under its name."""
        sent = self.sent.get(resource.name)
        return sent is not None and sent.version == resource.version

    def to_send(self, target: Target) -> Change | None:
        """The next response if the proxy is to have `target`; None when there is nothing to say.

        A response that was refused is not sent again as it was.
        """
        changed = self._changed(target)
        if changed is None or (self.refused is not None and _alike(changed, self.refused)):
            return None
        return changed

    def _changed(self, target: Target) -> Change | None:
        if self.type_url not in WHOLE:
            return self._lacking(target) or None
        if self.accepted is not None and self.refused is None and self._fits(target):
            return None
        return dict(target.whole())

    def _lacking(self, target: Target) -> Change:
        return {
            name: resource
            for name, resource in target.changes.items()
            if resource is not None and not self.has(resource)
        }

    def _fits(self, target: Target) -> bool:
        return all(
            self.lacks(name) if resource is None else self.has(resource)
            for name, resource in target.changes.items()
        )

    def send(self, change: Change, nonce: str) -> frozenset[str]:
        """`change` is on its way; returns what it deletes."""
        gone = frozenset[str]()
        if self.refused is not None:
            self._touched |= self.refused.keys()
        self.refused = None
        if self.type_url in WHOLE:
            gone = frozenset(self.sent.keys() - change.keys())
            self._touched |= gone
            self.sent = {}
        self._put_in_flight(change, nonce)
        return gone

    def _put_in_flight(self, change: Change, nonce: str) -> None:
        self.nonce = nonce
        self.in_flight = change
        for name, resource in change.items():
            if resource is None:
                self.sent.pop(name, None)
                self._touched.add(name)
            else:
                if not self.has(resource):
                    self._touched.add(name)
                self.sent[name] = resource

    def accept(self) -> None:
        """The proxy acknowledged what is in flight."""
        if self.accepted is None or self.type_url in WHOLE:
            self.accepted = {}
        self._take_in_flight(self.accepted)

    def _take_in_flight(self, accepted: dict[str, Resource]) -> None:
        for name, resource in (self.in_flight or {}).items():
            if resource is None:
                accepted.pop(name, None)
            else:
                accepted[name] = resource
        self.in_flight = None
        self.error = None

    def refuse(self, error: str) -> None:
        """The proxy refused what is in flight and keeps what it had."""
        self.refused = self.in_flight
        self._touched |= (self.refused or {}).keys()
        self.in_flight = None
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

    def forget(self, names: Set[str]) -> None:
        """The proxy has dropped these, so they are to be sent again if it asks again."""
        self._touched |= names
        for held in (self.accepted, self.sent, self.in_flight, self.refused):
            if held is not None:
                _drop(held, names)
        if self.refused is not None and not self.refused:
            self.refused = None
            self.error = None


@dataclass(slots=True)
class DeltaSubscription(Subscription):
    """One type on one stream, in the dialect 'delta': a response holds what changed and names what is deleted.

    `explicit` are the names that the proxy asked for; `names` is None while it asks for everything besides.
    `unseen` is what it had before this stream, of which the version is known and nothing else.

    A proxy refuses a response as a whole, and does not always say for which resource of it.
    So here `refused` is everything from refused responses that was not accepted since. It is sent again in ever smaller
    portions, each half as large as the last that was refused and twice as large as the last that was accepted.
    What was refused by itself is in `condemned` and waits until there is something else under its name.
    """

    explicit: set[str] = field(default_factory=set[str])
    unseen: dict[str, Resource] = field(default_factory=dict[str, Resource])
    condemned: set[str] = field(default_factory=set[str])
    _portion: int = 1

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
            explicit=explicit,
            unseen=unseen,
        )

    @property
    def is_stuck(self) -> bool:
        """Never: only what was refused, and what leads there, is held back."""
        return False

    def gave_up(self, resource: Resource) -> bool:
        """Whether the proxy refused this by itself, so that there is no use in waiting for it."""
        return resource.name in self.condemned and self._was_refused(resource.name, resource)

    def missing(self) -> Collection[str]:
        """The names under which the proxy refused what is to be there and has nothing from before."""
        return [name for name in self.condemned if self.held(name) is None]

    def _was_refused(self, name: str, resource: Resource | None) -> bool:
        return (
            self.refused is not None
            and name in self.refused
            and _version(self.refused[name]) == _version(resource)
        )

    def to_send(self, target: Target) -> Change | None:
        """The next response if the proxy is to have `target`; None when there is nothing to say."""
        change = self._changed(target)
        if self.refused is None:
            # Who asks for everything is told when there is nothing, or would wait for it.
            return change if change or (self.accepted is None and self.type_url in WHOLE) else None
        fresh = {name: one for name, one in change.items() if not self._was_refused(name, one)}
        if fresh:
            return fresh
        suspects = sorted(change.keys() - self.condemned)
        return {name: change[name] for name in suspects[: self._portion]} or None

    def _changed(self, target: Target) -> Change:
        change: Change = {
            name: resource
            for name, resource in self._lacking(target).items()
            if resource is not self.unseen.get(name)
        }
        if self.type_url in WHOLE:
            gone = (name for name, resource in target.changes.items() if resource is None)
            change.update((name, None) for name in gone if not self.lacks(name))
        return change

    def send(self, change: Change, nonce: str) -> frozenset[str]:
        """As in the other dialect."""
        self._put_in_flight(change, nonce)
        return frozenset(name for name, resource in change.items() if resource is None)

    def accept(self) -> None:
        """The proxy acknowledged what is in flight: that much is not to blame."""
        if self.accepted is None:
            self.accepted = {}
        error, cleared = self.error, frozenset(self.in_flight or ())
        for name in cleared:
            self.unseen.pop(name, None)
        self._take_in_flight(self.accepted)
        self._portion *= 2
        self._acquit(cleared)
        self.error = None if self.refused is None else error

    def refuse(self, error: str) -> None:
        """The proxy refused what is in flight; of one resource it is clear which."""
        change = self.in_flight or {}
        before = self.refused or {}
        Subscription.refuse(self, error)  # super() does not know the class with slots
        self.refused = {**before, **change}
        self.condemned -= change.keys()
        if len(change) == 1:
            self.condemned |= change.keys()
        self._portion = max(1, len(change) // 2)

    def forget(self, names: Set[str]) -> None:
        """The proxy has dropped these, so they are to be sent again if it asks again."""
        Subscription.forget(self, names)
        self.condemned -= names

    def _acquit(self, names: Set[str]) -> None:
        self.condemned -= names
        if self.refused is not None:
            _drop(self.refused, names)
            self.refused = self.refused or None

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


def _drop(resources: dict[str, Resource] | Change, names: Set[str]) -> None:
    for name in [name for name in names if name in resources]:
        del resources[name]


def _alike(some: Change, others: Change) -> bool:
    return len(some) == len(others) and all(
        name in others and _version(others[name]) == _version(resource) for name, resource in some.items()
    )


def _version(resource: Resource | None) -> str | None:
    return None if resource is None else resource.version
