"""Objects of one kind as they are and as they change, coalesced: whoever draws them draws them a few times a second at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector

SETTLE_S: Final = 0.25
"""What changes within so short a time is one change."""
_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which objects are meant."""

    kind: Kind
    namespace: str = ""
    """Empty: all."""
    selector: str = ""
    fields: str = ""


class Changes:
    """What has changed since it was last asked for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changed: dict[ObjectKey, None] = {}
        self._woken = asyncio.Event()
        store.subscribe(self._note)

    async def next(self, *, within_s: float | None = None) -> Mapping[ObjectKey, Manifest | None]:
        """The objects that changed, None for those that are gone; empty where nothing did within that time."""
        try:
            await asyncio.wait_for(self._woken.wait(), within_s)
        except TimeoutError:
            return {}
        await asyncio.sleep(SETTLE_S)
        changed, self._changed = self._changed, {}
        self._woken.clear()
        return {key: self._store.get(key) for key in sorted(changed)}

    def _note(self, key: ObjectKey) -> None:
        self._changed[key] = None
        self._woken.set()


@asynccontextmanager
async def watched(client: KubeClient, chosen: Chosen) -> AsyncGenerator[Changes]:
    """The objects from now on; the first changes are those that are there. Raises TidegateError where they cannot be listed."""
    store = ObjectStore(chosen.kind)
    changes = Changes(store)
    reflector = Reflector(
        client, store, namespace=chosen.namespace, selector=chosen.selector, fields=chosen.fields
    )
    feeding = asyncio.create_task(reflector.run())
    try:
        while not store.synced.is_set():
            if reflector.counts.failures:
                await _refusal(client, chosen)
            await asyncio.sleep(_LOOK_S if reflector.counts.failures else 0.01)
        yield changes
    finally:
        feeding.cancel()
        await asyncio.wait({feeding})


async def _refusal(client: KubeClient, chosen: Chosen) -> None:
    """Raises why they cannot be listed; an API server that is merely away is waited for."""
    try:
        await client.list(
            chosen.kind, namespace=chosen.namespace, selector=chosen.selector, fields=chosen.fields
        )
    except ApiUnavailableError as error:
        if type(error) is not ApiUnavailableError:
            raise
