"""The gateways' counters as `tidegate top` reads them: through an API server's port forward, of a real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback
from builders.model_access import a_model_access, a_route
from builders.port_forward import carried_to
from fixtures.envoy import Gateway, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.planning.access.value_classes import index_routes
from tidegate.services.traffic import METRICS_PORT, sample_release_gateways

SETTINGS = ClientSettings(field_manager="test", request_timeout=timedelta(seconds=5))


def a_pod(name: str, *, ready: bool) -> dict[str, Any]:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    metadata = {"name": name, "namespace": "tidegate-system", "uid": name}
    return {"metadata": metadata, "spec": {"containers": []}, "status": status}


@asynccontextmanager
async def an_api_server(folder: Path, admin: str, *pods: dict[str, Any]) -> AsyncIterator[KubeClient]:
    """Knows these pods; of gateway-1 alone it carries the port of its metrics, to `admin`."""

    async def listed(request: web.Request) -> web.Response:
        assert "app.kubernetes.io/component=gateway" in request.query["labelSelector"]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(pods)})

    place = "/api/v1/namespaces/tidegate-system/pods"
    application = web.Application()
    application.router.add_get(place, listed)
    application.router.add_get(f"{place}/gateway-1/portforward", carried_to(admin, METRICS_PORT))
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address)
        async with await KubeClient.connect(SETTINGS, kubeconfig=kubeconfig) as client:
            yield client


async def test_requests_are_counted_through_port_forwards_and_who_says_nothing_is_named(
    gateway: Gateway, tmp_path: Path
) -> None:
    access = a_model_access("ctr", routes=[a_route()])
    client = await gateway.start(access, backend_of("ctr", await gateway.upstream("v1")))
    pods = [
        a_pod("gateway-1", ready=True),
        a_pod("gateway-2", ready=True),
        a_pod("gateway-3", ready=False),
    ]
    async with an_api_server(tmp_path, gateway.envoy.admin, *pods) as cluster:
        looking = asyncio.create_task(
            sample_release_gateways(cluster, "tidegate", "tidegate-system", index_routes([access]), 4.0)
        )
        while not looking.done():
            await client.infer(metadata=(("x-tidegate-access", "ads/ctr"),))
            await asyncio.sleep(0.01)
        look = await looking
    reading = look.by_key[ObjectKey("ads", "ctr")]
    assert (reading.offered_per_s or 0.0) > 0.0
    assert reading.latency_p99_s is not None
    assert (look.silent_gateways, look.failure) == (("gateway-2",), "")


async def test_where_none_is_ready_there_is_nothing_and_that_is_said(tmp_path: Path) -> None:
    pods = [a_pod("gateway-1", ready=False)]
    async with an_api_server(tmp_path, "127.0.0.1:1", *pods) as cluster:
        look = await sample_release_gateways(cluster, "tidegate", "tidegate-system", {}, 0.1)
    assert look.by_key == {}
    assert look.failure.startswith("none of 1 pods")
