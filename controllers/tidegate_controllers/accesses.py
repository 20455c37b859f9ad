"""The ModelAccesses by what they refer to, so that a change among ten thousand finds those that it is about."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.routing import hosts

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _References:
    """What one access refers to: Inferences that it sends traffic to, and hosts that it wants."""

    inferences: frozenset[ObjectKey] = frozenset()
    hosts: frozenset[str] = frozenset()


_NONE: Final = _References()


class Accesses:
    """An index over the cache of ModelAccesses, kept up with every change; those that do not parse refer to nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._parsed = Parsed(ModelAccess, store)
        self._references: dict[ObjectKey, _References] = {}
        self._by_inference: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_host: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._rivals_subscribers: list[Callable[[ObjectKey], None]] = []
        store.subscribe(self._changed)
        already_there = store.keys()
        for key in already_there:
            self._changed(key)

    def using(self, inference: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those that send traffic to an Inference, or would if it existed."""
        return tuple(sorted(self._by_inference.get(inference, ())))

    def owners(self, access: ModelAccess) -> Mapping[str, ObjectKey]:
        """For every host in the spec of `access`, the access that it leads to (routing.hosts.claim).

        As in the fleet of the xDS servers, an object that is being deleted holds no host any more.
        """
        keys = {key for host in access.spec.hosts for key in self._by_host.get(host, ())}
        found = (self._parsed.get(key) for key in sorted(keys - {access.key}))
        rivals = [one for one in found if one is not None and one.metadata.deletion_timestamp is None]
        return hosts.claim([access, *rivals])

    def subscribe_rivals(self, subscriber: Callable[[ObjectKey], None]) -> None:
        """Calls `subscriber` with every access that wants a host which another one has, gives up or takes."""
        self._rivals_subscribers.append(subscriber)

    def _changed(self, key: ObjectKey) -> None:
        access = self._parsed.get(key)
        before, now = self._references.pop(key, _NONE), _references(access)
        if access is not None:
            self._references[key] = now
        _move(self._by_inference, key, before.inferences, now.inferences)
        _move(self._by_host, key, before.hosts, now.hosts)
        contested = {other for host in before.hosts | now.hosts for other in self._by_host.get(host, ())}
        for other in sorted(contested - {key}):
            for subscriber in self._rivals_subscribers:
                subscriber(other)


def _references(access: ModelAccess | None) -> _References:
    if access is None:
        return _NONE
    inferences = frozenset(
        ObjectKey(access.key.namespace, target.inference)
        for route in access.spec.routes
        for target in route.targets
    )
    return _References(inferences, frozenset(access.spec.hosts))


def _move(
    index: defaultdict[_T, set[ObjectKey]], key: ObjectKey, before: Iterable[_T], now: Iterable[_T]
) -> None:
    for value in before:
        index[value].discard(key)
        if not index[value]:
            del index[value]
    for value in now:
        index[value].add(key)
