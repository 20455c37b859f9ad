"""Our kinds as typed values over a cache of bodies: each body is parsed once, however often it is read."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from tidegate.api.meta import ObjectKey, Resource
from tidegate.errors import InvalidSpecError
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore

ResourceT = TypeVar("ResourceT", bound=Resource)


class Parsed(Generic[ResourceT]):
    """Reads one kind out of its store. Objects that do not parse are left out; their own status says why."""

    def __init__(self, kind: type[ResourceT], store: ObjectStore) -> None:
        self.store = store
        self.kind = kind
        self._cache: dict[ObjectKey, tuple[Manifest, ResourceT | None]] = {}
        store.subscribe(self._forget)

    def get(self, key: ObjectKey) -> ResourceT | None:
        """The object, or None when there is none or it does not parse."""
        body = self.store.get(key)
        return None if body is None else self._parse(key, body)

    def all(self) -> tuple[ResourceT, ...]:
        """All objects that parse, by key."""
        parsed = (self.get(key) for key in sorted(self.store.keys()))
        return tuple(one for one in parsed if one is not None)

    def _forget(self, key: ObjectKey) -> None:
        self._cache.pop(key, None)

    def _parse(self, key: ObjectKey, body: Mapping[str, Any]) -> ResourceT | None:
        known = self._cache.get(key)
        if known is not None and known[0] is body:
            return known[1]
        try:
            parsed = self.kind.parse(body)
        except InvalidSpecError:
            parsed = None
        self._cache[key] = (body, parsed)
        return parsed
