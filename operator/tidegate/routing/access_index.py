"""An index of ModelAccesses by what they refer to, so that a change finds the accesses that depend on it.

Everything that the routing of an access depends on belongs in here: both the controllers' queues and the xDS servers'
snapshots use it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import resolve_shared_name

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True)
class _IndexedReferences:
    """What one access refers to.

    `inferences`, `secrets` and `addresses` (of token issuers) are named by the spec; `features` and `accesses` by its pipelines.
    `hosts` are those that the spec claims.
    """

    inferences: frozenset[ObjectKey] = frozenset()
    features: frozenset[ObjectKey] = frozenset()
    accesses: frozenset[ObjectKey] = frozenset()
    hosts: frozenset[str] = frozenset()
    secrets: frozenset[ObjectKey] = frozenset()
    addresses: frozenset[str] = frozenset()


_NO_REFERENCES: Final = _IndexedReferences()


class AccessIndex:
    """The accesses by what they refer to, as of the last `put` of each."""

    def __init__(self) -> None:
        self._references: dict[ObjectKey, _IndexedReferences] = {}
        self._by_inference: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_features: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_access: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_host: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._by_secret: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._by_address: defaultdict[str, set[ObjectKey]] = defaultdict(set)

    def put(self, key: ObjectKey, access: ModelAccess | None) -> frozenset[ObjectKey]:
        """Update the entry of `key`, or delete it for None; return the other accesses that claim one of its hosts.

        Its hosts are those that it claims or claimed before.
        """
        before, now = (
            self._references.pop(key, _NO_REFERENCES),
            _NO_REFERENCES if access is None else _collect_references(access),
        )
        if access is not None:
            self._references[key] = now
        move_key(self._by_inference, key, before.inferences, now.inferences)
        move_key(self._by_features, key, before.features, now.features)
        move_key(self._by_access, key, before.accesses, now.accesses)
        move_key(self._by_host, key, before.hosts, now.hosts)
        move_key(self._by_secret, key, before.secrets, now.secrets)
        move_key(self._by_address, key, before.addresses, now.addresses)
        if not before.hosts and not now.hosts:
            return frozenset()
        contested = {other for host in before.hosts | now.hosts for other in self._by_host.get(host, ())}
        return frozenset(contested - {key})

    def accesses_for_inference(self, inference: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses that send traffic to an Inference, or would if it existed."""
        return tuple(sorted(self._by_inference.get(inference, ())))

    def accesses_for_features(self, features: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses with a pipeline that uses a FeatureCompute, or would if it existed."""
        return tuple(sorted(self._by_features.get(features, ())))

    def accesses_calling(self, access: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses with a pipeline that calls another access, or would if it existed."""
        return tuple(sorted(self._by_access.get(access, ())))

    def accesses_for_secret(self, secret: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses that authenticate callers by a Secret, or would if it existed."""
        return tuple(sorted(self._by_secret.get(secret, ())))

    def accesses_for_key_address(self, address: str) -> tuple[ObjectKey, ...]:
        """Return the accesses that authenticate callers by the keys at an issuer's address."""
        return tuple(sorted(self._by_address.get(address, ())))

    def host_rivals(self, access: ModelAccess) -> tuple[ObjectKey, ...]:
        """Return the other accesses that claim a host of `access`."""
        if not access.spec.hosts:
            return ()
        claimants = {key for host in access.spec.hosts for key in self._by_host.get(host, ())}
        return tuple(sorted(claimants - {access.key}))


def _collect_references(access: ModelAccess) -> _IndexedReferences:
    namespace = access.metadata.namespace
    auth = access.spec.auth
    address = auth.jwks_uri if auth is not None else None
    pipelines = [route.pipeline for route in access.spec.routes if route.pipeline is not None]
    return _IndexedReferences(
        inferences=frozenset(resolve_shared_name(name, namespace) for name in access.spec.inference_names),
        features=frozenset(
            resolve_shared_name(pipeline.features, namespace) for pipeline in pipelines if pipeline.features
        ),
        accesses=frozenset(
            ObjectKey(namespace, name) for pipeline in pipelines for name in pipeline.access_names
        ),
        hosts=frozenset(access.spec.hosts),
        secrets=frozenset(
            ObjectKey(namespace, name) for name in (auth.secret_names if auth is not None else ())
        ),
        addresses=frozenset({address} if address is not None else ()),
    )


def move_key(index: defaultdict[_T, set[_U]], key: _U, before: Iterable[_T], now: Iterable[_T]) -> None:
    """Move `key` in `index` from every value of `before` to every value of `now`."""
    for value in before:
        index[value].discard(key)
        if not index[value]:
            del index[value]
    for value in now:
        index[value].add(key)
