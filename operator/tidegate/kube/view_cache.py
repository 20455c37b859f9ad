"""Caches objects of other kinds as values: each is read once when it is added and when it changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of

ViewT = TypeVar("ViewT")


class ViewCache(Generic[ViewT]):
    """Values of one kind, read out of its store.

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
