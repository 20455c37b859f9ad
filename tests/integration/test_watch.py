"""A cache kept equal to a real API server: through changes, expiry, and the server's own restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from builders.waiting import LIMIT_S, eventually
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
    duration=timedelta(seconds=30),
    backoff=Backoff(initial=timedelta(milliseconds=50), cap=timedelta(seconds=1), random=random.Random(1)),
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
        await asyncio.wait_for(store.synced.wait(), LIMIT_S)
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


@pytest.mark.slow(
    "starts an API server twice; what a broken watch does is in component/test_kube_transport.py"
)
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


async def _delete(client: KubeClient, key: ObjectKey) -> None:
    stored = await client.get(CONFIG_MAP, key)
    assert stored is not None
    await client.delete(CONFIG_MAP, key, uid=stored["metadata"]["uid"], fence=FENCE)


async def _answers(client: KubeClient) -> None:
    async def applied() -> bool:
        try:
            await client.apply(a_config_map("default", "probe", app="probe"), FENCE)
        except Exception:  # noqa: BLE001 - whatever a starting server says
            return False
        return True

    await eventually(applied, what="the API server takes writes")
    assert await client.get(NAMESPACE, ObjectKey("", "default"))
