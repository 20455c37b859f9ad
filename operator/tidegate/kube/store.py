"""An in-memory cache of one kind's objects, fed by a watch, that notifies subscribers of changed keys."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import describe_without_message
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.thread_guard import ThreadGuard
from tidegate.kube.transforms import drop_managed_fields, share_equal_parts

Subscriber: TypeAlias = Callable[[ObjectKey], None]
Transform: TypeAlias = Callable[[Manifest], Manifest]

log: Final = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class LeftOutObject:
    """An object that is left out because the transform or a subscriber raised an exception about it."""

    uid: str
    problem: str
    """The exception's type, and where it was raised."""


@dataclass(slots=True)
class _KeyIndex:
    """Keys by the value of a label, or by the uid of an owner."""

    keys: defaultdict[str, dict[ObjectKey, None]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, value: str, key: ObjectKey) -> None:
        self.keys[value][key] = None

    def remove(self, value: str, key: ObjectKey) -> None:
        entries = self.keys.get(value)
        if entries is not None:
            entries.pop(key, None)
            if not entries:
                del self.keys[value]

    def get(self, value: str) -> Iterable[ObjectKey]:
        return tuple(self.keys.get(value, ()))


class ObjectStore:
    """The objects of one kind by key, indexed by owner and by the given labels.

    Nothing here blocks: feeders call `observe` and `replace` on the event loop, readers read at any time.
    A late or repeated event never overwrites a newer object. Readers must not change the objects that they get.

    An exception that one object causes stays with that object: see `left_out`. Subscribers must therefore read the
    object when they are called, since an exception that they raise later cannot be traced to it.
    """

    def __init__(
        self, kind: Kind, *, labels: Sequence[str] = (), transform: Transform = drop_managed_fields
    ) -> None:
        """Index `labels`, the label names that `by_label` accepts; `transform` drops fields that are never read."""
        self.kind = kind
        self.synced = asyncio.Event()
        self.left_out: dict[ObjectKey, LeftOutObject] = {}
        """Objects by key for which the transform or a subscriber raised an exception.

        The cache keeps such an object as it was before, or does not have it.
        """
        self._thread = ThreadGuard()
        self._transform = transform
        self._objects: dict[ObjectKey, Manifest] = {}
        self._newest: Manifest = {}
        self._by_label: dict[str, _KeyIndex] = {name: _KeyIndex() for name in labels}
        self._by_owner = _KeyIndex()
        self._subscribers: list[Subscriber] = []
        self._unlisted: set[str] = set()
        self._listed = False

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(tuple(self._objects.values()))

    def keys(self) -> Sequence[ObjectKey]:
        """Return the keys of all objects, in no order."""
        return tuple(self._objects)

    def get(self, key: ObjectKey) -> Manifest | None:
        """Return the object; None if it does not exist."""
        return self._objects.get(key)

    def list(self, namespace: str = "") -> Sequence[Manifest]:
        """Return all objects, or those in one namespace, by key."""
        return tuple(
            self._objects[key] for key in sorted(self._objects) if not namespace or key.namespace == namespace
        )

    def by_label(self, name: str, value: str, *, namespace: str = "") -> Sequence[Manifest]:
        """Return the objects with that label, by key.

        Raises KeyError for a label that is not indexed: a mistake in our code.
        """
        keys = sorted(self._by_label[name].get(value))
        return tuple(self._objects[key] for key in keys if not namespace or key.namespace == namespace)

    def by_owner(self, uid: str) -> Sequence[Manifest]:
        """Return the objects with an owner reference to that uid, by key."""
        return tuple(self._objects[key] for key in sorted(self._by_owner.get(uid)))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with the key of every object that is added, changed or deleted from now on.

        A change only of fields that `transform` drops does not count.
        """
        self._subscribers.append(subscriber)

    def observe(self, event_type: str | None, body: Manifest) -> None:
        """Take one watch event. kopf's None (the object existed at the start) counts as ADDED.

        Late events are dropped: an older resourceVersion, or the deletion of an object that was recreated since.
        """
        self._thread.check_thread(self.kind)
        key = key_of(body)
        current = self._objects.get(key)
        if current is not None and _is_older(body, than=current):
            return
        if event_type == "DELETED":
            self._remove_key(key)
        else:
            self._put_object(key, body)

    def expect_listings(self, namespaces: Iterable[str]) -> None:
        """Announce that each of these namespaces will be listed separately; `synced` waits for all of them."""
        self._unlisted.update(namespaces)

    def replace(self, bodies: Iterable[Manifest], *, namespace: str = "") -> None:
        """Take a complete listing of all namespaces, or of one, as the truth: see `put_page` and `finish_listing`."""
        self.finish_listing(self.put_page(bodies), namespace=namespace)

    def put_page(self, bodies: Iterable[Manifest]) -> set[ObjectKey]:
        """Take one page of a listing as the truth, and return its keys.

        It overwrites even newer objects, as after a restore of etcd, so only the caller that watches on from this listing
        may call it.
        """
        self._thread.check_thread(self.kind)
        keys: set[ObjectKey] = set()
        for body in bodies:
            keys.add(key_of(body))
            self._put_object(key_of(body), body)
        return keys

    def finish_listing(self, present: Collection[ObjectKey], *, namespace: str = "") -> None:
        """Finish a listing after its last page: remove the objects that were on no page, whose deletion was missed.

        Sets `synced` once no expected listing is missing.
        """
        self._thread.check_thread(self.kind)
        for key in (self._objects.keys() | self.left_out.keys()) - set(present):
            if not namespace or key.namespace == namespace:
                self._remove_key(key)
        self._listed = True
        self._unlisted.discard(namespace)
        if not self._unlisted:
            self.synced.set()

    def skip_namespace(self, namespace: str) -> None:
        """Stop waiting for a namespace that may not be listed, if another namespace has been listed.

        If none has, our rights are missing, and the cache stays unsynced.
        """
        if self._listed and namespace in self._unlisted:
            self._unlisted.discard(namespace)
            if not self._unlisted:
                self.synced.set()

    def prune_absent(
        self,
        present: Collection[ObjectKey],
        resource_version: str,
        *,
        within: Collection[str] | None = None,
    ) -> None:
        """Remove the objects that are not `present` in a listing, while another feeder (kopf) delivers the events.

        `resource_version` is the listing's own: objects created after it stay, and so do those outside of `within`, the
        namespaces that could be listed. Sets `synced`.
        """
        self._thread.check_thread(self.kind)
        listing = {"metadata": {"resourceVersion": resource_version}}
        for key in (self._objects.keys() | self.left_out.keys()) - set(present):
            if (within is None or key.namespace in within) and not _is_older(
                listing, than=self._objects.get(key, listing)
            ):
                self._remove_key(key)
        self.synced.set()

    def _put_object(self, key: ObjectKey, body: Manifest) -> None:
        before = self._objects.get(key)
        try:
            transformed = share_equal_parts(self._transform(body), self._newest if before is None else before)
            _check_index_values(transformed)
        except Exception as error:  # noqa: BLE001  one object's exception stays with that object
            self._leave_out(key, body, error)
            if self._has_predecessor(key, body):
                self._delete_object(key)
            return
        self._newest = transformed
        if before is not None and _is_same(before, transformed):
            self._objects[key] = transformed
            self._clear_left_out(key)
            return
        self._set_object(key, transformed)
        raised = self._notify_subscribers(key)
        if raised is None:
            self._clear_left_out(key)
            return
        self._leave_out(key, transformed, raised)
        # Go back to the object as it was, or to none: some subscribers have taken the new one, and others have not.
        self._set_object(key, before)
        if self._has_predecessor(key, transformed):
            self._delete_object(key)
        else:
            self._notify_of_previous(key)

    def _remove_key(self, key: ObjectKey) -> None:
        self._clear_left_out(key)
        self._delete_object(key)

    def _has_predecessor(self, key: ObjectKey, body: Manifest) -> bool:
        """Return whether the cache has an earlier object of the name of `body`."""
        current = self._objects.get(key)
        return current is not None and uid_of(current) != uid_of(body)

    def _delete_object(self, key: ObjectKey) -> None:
        if key in self._objects:
            self._set_object(key, None)
            self._notify_of_previous(key)

    def _notify_of_previous(self, key: ObjectKey) -> None:
        """Notify subscribers of an object that was removed or restored, and log what they raise."""
        raised = self._notify_subscribers(key)
        if raised is not None:
            log.error(
                "subscriber_failed", kind=str(self.kind), key=str(key), why=describe_without_message(raised)
            )

    def _set_object(self, key: ObjectKey, body: Manifest | None) -> None:
        """Replace the object, or remove it if `body` is None, and update the indexes."""
        before = self._objects.pop(key, None)
        if before is not None:
            self._remove_from_indexes(key, before)
        if body is None:
            return
        self._objects[key] = body
        labels = labels_of(body)
        for name, index in self._by_label.items():
            if name in labels:
                index.add(labels[name], key)
        for uid in _owner_uids(body):
            self._by_owner.add(uid, key)

    def _remove_from_indexes(self, key: ObjectKey, body: Manifest) -> None:
        labels = labels_of(body)
        for name, index in self._by_label.items():
            if name in labels:
                index.remove(labels[name], key)
        for uid in _owner_uids(body):
            self._by_owner.remove(uid, key)

    def _notify_subscribers(self, key: ObjectKey) -> Exception | None:
        """Notify every subscriber; return an exception that one of them raised."""
        raised: Exception | None = None
        for subscriber in self._subscribers:
            try:
                subscriber(key)
            except Exception as error:  # noqa: BLE001  one object's exception stays with that object
                raised = error
        return raised

    def _leave_out(self, key: ObjectKey, body: Manifest, error: Exception) -> None:
        left_out = LeftOutObject(uid_of(body), describe_without_message(error))
        if self.left_out.get(key) != left_out:
            log.warning("object_left_out", kind=str(self.kind), key=str(key), why=left_out.problem)
        self.left_out[key] = left_out

    def _clear_left_out(self, key: ObjectKey) -> None:
        if self.left_out.pop(key, None) is not None:
            log.info("object_no_longer_left_out", kind=str(self.kind), key=str(key))


def key_of(body: Manifest) -> ObjectKey:
    """Return the namespace and name of an object."""
    metadata = body["metadata"]
    return ObjectKey(metadata.get("namespace") or "", metadata["name"])


def labels_of(body: Manifest) -> Mapping[str, str]:
    """Return the labels of an object."""
    return body["metadata"].get("labels") or {}


def _owner_uids(body: Manifest) -> Iterable[str]:
    return tuple(owner["uid"] for owner in body["metadata"].get("ownerReferences") or ())


def _check_index_values(body: Manifest) -> None:
    """Raise TypeError if a label or an owner's uid is no string, which an API server never sends."""
    indexed = cast("tuple[object, ...]", (*labels_of(body).values(), *_owner_uids(body)))
    if not all(isinstance(value, str) for value in indexed):
        message = "a label or an owner's uid is no text"
        raise TypeError(message)


def uid_of(body: Manifest) -> str:
    """Return the uid of an object; empty if no API server has stored it."""
    return body["metadata"].get("uid") or ""


def _is_same(before: Manifest, after: Manifest) -> bool:
    """Return whether two versions of an object differ in nothing but the resourceVersion.

    `after` shares with `before` the parts that are equal, so that identity is enough.
    """
    return (
        before.keys() == after.keys()
        and before["metadata"].keys() == after["metadata"].keys()
        and all(after[name] is before[name] for name in after if name != "metadata")
        and all(
            value is before["metadata"][name]
            for name, value in after["metadata"].items()
            if name != "resourceVersion"
        )
    )


def _resource_version(body: Manifest) -> str:
    return body["metadata"].get("resourceVersion") or ""


def _is_older(body: Manifest, *, than: Manifest) -> bool:
    """Return whether `body` was stored before `than`.

    ResourceVersions of one kind are comparable since Kubernetes 1.35. If they are not numbers, the event counts.
    """
    ours, theirs = _resource_version(body), _resource_version(than)
    return ours.isdecimal() and theirs.isdecimal() and int(ours) < int(theirs)
