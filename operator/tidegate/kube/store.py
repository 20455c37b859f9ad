"""What we know of one kind's objects: an in-memory cache, fed by a watch, that says which key changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import describe_without_message
from tidegate.kube.facts import sharing, without_managed_fields
from tidegate.kube.kinds import Kind
from tidegate.kube.one_thread import OneThread
from tidegate.kube.port import Manifest

Subscriber: TypeAlias = Callable[[ObjectKey], None]
Transform: TypeAlias = Callable[[Manifest], Manifest]

log: Final = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An object about which something raised an exception."""

    uid: str
    why: str
    """The exception's type, and where it was raised."""


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

    An exception that one object causes stays with that object: see `left_out`. So subscribers read an object when they are
    told of it, and not later, where nobody would know whose fault it is.
    """

    def __init__(
        self, kind: Kind, *, labels: Sequence[str] = (), transform: Transform = without_managed_fields
    ) -> None:
        """`labels` are the label names that `by_label` will be asked for; `transform` drops what nobody reads."""
        self.kind = kind
        self.synced = asyncio.Event()
        self.left_out: dict[ObjectKey, LeftOut] = {}
        """Why an object is not here as it is now, by key: the transform or a subscriber raised an exception about it. What it was
        before stays; where there was nothing, it is as if it did not exist."""
        self._thread = OneThread()
        self._transform = transform
        self._objects: dict[ObjectKey, Manifest] = {}
        self._newest: Manifest = {}
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
        """Calls `subscriber` with the key of every object that appears, changes or goes, from now on.

        A change of what nobody reads, which `transform` has dropped, is none.
        """
        self._subscribers.append(subscriber)

    def observe(self, event_type: str | None, body: Manifest) -> None:
        """Takes one watch event. kopf's None (the object was there at the start) counts as ADDED.

        Late events are dropped: an older resourceVersion, or the end of an object that was made again since.
        """
        self._thread.check(self.kind)
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
        """Takes a whole listing, or that of one namespace, as the truth: see `put` and `keep`."""
        self.keep(self.put(bodies), namespace=namespace)

    def put(self, bodies: Iterable[Manifest]) -> set[ObjectKey]:
        """Takes a page of a listing as the truth, and returns its keys.

        Even where the listing is older than what we have, as after a restore of etcd; so only the one who watches
        on from it may call this.
        """
        self._thread.check(self.kind)
        keys: set[ObjectKey] = set()
        for body in bodies:
            keys.add(key_of(body))
            self._put(key_of(body), body)
        return keys

    def keep(self, present: Collection[ObjectKey], *, namespace: str = "") -> None:
        """The last page of a listing was put: drops the ghosts that were on none, whose end nobody told us about.

        Sets `synced` once nothing that is expected is missing.
        """
        self._thread.check(self.kind)
        for key in (self._objects.keys() | self.left_out.keys()) - set(present):
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
        self,
        present: Collection[ObjectKey],
        resource_version: str,
        *,
        within: Collection[str] | None = None,
    ) -> None:
        """Drops what is not `present` in a listing whose objects were observed while somebody else (kopf) feeds the events.

        `resource_version` is the listing's own: what was made after it stays, and so does what lies in other namespaces than
        `within`, if those were all that could be listed. Sets `synced`.
        """
        self._thread.check(self.kind)
        listing = {"metadata": {"resourceVersion": resource_version}}
        for key in (self._objects.keys() | self.left_out.keys()) - set(present):
            if (within is None or key.namespace in within) and not _is_older(
                listing, than=self._objects.get(key, listing)
            ):
                self._remove(key)
        self.synced.set()

    def _put(self, key: ObjectKey, body: Manifest) -> None:
        known = self._objects.get(key)
        try:
            kept = sharing(self._transform(body), self._newest if known is None else known)
            _check_indexed(kept)
        except Exception as error:  # noqa: BLE001  whatever it is, it is about this object alone
            self._leave_out(key, body, error)
            if self._is_of_another(key, body):
                self._drop(key)
            return
        self._newest = kept
        if known is not None and _is_same(known, kept):
            self._objects[key] = kept
            self._take_in(key)
            return
        self._set(key, kept)
        raised = self._tell(key)
        if raised is None:
            self._take_in(key)
            return
        self._leave_out(key, kept, raised)
        # The same object as it was before, or none: what some have taken and others have not is neither.
        self._set(key, known)
        if self._is_of_another(key, kept):
            self._drop(key)
        else:
            self._tell_of_what_was(key)

    def _remove(self, key: ObjectKey) -> None:
        self._take_in(key)
        self._drop(key)

    def _is_of_another(self, key: ObjectKey, body: Manifest) -> bool:
        """Whether what is here is an earlier object of the name of `body`."""
        known = self._objects.get(key)
        return known is not None and uid_of(known) != uid_of(body)

    def _drop(self, key: ObjectKey) -> None:
        if key in self._objects:
            self._set(key, None)
            self._tell_of_what_was(key)

    def _tell_of_what_was(self, key: ObjectKey) -> None:
        """Of an object that is gone, or is again as it was: whoever raises now keeps a wrong picture, and the log says so."""
        raised = self._tell(key)
        if raised is not None:
            log.error(
                "subscriber_failed", kind=str(self.kind), key=str(key), why=describe_without_message(raised)
            )

    def _set(self, key: ObjectKey, body: Manifest | None) -> None:
        """Puts it in the place of what is there, and into the indexes."""
        known = self._objects.pop(key, None)
        if known is not None:
            self._unindex(key, known)
        if body is None:
            return
        self._objects[key] = body
        labels = labels_of(body)
        for name, index in self._by_label.items():
            if name in labels:
                index.add(labels[name], key)
        for uid in _owners(body):
            self._by_owner.add(uid, key)

    def _unindex(self, key: ObjectKey, body: Manifest) -> None:
        labels = labels_of(body)
        for name, index in self._by_label.items():
            if name in labels:
                index.remove(labels[name], key)
        for uid in _owners(body):
            self._by_owner.remove(uid, key)

    def _tell(self, key: ObjectKey) -> Exception | None:
        """Tells every subscriber, and returns what one of them raised."""
        raised: Exception | None = None
        for subscriber in self._subscribers:
            try:
                subscriber(key)
            except Exception as error:  # noqa: BLE001  whatever it is, it is about this object alone
                raised = error
        return raised

    def _leave_out(self, key: ObjectKey, body: Manifest, error: Exception) -> None:
        left_out = LeftOut(uid_of(body), describe_without_message(error))
        if self.left_out.get(key) != left_out:
            log.warning("object_left_out", kind=str(self.kind), key=str(key), why=left_out.why)
        self.left_out[key] = left_out

    def _take_in(self, key: ObjectKey) -> None:
        if self.left_out.pop(key, None) is not None:
            log.info("object_no_longer_left_out", kind=str(self.kind), key=str(key))


def key_of(body: Manifest) -> ObjectKey:
    """The namespace and name of an object."""
    metadata = body["metadata"]
    return ObjectKey(metadata.get("namespace") or "", metadata["name"])


def labels_of(body: Manifest) -> Mapping[str, str]:
    """The labels of an object."""
    return body["metadata"].get("labels") or {}


def _owners(body: Manifest) -> Iterable[str]:
    return tuple(owner["uid"] for owner in body["metadata"].get("ownerReferences") or ())


def _check_indexed(body: Manifest) -> None:
    """Raises TypeError for labels and owners that are no text, which only somebody else than an API server sends."""
    indexed = cast("tuple[object, ...]", (*labels_of(body).values(), *_owners(body)))
    if not all(isinstance(value, str) for value in indexed):
        message = "a label or an owner's uid is no text"
        raise TypeError(message)


def uid_of(body: Manifest) -> str:
    """The uid of an object; empty for one that no API server has stored."""
    return body["metadata"].get("uid") or ""


def _is_same(known: Manifest, kept: Manifest) -> bool:
    """Whether an object says what it said before: `kept` shares with `known` what equals it, and a resourceVersion says nothing."""
    return (
        known.keys() == kept.keys()
        and known["metadata"].keys() == kept["metadata"].keys()
        and all(kept[name] is known[name] for name in kept if name != "metadata")
        and all(
            value is known["metadata"][name]
            for name, value in kept["metadata"].items()
            if name != "resourceVersion"
        )
    )


def _resource_version(body: Manifest) -> str:
    return body["metadata"].get("resourceVersion") or ""


def _is_older(body: Manifest, *, than: Manifest) -> bool:
    """Whether `body` was stored before `than`: resourceVersions of one kind are comparable since Kubernetes 1.35.

    Where they are not numbers, nothing is known, and the event counts.
    """
    ours, theirs = _resource_version(body), _resource_version(than)
    return ours.isdecimal() and theirs.isdecimal() and int(ours) < int(theirs)
