"""Our kinds as typed values over a cache of bodies: each body is parsed once, however often it is read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import structlog

from tidegate.api.meta import ObjectKey, Resource, share
from tidegate.errors import InvalidSpecError
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore

ResourceT = TypeVar("ResourceT", bound=Resource)

log = structlog.get_logger(__name__)


class Reading(StrEnum):
    """How an object is read that this version does not understand in whole."""

    IN_PART = "in_part"
    """Without fields that only a newer version knows."""
    AS_BEFORE = "as_before"
    """With the last spec that was understood."""
    NOT_AT_ALL = "not_at_all"
    """As if it were not there."""


@dataclass(frozen=True, slots=True)
class _Known(Generic[ResourceT]):
    body: Manifest
    parsed: ResourceT | None
    reading: Reading | None = None
    """None: in whole."""
    why: str = ""


class Parsed(Generic[ResourceT]):
    """Reads one kind out of its store.

    What a newer version wrote is read without the fields that are unknown here, so that every replica reads the same. Where that
    cannot be, the last spec that could be read counts for as long as the process lives, under the metadata and the status of now.
    An object that could never be read is left out; its own status says why.
    With `strictly` so is all that is not understood in whole: for what bounds others, and would bound them less.
    """

    def __init__(self, kind: type[ResourceT], store: ObjectStore, *, strictly: bool = False) -> None:
        self.store = store
        self.kind = kind
        self._strictly = strictly
        self._cache: dict[ObjectKey, _Known[ResourceT]] = {}
        self._newest: ResourceT | None = None
        store.subscribe(self._forget)

    def get(self, key: ObjectKey) -> ResourceT | None:
        """The object, or None when there is none or it cannot be read."""
        body = self.store.get(key)
        return None if body is None else self._parse(key, body)

    def all(self) -> tuple[ResourceT, ...]:
        """All objects that can be read, by key."""
        parsed = (self.get(key) for key in sorted(self.store.keys()))
        return tuple(one for one in parsed if one is not None)

    def readings(self) -> Mapping[Reading, int]:
        """How many objects are not read in whole; of those that somebody has asked for."""
        return Counter(each.reading for each in self._cache.values() if each.reading is not None)

    def _forget(self, key: ObjectKey) -> None:
        """What goes is forgotten; of what changes the last state is kept, until the new one has been read."""
        if self.store.get(key) is None:
            self._cache.pop(key, None)

    def _parse(self, key: ObjectKey, body: Manifest) -> ResourceT | None:
        before = self._cache.get(key)
        if before is not None and before.body is body:
            return before.parsed
        parsed, reading, why = self._read(before, body)
        if parsed is not None:
            share(parsed, before.parsed if before is not None and before.parsed is not None else self._newest)
            self._newest = parsed
        self._cache[key] = _Known(body, parsed, reading, why)
        if before is not None and (reading, why) == (before.reading, before.why):
            return parsed
        if reading is not None:
            log.warning(
                "object_not_understood", kind=self.kind.KIND, key=str(key), read=reading.value, why=why
            )
        elif before is not None and before.reading is not None:
            log.info("object_understood_again", kind=self.kind.KIND, key=str(key))
        return parsed

    def _read(
        self, before: _Known[ResourceT] | None, body: Manifest
    ) -> tuple[ResourceT | None, Reading | None, str]:
        try:
            if self._strictly:
                return self.kind.parse(body), None, ""
            parsed, unknown = self.kind.parse_known(body)
        except InvalidSpecError as error:
            last = None if self._strictly else self._last(before, body)
            return last, Reading.NOT_AT_ALL if last is None else Reading.AS_BEFORE, str(error)
        return (
            parsed,
            Reading.IN_PART if unknown else None,
            f"unknown here: {', '.join(unknown)}" if unknown else "",
        )

    def _last(self, before: _Known[ResourceT] | None, body: Mapping[str, Any]) -> ResourceT | None:
        """The last that was read of this very object, as far as it is the user's; whether it is being deleted is of now."""
        if before is None or before.parsed is None:
            return None
        now = body["metadata"]
        if before.parsed.metadata.uid != now.get("uid", ""):
            return None
        spec = {"spec": before.parsed.dump()["spec"]}
        try:
            return self.kind.parse({**body, **spec})
        except InvalidSpecError:
            return before.parsed
