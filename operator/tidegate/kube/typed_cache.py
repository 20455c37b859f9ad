"""Caches objects as values: each body is parsed once, however often it is read."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import structlog

from tidegate.api.meta import CustomResource, ObjectKey, share_equal_parts
from tidegate.errors import InvalidSpecError
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of

ResourceT = TypeVar("ResourceT", bound=CustomResource)
ViewT = TypeVar("ViewT")

log = structlog.get_logger(__name__)


class ParseResult(StrEnum):
    """How an object was parsed if this version does not understand all of it."""

    PARTIAL = "in_part"
    """Without fields that only a newer version knows."""
    LAST_KNOWN_GOOD = "as_before"
    """With its last spec that parsed."""
    LEFT_OUT = "not_at_all"
    """Left out, as if it did not exist."""


@dataclass(frozen=True, slots=True)
class _ParsedEntry(Generic[ResourceT]):
    body: Manifest
    parsed: ResourceT | None
    result: ParseResult | None = None
    """None if everything was understood."""
    problem: str = ""


class TypedCache(Generic[ResourceT]):
    """Typed objects of one kind, parsed out of its store.

    Fields that only a newer version knows are ignored, so that every replica reads the same. If a spec does not
    parse, the last one that did is combined with the current metadata and status, until the process restarts.
    An object that never parsed is left out; its own status says why.
    With `strict`, an object that is not fully understood is left out: one that limits others could limit them less.
    """

    def __init__(self, kind: type[ResourceT], store: ObjectStore, *, strict: bool = False) -> None:
        self.store = store
        self.kind = kind
        self._strictly = strict
        self._cache: dict[ObjectKey, _ParsedEntry[ResourceT]] = {}
        self._newest: ResourceT | None = None
        store.subscribe(self._forget_deleted)

    def get(self, key: ObjectKey) -> ResourceT | None:
        """Return the object; None if it does not exist or never parsed."""
        body = self.store.get(key)
        return None if body is None else self._parse_cached(key, body)

    def list_all(self) -> tuple[ResourceT, ...]:
        """Return all objects that parse, by key."""
        objects = (self.get(key) for key in sorted(self.store.keys()))
        return tuple(item for item in objects if item is not None)

    def count_by_result(self) -> Mapping[ParseResult, int]:
        """Return how many objects are not fully understood, by reading, among those that were asked for."""
        return Counter(entry.result for entry in self._cache.values() if entry.result is not None)

    def _forget_deleted(self, key: ObjectKey) -> None:
        """Forget a deleted object; a changed one keeps its last state until the new one is parsed."""
        if self.store.get(key) is None:
            self._cache.pop(key, None)

    def _parse_cached(self, key: ObjectKey, body: Manifest) -> ResourceT | None:
        before = self._cache.get(key)
        if before is not None and before.body is body:
            return before.parsed
        parsed, reading, why = self._parse_body(before, body)
        if parsed is not None:
            share_equal_parts(
                parsed, before.parsed if before is not None and before.parsed is not None else self._newest
            )
            self._newest = parsed
        self._cache[key] = _ParsedEntry(body, parsed, reading, why)
        if before is not None and (reading, why) == (before.result, before.problem):
            return parsed
        if reading is not None:
            log.warning(
                "object_not_understood", kind=self.kind.KIND, key=str(key), read=reading.value, why=why
            )
        elif before is not None and before.result is not None:
            log.info("object_understood_again", kind=self.kind.KIND, key=str(key))
        return parsed

    def _parse_body(
        self, before: _ParsedEntry[ResourceT] | None, body: Manifest
    ) -> tuple[ResourceT | None, ParseResult | None, str]:
        try:
            if self._strictly:
                return self.kind.parse(body), None, ""
            parsed, unknown = self.kind.parse_known_fields(body)
        except InvalidSpecError as error:
            last = None if self._strictly else self._last_known_good(before, body)
            return last, ParseResult.LEFT_OUT if last is None else ParseResult.LAST_KNOWN_GOOD, str(error)
        return (
            parsed,
            ParseResult.PARTIAL if unknown else None,
            f"unknown here: {', '.join(unknown)}" if unknown else "",
        )

    def _last_known_good(
        self, before: _ParsedEntry[ResourceT] | None, body: Mapping[str, Any]
    ) -> ResourceT | None:
        """Return the object with its last spec that parsed and the current metadata and status.

        None if no spec of this object parsed. The metadata must be current, since a deletion counts at once.
        """
        if before is None or before.parsed is None:
            return None
        metadata = body["metadata"]
        if before.parsed.metadata.uid != metadata.get("uid", ""):
            return None
        spec = {"spec": before.parsed.dump()["spec"]}
        try:
            return self.kind.parse({**body, **spec})
        except InvalidSpecError:
            return before.parsed


class ViewCache(Generic[ViewT]):
    """Objects of a kind that is not ours, as values.

    The store leaves out an object that `read` raises an exception about.
    """

    def __init__(self, store: ObjectStore, read: Callable[[Manifest], ViewT]) -> None:
        """Subscribe to the store; this must come before other subscribers, which read the value here."""
        self.store = store
        self._read = read
        self._views: dict[ObjectKey, ViewT] = {}
        store.subscribe(self._object_changed)

    def get(self, key: ObjectKey) -> ViewT | None:
        """Return the object; None if it does not exist."""
        return self._views.get(key)

    def list_all(self) -> tuple[ViewT, ...]:
        """Return all objects, by key."""
        return tuple(self._views[key] for key in sorted(self._views))

    def by_label(self, name: str, value: str, *, namespace: str = "") -> tuple[ViewT, ...]:
        """Return the objects with that label, by key.

        Raises KeyError for a label that is not indexed: a mistake in our code.
        """
        bodies = self.store.by_label(name, value, namespace=namespace)
        return tuple(self._views[key_of(body)] for body in bodies)

    def _object_changed(self, key: ObjectKey) -> None:
        body = self.store.get(key)
        self._views.pop(key, None)
        if body is not None:
            self._views[key] = self._read(body)
