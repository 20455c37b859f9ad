"""Logs of pods, as an API server hands them out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.kube.client import ClientSettings, KubeClient

LINES = [f"2026-01-01T00:00:00Z line {number:06}\n" for number in range(20_000)]
POD = ObjectKey("ads", "ctr-0")


async def log(request: web.Request) -> web.Response:
    """The API server has logs for those alone who take anything."""
    if request.headers["Accept"] != "*/*":
        return web.json_response({"message": "not acceptable"}, status=406)
    if request.match_info["name"] == "gone":
        return web.json_response({"message": "not found"}, status=404)
    if request.query["container"] == "nobody":
        return web.json_response({"message": "container nobody is not valid for pod ctr-0"}, status=400)
    if request.query.get("previous") == "true":
        return web.Response(text="the one before\n")
    return web.Response(text="".join(LINES[-int(request.query["tailLines"]) :]))


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[KubeClient]:
    application = web.Application()
    application.router.add_get("/api/v1/namespaces/ads/pods/{name}/log", log)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(tmp_path, address)
        settings = ClientSettings(field_manager="test", request_timeout=timedelta(seconds=10))
        async with await KubeClient.connect(settings, kubeconfig=kubeconfig) as connected:
            yield connected


async def test_the_newest_lines_are_kept_and_what_was_too_much_is_counted(client: KubeClient) -> None:
    found, cut = await client.read_pod_log(POD, "triton", lines=3, max_bytes=1 << 20)
    assert (found.decode().splitlines(keepends=True), cut) == (LINES[-3:], 0)
    found, cut = await client.read_pod_log(POD, "triton", lines=20_000, max_bytes=1_000)
    whole = "".join(LINES).encode()
    assert (found, cut) == (whole[-1_000:], len(whole) - 1_000)
    found, _ = await client.read_pod_log(POD, "triton", lines=3, max_bytes=100, previous=True)
    assert found == b"the one before\n"


async def test_why_there_is_none_is_said(client: KubeClient) -> None:
    with pytest.raises(PermanentError, match="nobody is not valid"):
        await client.read_pod_log(POD, "nobody", lines=3, max_bytes=100)
    with pytest.raises(PermanentError, match="it is gone"):
        await client.read_pod_log(ObjectKey("ads", "gone"), "x", lines=3, max_bytes=100)
