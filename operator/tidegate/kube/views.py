"""Objects of other people's kinds as values over a cache of bodies: each is read once, when it comes and when it changes."""

from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.api.meta import ObjectKey
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of

ViewT = TypeVar("ViewT")


class Views(Generic[ViewT]):
    """What is known of one kind, read out of its store.

    An object that `read` raises an exception about is left out by the store, so that nobody else meets it.
    """

    def __init__(self, store: ObjectStore, read: Callable[[Manifest], ViewT]) -> None:
        """Of the store's subscribers it has to be the first: what others are told of, they find here."""
        self.store = store
        self._read = read
        self._views: dict[ObjectKey, ViewT] = {}
        store.subscribe(self._changed)

    def get(self, key: ObjectKey) -> ViewT | None:
        """The object, or None when there is none."""
        return self._views.get(key)

    def all(self) -> tuple[ViewT, ...]:
        """All objects, by key."""
        return tuple(self._views[key] for key in sorted(self._views))

    def by_label(self, name: str, value: str, *, namespace: str = "") -> tuple[ViewT, ...]:
        """The objects with that label, by key.

        Raises KeyError for a label that is not indexed: a mistake in our code.
        """
        bodies = self.store.by_label(name, value, namespace=namespace)
        return tuple(self._views[key_of(body)] for body in bodies)

    def _changed(self, key: ObjectKey) -> None:
        body = self.store.get(key)
        self._views.pop(key, None)
        if body is not None:
            self._views[key] = self._read(body)
