"""Watches that fill caches: what every process starts, and what its probes say about them."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.store import ObjectStore, key_of
from tidegate.kube.watch import Reflector, reflectors
from tidegate.runtime.probes import Check, Probes

log: Final = structlog.stdlib.get_logger()


def start_watches(
    tasks: asyncio.TaskGroup,
    client: KubeClient,
    stores: Iterable[ObjectStore],
    *,
    namespaces: Collection[str] = (),
    selector: str = "",
) -> tuple[Reflector, ...]:
    """One list and watch for each store, as tasks of the process; of these namespaces, each by itself, where they are named and the kind has some."""
    started = tuple(
        reflector
        for store in stores
        for reflector in reflectors(
            client, store, namespaces if store.kind.namespaced else (), selector=selector
        )
    )
    for reflector in started:
        tasks.create_task(reflector.run(), name=f"watch-{reflector.kind}")
    return started


def stores_within(stores: Iterable[ObjectStore], namespaces: Collection[str]) -> tuple[ObjectStore, ...]:
    """The stores that are to be filled by who serves these namespaces, all where none is named.

    Who serves some has no right to kinds without one: their stores stay empty, and count as listed.
    """
    known = tuple(stores)
    if not namespaces:
        return known
    for store in known:
        if not store.kind.namespaced:
            store.replace(())
    return tuple(store for store in known if store.kind.namespaced)


def start_secret_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, stores: Mapping[str, ObjectStore]
) -> tuple[Reflector, ...]:
    """One list and watch for each namespace, of the Secrets that say they are for the gateways."""
    selector = f"{AUTH_LABEL}={AUTH_LABEL_VALUE}"
    started = tuple(
        Reflector(client, store, namespace=namespace, selector=selector)
        for namespace, store in stores.items()
    )
    for reflector, namespace in zip(started, stores, strict=True):
        tasks.create_task(reflector.run(), name=f"watch-secrets-{namespace}")
    return started


def start_named_secret_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, namespace: str, stores: Mapping[str, ObjectStore]
) -> tuple[Reflector, ...]:
    """One list and watch for each Secret, by name: whoever may read those of these names alone may ask for nothing else."""
    started = tuple(
        Reflector(client, store, namespace=namespace, fields=f"metadata.name={name}")
        for name, store in stores.items()
    )
    for reflector, name in zip(started, stores, strict=True):
        tasks.create_task(reflector.run(), name=f"watch-secret-{name}")
    return started


async def settled(started: Iterable[Reflector]) -> None:
    """Returns when each has listed once or was told that it may not: to wait for longer would keep everybody else waiting."""
    for reflector in started:
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


async def observe_all(
    client: KubeClient, store: ObjectStore, namespaces: Sequence[str]
) -> tuple[set[ObjectKey], str, tuple[str, ...]]:
    """Observes all objects of a kind; returns their keys, the version that none of them is older than, and which of `namespaces`
    they are of: those that may be listed.

    No namespaces are all there are. Raises TidegateError where nothing can be listed.
    """
    present: set[ObjectKey] = set()
    versions: dict[str, str] = {}
    refused: PermanentError | None = None
    for namespace in namespaces or ("",):
        try:
            version = ""
            async for bodies, version in client.pages(store.kind, namespace=namespace):  # noqa: B007  all have the same
                for body in bodies:
                    present.add(key_of(body))
                    store.observe("MODIFIED", body)
            versions[namespace] = version  # only now: one that is refused after a page was not listed
        except PermanentError as error:
            if namespaces:
                log.warning(
                    "namespace_not_listed", kind=str(store.kind), namespace=namespace, error=str(error)
                )
            refused = error
    if refused is not None and not versions:
        raise refused
    return present, next(iter(versions.values())), tuple(versions) if namespaces else ()
