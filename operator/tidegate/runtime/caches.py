"""Starts the watches that fill caches, and reports to the probes whether they have synced."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import structlog

from tidegate.api.auth import AUTH_LABEL, AUTH_LABEL_VALUE
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.kube.store import ObjectStore, key_of
from tidegate.kube.watch import Reflector, make_reflectors
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
    """Start one list and watch for each store, as tasks of the process.

    With `namespaces`, stores of namespaced kinds get one for each namespace.
    """
    started = tuple(
        reflector
        for store in stores
        for reflector in make_reflectors(
            client, store, namespaces if store.kind.namespaced else (), selector=selector
        )
    )
    for reflector in started:
        tasks.create_task(reflector.run(), name=f"watch-{reflector.kind}")
    return started


def stores_within(stores: Iterable[ObjectStore], namespaces: Collection[str]) -> tuple[ObjectStore, ...]:
    """Return the stores to fill when serving `namespaces`; all if none is given.

    A process that serves some namespaces has no right to cluster-scoped kinds: their stores stay empty and count as
    synced.
    """
    all_stores = tuple(stores)
    if not namespaces:
        return all_stores
    for store in all_stores:
        if not store.kind.namespaced:
            store.replace(())
    return tuple(store for store in all_stores if store.kind.namespaced)


def start_secret_watches(
    tasks: asyncio.TaskGroup, client: KubeClient, stores: Mapping[str, ObjectStore]
) -> tuple[Reflector, ...]:
    """Start one list and watch per namespace, of the Secrets that are labelled for the gateways."""
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
    """Start one list and watch per Secret, by name: a role that names Secrets allows nothing else."""
    started = tuple(
        Reflector(client, store, namespace=namespace, fields=f"metadata.name={name}")
        for name, store in stores.items()
    )
    for reflector, name in zip(started, stores, strict=True):
        tasks.create_task(reflector.run(), name=f"watch-secret-{name}")
    return started


async def wait_until_settled(reflectors: Iterable[Reflector]) -> None:
    """Wait until each reflector has listed once or was refused: a missing right must not block the process."""
    for reflector in reflectors:
        await reflector.settled.wait()


async def wait_until_synced(stores: Iterable[ObjectStore]) -> None:
    """Wait until every store has had its first listing."""
    for store in stores:
        await store.synced.wait()


def report_sync(probes: Probes, stores: Iterable[ObjectStore]) -> None:
    """Report not ready before every cache has synced: a partial view of the cluster is a wrong one."""
    for store in stores:
        probes.add_readiness(f"cache-{store.kind}", _sync_check(store))


def _sync_check(store: ObjectStore) -> Check:
    return lambda: None if store.synced.is_set() else f"no listing of {store.kind} yet"


async def observe_all(
    client: KubeClient, store: ObjectStore, namespaces: Sequence[str]
) -> tuple[set[ObjectKey], str, tuple[str, ...]]:
    """Observe all objects of a kind.

    Returns their keys, the resourceVersion that none of them is older than, and which of `namespaces` could be listed.
    Without namespaces, list the whole cluster. Raises TidegateError if nothing could be listed.
    """
    present: set[ObjectKey] = set()
    versions: dict[str, str] = {}
    refused: PermanentError | None = None
    for namespace in namespaces or ("",):
        try:
            version = ""
            async for bodies, version in client.list_pages(store.kind, namespace=namespace):  # noqa: B007  all are equal
                for body in bodies:
                    present.add(key_of(body))
                    store.observe("MODIFIED", body)
            versions[namespace] = version  # only now: a namespace that is refused after a page was not listed
        except PermanentError as error:
            if namespaces:
                log.warning(
                    "namespace_not_listed", kind=str(store.kind), namespace=namespace, error=str(error)
                )
            refused = error
    if refused is not None and not versions:
        raise refused
    return present, next(iter(versions.values())), tuple(versions) if namespaces else ()
