"""Watches that fill caches: what every process starts, and what its probes say about them."""

import asyncio
from collections.abc import Iterable

from tidegate.kube.client import KubeClient
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.runtime.probes import Check, Probes


def start_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, stores: Iterable[ObjectStore], *, selector: str = ""
) -> None:
    """One list and watch for each store, as tasks of the process."""
    for store in stores:
        reflector = Reflector(client, store, selector=selector)
        tasks.create_task(reflector.run(), name=f"watch-{store.kind}")


async def synced(stores: Iterable[ObjectStore]) -> None:
    """Returns when every store has had its first listing."""
    for store in stores:
        await store.synced.wait()


def report_sync(probes: Probes, stores: Iterable[ObjectStore]) -> None:
    """Not ready before every cache is full: half a picture of the cluster is a wrong one."""
    for store in stores:
        probes.add_readiness(f"cache-{store.kind}", _listed(store))


def _listed(store: ObjectStore) -> Check:
    return lambda: None if store.synced.is_set() else f"no listing of {store.kind} yet"
