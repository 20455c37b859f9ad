"""What kopf hands to our caches arrives on the event loop, where alone they may be changed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback
from builders.waiting import eventually
from tidegate.api.meta import API_VERSION, GROUP, VERSION
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate_controllers.watch import watch

OUR_GROUP = {
    "name": GROUP,
    "preferredVersion": {"version": VERSION},
    "versions": [{"version": VERSION}],
}


def _resource(name: str, kind: str, *, namespaced: bool) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    return {
        "name": name,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "verbs": verbs,
    }


def an_inference(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ads", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": API_VERSION, "kind": "Inference", "metadata": metadata}


class ApiServer:
    """Lists one Inference, and tells of others in its watch."""

    def __init__(self, *told: dict[str, Any]) -> None:
        self._told = told

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/apis":
            return web.json_response({"groups": [OUR_GROUP]})
        if request.path == f"/apis/{GROUP}/{VERSION}":
            return web.json_response({"resources": [_resource("inferences", "Inference", namespaced=True)]})
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/api/v1":
            return web.json_response({"resources": [_resource("namespaces", "Namespace", namespaced=False)]})
        if "watch" not in request.query:
            return web.json_response(
                {"metadata": {"resourceVersion": "1"}, "items": [an_inference("listed", 1)]}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        for body in self._told:
            await response.write(json.dumps({"type": "ADDED", "object": body}).encode() + b"\n")
        await asyncio.Event().wait()
        return response


async def test_no_event_is_lost_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is changed in another thread raises WrongThreadError, which kopf logs and forgets, and the event with it."""
    server = ApiServer(*(an_inference(f"told-{number}", 2 + number) for number in range(3)))
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    store = ObjectStore(kinds.INFERENCE)
    async with on_loopback(application) as address:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(tmp_path, address)))
        watching = asyncio.create_task(watch([store], "test"))
        try:
            expected = ["listed", "told-0", "told-1", "told-2"]
            await eventually(
                lambda: sorted(key.name for key in store.keys()) == expected,  # noqa: SIM118 - a store, not a dict
                what="every event of kopf's watch",
            )
        finally:
            watching.cancel()
            await asyncio.wait({watching})
