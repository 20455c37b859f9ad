"""What we know of one kind's objects: an in-memory cache, fed by a watch, that says which key changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidegate.api.meta import ObjectKey
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest

Subscriber: TypeAlias = Callable[[ObjectKey], None]
Transform: TypeAlias = Callable[[Manifest], Manifest]


def without_managed_fields(body: Manifest) -> Manifest:
    """`body` without the half of it that only the API server reads."""
    metadata: Mapping[str, Any] = body.get("metadata", {})
    if "managedFields" not in metadata:
        return body
    return {**body, "metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}


@dataclass(slots=True)
class _Index:
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
    """The objects of one kind by key, and by the labels and owners that it was told to index.

    Nothing here waits: feeders call `observe` and `replace` on the event loop, readers read at any time.
    A late or repeated event never overwrites what is newer. Readers must not change what they get.
    """

    def __init__(
        self, kind: Kind, *, labels: Sequence[str] = (), transform: Transform = without_managed_fields
    ) -> None:
        """`labels` are the label names that `by_label` will be asked for; `transform` drops what nobody reads."""
        self.kind = kind
        self.synced = asyncio.Event()
        self._transform = transform
        self._objects: dict[ObjectKey, Manifest] = {}
        self._by_label: dict[str, _Index] = {name: _Index() for name in labels}
        self._by_owner = _Index()
        self._subscribers: list[Subscriber] = []
        self._unlisted: set[str] = set()
        self._listed = False

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Manifest]:
        return iter(tuple(self._objects.values()))

    def keys(self) -> Sequence[ObjectKey]:
        """The keys of all objects, in no order."""
        return tuple(self._objects)

    def get(self, key: ObjectKey) -> Manifest | None:
        """The object, or None when there is none."""
        return self._objects.get(key)

    def list(self, namespace: str = "") -> Sequence[Manifest]:
        """All objects, or those in one namespace, by key."""
        return tuple(
            self._objects[key] for key in sorted(self._objects) if not namespace or key.namespace == namespace
        )

    def by_label(self, name: str, value: str, *, namespace: str = "") -> Sequence[Manifest]:
        """The objects with that label, by key.

        Raises KeyError for a label that is not indexed: a mistake in our code.
        """
        keys = sorted(self._by_label[name].get(value))
        return tuple(self._objects[key] for key in keys if not namespace or key.namespace == namespace)

    def by_owner(self, uid: str) -> Sequence[Manifest]:
        """The objects that have an owner reference to that uid, by key."""
        return tuple(self._objects[key] for key in sorted(self._by_owner.get(uid)))

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` with the key of every object that appears, changes or goes, from now on."""
        self._subscribers.append(subscriber)

    def observe(self, event_type: str | None, body: Manifest) -> None:
        """Takes one watch event. kopf's None (the object was there at the start) counts as ADDED.

        Late events are dropped: an older resourceVersion, or the end of an object that was made again since.
        """
        key = key_of(body)
        known = self._objects.get(key)
        if known is not None and _is_older(body, than=known):
            return
        if event_type == "DELETED":
            self._remove(key)
        else:
            self._put(key, body)

    def expect(self, namespaces: Iterable[str]) -> None:
        """Each of these namespaces is going to be listed by itself; `synced` waits for all of them."""
        self._unlisted.update(namespaces)

    def replace(self, bodies: Iterable[Manifest], *, namespace: str = "") -> None:
        """Takes a whole listing, or that of one namespace, as the truth: adds, changes, and drops the ghosts whose end nobody told us about.

        Even where the listing is older than what we have, as after a restore of etcd; so only the one who watches
        on from it may call this. Sets `synced` once nothing that is expected is missing.
        """
        present: set[ObjectKey] = set()
        for body in bodies:
            present.add(key_of(body))
            self._put(key_of(body), body)
        for key in self._objects.keys() - present:
            if not namespace or key.namespace == namespace:
                self._remove(key)
        self._listed = True
        self._unlisted.discard(namespace)
        if not self._unlisted:
            self.synced.set()

    def forgo(self, namespace: str) -> None:
        """One of several namespaces may not be listed: whoever waits for all of them does so no longer, once another was listed.

        While none was, it is our rights that are missing, and nothing is known.
        """
        if self._listed and namespace in self._unlisted:
            self._unlisted.discard(namespace)
            if not self._unlisted:
                self.synced.set()

    def resync(
        self, bodies: Iterable[Manifest], resource_version: str, *, within: Collection[str] | None = None
    ) -> None:
        """Takes a listing made while somebody else (kopf) feeds the events; `resource_version` is the listing's own.

        What changed or was made after the listing stays, and so does what lies in other namespaces than `within`, if those were
        all that could be listed. Sets `synced`.
        """
        listing = {"metadata": {"resourceVersion": resource_version}}
        present: set[ObjectKey] = set()
        for body in bodies:
            present.add(key_of(body))
            self.observe("MODIFIED", body)
        for key in self._objects.keys() - present:
            if (within is None or key.namespace in within) and not _is_older(
                listing, than=self._objects[key]
            ):
                self._remove(key)
        self.synced.set()

    def _put(self, key: ObjectKey, body: Manifest) -> None:
        kept = self._transform(body)
        known = self._objects.get(key)
        if known is not None:
            if _resource_version(known) == _resource_version(kept) and known == kept:
                return
            self._unindex(key, known)
        self._objects[key] = kept
        labels = _labels(kept)
        for name, index in self._by_label.items():
            if name in labels:
                index.add(labels[name], key)
        for uid in _owners(kept):
            self._by_owner.add(uid, key)
        self._tell(key)

    def _remove(self, key: ObjectKey) -> None:
        known = self._objects.pop(key, None)
        if known is not None:
            self._unindex(key, known)
            self._tell(key)

    def _unindex(self, key: ObjectKey, body: Manifest) -> None:
        labels = _labels(body)
        for name, index in self._by_label.items():
            if name in labels:
                index.remove(labels[name], key)
        for uid in _owners(body):
            self._by_owner.remove(uid, key)

    def _tell(self, key: ObjectKey) -> None:
        for subscriber in self._subscribers:
            subscriber(key)


def key_of(body: Manifest) -> ObjectKey:
    """The namespace and name of an object."""
    metadata = body["metadata"]
    return ObjectKey(metadata.get("namespace") or "", metadata["name"])


def _labels(body: Manifest) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _owners(body: Manifest) -> Iterable[str]:
    return tuple(owner["uid"] for owner in body["metadata"].get("ownerReferences") or ())


def _resource_version(body: Manifest) -> str:
    return body["metadata"].get("resourceVersion") or ""


def _is_older(body: Manifest, *, than: Manifest) -> bool:
    """Whether `body` was stored before `than`: resourceVersions of one kind are comparable since Kubernetes 1.35.

    Where they are not numbers, nothing is known, and the event counts.
    """
    ours, theirs = _resource_version(body), _resource_version(than)
    return ours.isdecimal() and theirs.isdecimal() and int(ours) < int(theirs)
