"""The issuers' addresses that accesses take keys from: those they name, and those the routing still goes by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.hosts import by_age


class KeyAddresses:
    """Follows the accesses, so that one whose address changes can go on with its old keys until there are new ones."""

    def __init__(self) -> None:
        self._naming: dict[ObjectKey, ModelAccess] = {}
        self._routed: dict[ObjectKey, str | None] = {}
        self._named: Mapping[str, Sequence[str]] | None = None

    @property
    def named(self) -> Mapping[str, Sequence[str]]:
        """The addresses that accesses name, by namespace, those of the oldest accesses first."""
        if self._named is None:
            named: defaultdict[str, list[str]] = defaultdict(list)
            for access in by_age(self._naming.values()):
                address = _address(access)
                if address is not None and address not in named[access.key.namespace]:
                    named[access.key.namespace].append(address)
            self._named = named
        return self._named

    def put(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """The newest of the access under `key`; None when there is none."""
        before = self._naming.pop(key, None)
        if access is not None and _address(access) is not None:
            self._naming[key] = access
        if _place(before) != _place(self._naming.get(key)):
            self._named = None

    def routed(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """The routing goes by this access from now on; None: by none under `key`."""
        if access is None or access.spec.auth is None:
            self._routed.pop(key, None)
        else:
            self._routed[key] = _address(access)

    def waits(self, key: ObjectKey, access: ModelAccess, awaited: Collection[str]) -> bool:
        """Whether the routing should go on with what it has under `key` for now, since this access would be closed.

        Not if what it has lets everybody in: an access that is to be guarded is guarded at once.
        """
        address = _address(access)
        return address in awaited and key in self._routed and self._routed[key] != address


def _address(access: ModelAccess) -> str | None:
    return None if access.spec.auth is None else access.spec.auth.key_address


def _place(access: ModelAccess | None) -> object:
    return None if access is None else (_address(access), access.metadata.creation_timestamp)
