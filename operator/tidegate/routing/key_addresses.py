"""Tracks the addresses that accesses name for their issuers' keys, and those that routing uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.hosts import sort_by_age


class IssuerKeyAddresses:
    """Addresses of issuers' keys by access.

    An access whose address changes keeps its old keys until the new ones are fetched.
    """

    def __init__(self) -> None:
        self._accesses: dict[ObjectKey, ModelAccess] = {}
        self._routed: dict[ObjectKey, str | None] = {}
        self._addresses: Mapping[str, Sequence[str]] | None = None

    @property
    def by_namespace(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses that accesses name, by namespace, those of the oldest accesses first."""
        if self._addresses is None:
            addresses: defaultdict[str, list[str]] = defaultdict(list)
            for access in sort_by_age(self._accesses.values()):
                address = _key_address(access)
                if address is not None and address not in addresses[access.key.namespace]:
                    addresses[access.key.namespace].append(address)
            self._addresses = addresses
        return self._addresses

    def put_access(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """Take the access under `key`; None if it was deleted."""
        before = self._accesses.pop(key, None)
        if access is not None and _key_address(access) is not None:
            self._accesses[key] = access
        if _address_and_age(before) != _address_and_age(self._accesses.get(key)):
            self._addresses = None

    def mark_routed(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """Record that routing uses this access from now on; None: no access under `key`."""
        if access is None or access.spec.auth is None:
            self._routed.pop(key, None)
        else:
            self._routed[key] = _key_address(access)

    def must_wait(self, key: ObjectKey, access: ModelAccess, awaited: Collection[str]) -> bool:
        """Return whether routing should keep the old access under `key`, since the new one's keys are still awaited.

        Without keys the new access would refuse everybody. If the old one is open to everybody, do not wait: an access that
        becomes guarded is guarded at once.
        """
        address = _key_address(access)
        return address in awaited and key in self._routed and self._routed[key] != address


def _key_address(access: ModelAccess) -> str | None:
    return None if access.spec.auth is None else access.spec.auth.jwks_uri


def _address_and_age(access: ModelAccess | None) -> object:
    return None if access is None else (_key_address(access), access.metadata.creation_timestamp)
