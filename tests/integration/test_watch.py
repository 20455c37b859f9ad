"""A cache kept equal to a real API server: through changes, expiry, and the server's own restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.kube.backoff import Backoff
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import CONFIG_MAP, NAMESPACE
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector, WatchSettings
from tidegate_localcluster.control_plane import ControlPlane
from tidegate_localcluster.pki import Pki

FENCE = Fence.unlimited(1)
SELECTOR = "app=watched"
QUICK = WatchSettings(
    lasting=timedelta(seconds=30),
    backoff=Backoff(first=timedelta(milliseconds=50), cap=timedelta(seconds=1), random=random.Random(1)),
)


def a_config_map(namespace: str, name: str, app: str = "watched", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"app": app}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


@asynccontextmanager
async def reflecting(
    client: KubeClient, namespace: str, settings: WatchSettings = QUICK
) -> AsyncIterator[tuple[ObjectStore, Reflector]]:
    store = ObjectStore(CONFIG_MAP, labels=("app",))
    reflector = Reflector(client, store, namespace=namespace, selector=SELECTOR, settings=settings)
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(store.synced.wait(), 20)
        yield store, reflector
        assert not task.done(), "the reflector ended"
    finally:
        task.cancel()
        await asyncio.wait({task})


def names(store: ObjectStore) -> list[str]:
    return [key.name for key in sorted(store.keys())]


async def test_the_cache_follows_what_happens(client: KubeClient, namespace: str) -> None:
    await client.apply(a_config_map(namespace, "before"), FENCE)
    async with reflecting(client, namespace) as (store, reflector):
        assert names(store) == ["before"]
        await client.apply(a_config_map(namespace, "during", a="1"), FENCE)
        await eventually(lambda: names(store) == ["before", "during"], what="the new object")
        await client.apply(a_config_map(namespace, "during", a="2"), FENCE)
        during = ObjectKey(namespace, "during")
        await eventually(lambda: (store.get(during) or {}).get("data") == {"a": "2"}, what="the change")
        await _delete(client, ObjectKey(namespace, "before"))
        await eventually(lambda: names(store) == ["during"], what="the end of the first")
        assert reflector.counts.lists == 1


async def test_only_what_the_selector_picks_is_seen_also_when_a_label_changes(
    client: KubeClient, namespace: str
) -> None:
    await client.apply(a_config_map(namespace, "other", app="other"), FENCE)
    async with reflecting(client, namespace) as (store, _):
        assert names(store) == []
        await client.apply(a_config_map(namespace, "other"), FENCE)
        await eventually(lambda: names(store) == ["other"], what="it comes under the selector")
        await client.apply(a_config_map(namespace, "other", app="other"), FENCE)
        await eventually(lambda: names(store) == [], what="it leaves the selector")


async def test_a_place_that_is_too_old_leads_to_a_listing(client: KubeClient, namespace: str) -> None:
    await client.apply(a_config_map(namespace, "a"), FENCE)
    async with reflecting(client, namespace, _watches_of(timedelta(seconds=1))) as (store, reflector):
        reflector._resource_version = "1"
        await eventually(lambda: reflector.counts.watches >= 2, what="the next watch")
        await client.apply(a_config_map(namespace, "b"), FENCE)
        await eventually(lambda: names(store) == ["a", "b"], what="both objects")
        # Some servers still remember version 1; those that do not say 410.
        assert reflector.counts.lists == 1 + reflector.counts.expired


async def test_a_watch_that_the_server_ends_goes_on_without_a_listing(
    client: KubeClient, namespace: str
) -> None:
    async with reflecting(client, namespace, _watches_of(timedelta(seconds=1))) as (store, reflector):
        await eventually(lambda: reflector.counts.watches >= 3, what="three watches")
        await client.apply(a_config_map(namespace, "a"), FENCE)
        await eventually(lambda: names(store) == ["a"], what="the object")
        assert (reflector.counts.lists, reflector.counts.failures) == (1, 0)


async def test_what_went_while_nobody_watched_is_dropped_by_the_next_listing(
    client: KubeClient, namespace: str
) -> None:
    store = ObjectStore(CONFIG_MAP)
    ghost = await client.apply(a_config_map(namespace, "ghost"), FENCE)
    store.observe("ADDED", ghost)
    await _delete(client, ObjectKey(namespace, "ghost"))
    bodies, version = await client.list_with_version(CONFIG_MAP, namespace=namespace, selector=SELECTOR)
    store.resync(bodies, version)
    assert names(store) == []


async def test_a_restart_of_the_api_server_is_survived(
    control_plane_binaries: Mapping[str, Path], tmp_path: Path
) -> None:
    own = ControlPlane(tmp_path / "state", control_plane_binaries, Pki(tmp_path / "pki"))
    await asyncio.to_thread(own.start)
    try:
        settings = ClientSettings(field_manager="tidegate-test")
        async with (
            await KubeClient.connect(settings, kubeconfig=own.kubeconfig) as client,
            reflecting(client, "default") as (store, reflector),
        ):
            await client.apply(a_config_map("default", "a"), FENCE)
            await eventually(lambda: names(store) == ["a"], what="the object")
            server = own._processes["kube-apiserver"]
            server.kill()
            await eventually(lambda: reflector.counts.failures >= 2, what="the outage is noticed")
            assert names(store) == ["a"], "an outage is no deletion"
            server.start()
            await _answers(client)
            await client.apply(a_config_map("default", "b"), FENCE)
            await eventually(lambda: names(store) == ["a", "b"], what="the object made after the restart")
    finally:
        await asyncio.to_thread(own.stop)


def _watches_of(lasting: timedelta) -> WatchSettings:
    return WatchSettings(lasting=lasting, backoff=QUICK.backoff)


async def _delete(client: KubeClient, key: ObjectKey) -> None:
    stored = await client.get(CONFIG_MAP, key)
    assert stored is not None
    await client.delete(CONFIG_MAP, key, uid=stored["metadata"]["uid"], fence=FENCE)


async def _answers(client: KubeClient) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.apply(a_config_map("default", "probe", app="probe"), FENCE)
            except Exception:  # noqa: BLE001 - whatever a starting server says
                await asyncio.sleep(0.1)
            else:
                return
    assert await client.get(NAMESPACE, ObjectKey("", "default"))
