"""The ModelAccesses by what they refer to, so that a change among ten thousand finds those that it is about.

Whatever else the routing of an access comes to depend on belongs in here: the controllers' wake-ups and the xDS servers' snapshots both go by it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True)
class _References:
    """What one access refers to: Inferences, Secrets and an issuer's address that it names, what its pipelines call besides, and hosts that it wants."""

    inferences: frozenset[ObjectKey] = frozenset()
    features: frozenset[ObjectKey] = frozenset()
    accesses: frozenset[ObjectKey] = frozenset()
    hosts: frozenset[str] = frozenset()
    secrets: frozenset[ObjectKey] = frozenset()
    addresses: frozenset[str] = frozenset()


_NONE: Final = _References()


class AccessIndex:
    """Who refers to what, as of the last `put` of each access."""

    def __init__(self) -> None:
        self._references: dict[ObjectKey, _References] = {}
        self._by_inference: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_features: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_access: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_host: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._by_secret: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_address: defaultdict[str, set[ObjectKey]] = defaultdict(set)

    def put(self, key: ObjectKey, access: ModelAccess | None) -> frozenset[ObjectKey]:
        """Takes the newest of the access under `key`, None when there is none; returns the others that want a host which it wants or wanted."""
        before, now = self._references.pop(key, _NONE), _NONE if access is None else _references(access)
        if access is not None:
            self._references[key] = now
        move(self._by_inference, key, before.inferences, now.inferences)
        move(self._by_features, key, before.features, now.features)
        move(self._by_access, key, before.accesses, now.accesses)
        move(self._by_host, key, before.hosts, now.hosts)
        move(self._by_secret, key, before.secrets, now.secrets)
        move(self._by_address, key, before.addresses, now.addresses)
        if not before.hosts and not now.hosts:
            return frozenset()
        contested = {other for host in before.hosts | now.hosts for other in self._by_host.get(host, ())}
        return frozenset(contested - {key})

    def using(self, inference: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those that send traffic to an Inference, or would if it existed."""
        return tuple(sorted(self._by_inference.get(inference, ())))

    def looking_up(self, features: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those with a pipeline that asks a FeatureCompute, or would if it existed."""
        return tuple(sorted(self._by_features.get(features, ())))

    def calling(self, access: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those with a pipeline that calls another access, or would if it existed."""
        return tuple(sorted(self._by_access.get(access, ())))

    def checking_with(self, secret: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those that let callers in by a Secret, or would if it existed."""
        return tuple(sorted(self._by_secret.get(secret, ())))

    def checking_at(self, address: str) -> tuple[ObjectKey, ...]:
        """Those that let callers in by the keys at an issuer's address."""
        return tuple(sorted(self._by_address.get(address, ())))

    def rivals(self, access: ModelAccess) -> tuple[ObjectKey, ...]:
        """The others that want a host of `access`."""
        if not access.spec.hosts:
            return ()
        wanting = {key for host in access.spec.hosts for key in self._by_host.get(host, ())}
        return tuple(sorted(wanting - {access.key}))


def _references(access: ModelAccess) -> _References:
    namespace = access.metadata.namespace
    auth = access.spec.auth
    address = auth.key_address if auth is not None else None
    pipelines = [route.pipeline for route in access.spec.routes if route.pipeline is not None]
    return _References(
        inferences=frozenset(ObjectKey(namespace, name) for name in access.spec.inferences),
        features=frozenset(ObjectKey(namespace, one.features) for one in pipelines if one.features),
        accesses=frozenset(ObjectKey(namespace, name) for one in pipelines for name in one.accesses),
        hosts=frozenset(access.spec.hosts),
        secrets=frozenset(ObjectKey(namespace, name) for name in (auth.secrets if auth is not None else ())),
        addresses=frozenset({address} if address is not None else ()),
    )


def move(index: defaultdict[_T, set[_U]], key: _U, before: Iterable[_T], now: Iterable[_T]) -> None:
    """Has `key` stand under all of `now`, where it stood under all of `before`."""
    for value in before:
        index[value].discard(key)
        if not index[value]:
            del index[value]
    for value in now:
        index[value].add(key)
