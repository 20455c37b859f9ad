"""Watch objects of one kind and coalesce their changes, so that a reader redraws a few times per second at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError
from tidegate.kube.client import KubeClient
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.services.listing import ObjectSelector

COALESCE_S: Final = 0.25
"""Changes within this time count as one."""
_RETRY_S: Final = 0.2


class ChangeFeed:
    """The objects that changed since the last call of `next_changes`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changed: dict[ObjectKey, None] = {}
        self._woken = asyncio.Event()
        store.subscribe(self._mark_changed)

    async def next_changes(self, *, within_s: float | None = None) -> Mapping[ObjectKey, Manifest | None]:
        """Wait for changes and return the objects by key, None for deleted ones; empty after `within_s` without any."""
        try:
            await asyncio.wait_for(self._woken.wait(), within_s)
        except TimeoutError:
            return {}
        await asyncio.sleep(COALESCE_S)
        changed, self._changed = self._changed, {}
        self._woken.clear()
        return {key: self._store.get(key) for key in sorted(changed)}

    def _mark_changed(self, key: ObjectKey) -> None:
        self._changed[key] = None
        self._woken.set()


@asynccontextmanager
async def watch_objects(client: KubeClient, chosen: ObjectSelector) -> AsyncGenerator[ChangeFeed]:
    """Watch the chosen objects; the first changes are those that exist already.

    Raises TidegateError if they cannot be listed.
    """
    store = ObjectStore(chosen.kind)
    changes = ChangeFeed(store)
    reflector = Reflector(
        client, store, namespace=chosen.namespace, selector=chosen.labels, fields=chosen.field_selector
    )
    task = asyncio.create_task(reflector.run())
    try:
        while not store.synced.is_set():
            if reflector.counts.failures:
                await _raise_if_rejected(client, chosen)
            await asyncio.sleep(_RETRY_S if reflector.counts.failures else 0.01)
        yield changes
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _raise_if_rejected(client: KubeClient, chosen: ObjectSelector) -> None:
    """Raise the error that prevents listing them; return if the API server is merely unavailable."""
    try:
        await client.list(
            chosen.kind, namespace=chosen.namespace, selector=chosen.labels, fields=chosen.field_selector
        )
    except ApiUnavailableError as error:
        if type(error) is not ApiUnavailableError:
            raise
