"""Watches that fill caches: what every process starts, and what its probes say about them."""

import asyncio
from collections.abc import Iterable, Mapping

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE
from tidegate.kube.client import KubeClient
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector
from tidegate.runtime.probes import Check, Probes


def start_watches(
    tasks: asyncio.TaskGroup,
    client: KubeClient,
    stores: Iterable[ObjectStore],
    *,
    namespace: str = "",
    selector: str = "",
) -> tuple[Reflector, ...]:
    """One list and watch for each store, as tasks of the process; of one namespace where it is named and the kind has some."""
    reflectors = tuple(
        Reflector(client, store, namespace=namespace if store.kind.namespaced else "", selector=selector)
        for store in stores
    )
    for reflector in reflectors:
        tasks.create_task(reflector.run(), name=f"watch-{reflector.kind}")
    return reflectors


def start_secret_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, stores: Mapping[str, ObjectStore]
) -> tuple[Reflector, ...]:
    """One list and watch for each namespace, of the Secrets that say they are for the gateways."""
    selector = f"{AUTH_LABEL}={AUTH_LABEL_VALUE}"
    reflectors = tuple(
        Reflector(client, store, namespace=namespace, selector=selector)
        for namespace, store in stores.items()
    )
    for reflector, namespace in zip(reflectors, stores, strict=True):
        tasks.create_task(reflector.run(), name=f"watch-secrets-{namespace}")
    return reflectors


def start_named_secret_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, namespace: str, stores: Mapping[str, ObjectStore]
) -> tuple[Reflector, ...]:
    """One list and watch for each Secret, by name: whoever may read those of these names alone may ask for nothing else."""
    reflectors = tuple(
        Reflector(client, store, namespace=namespace, fields=f"metadata.name={name}")
        for name, store in stores.items()
    )
    for reflector, name in zip(reflectors, stores, strict=True):
        tasks.create_task(reflector.run(), name=f"watch-secret-{name}")
    return reflectors


async def settled(reflectors: Iterable[Reflector]) -> None:
    """Returns when each has listed once or was told that it may not: to wait for longer would keep everybody else waiting."""
    for reflector in reflectors:
        await reflector.settled.wait()


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
