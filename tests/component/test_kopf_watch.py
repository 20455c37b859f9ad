"""What kopf hands to our caches arrives on the event loop, where alone they may be changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback
from builders.waiting import eventually
from tidegate.api.meta import API_VERSION, GROUP, VERSION
from tidegate.kube import kinds
from tidegate.kube.backoff import Backoff
from tidegate.kube.store import ObjectStore
from tidegate_controllers.kopf_session import KopfLogin
from tidegate_controllers.watch import watch_objects

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
    """Lists one Inference, and tells of others in its watch, after it has said each of `lies` to one watch and one listing."""

    def __init__(self, *told: dict[str, Any], lies: Sequence[Callable[[], web.Response]] = ()) -> None:
        self._told = told
        self._lies = {"list": list(lies), "watch": list(lies)}
        self.watches = 0
        self.discovery: list[Callable[[], web.Response]] = []
        self.watches_end_with: Callable[[], web.Response] | None = None

    @property
    def left(self) -> Mapping[str, Sequence[object]]:
        """Lies that it has not told yet."""
        return {what: lies for what, lies in self._lies.items() if lies}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/inferences") and self.discovery:
            return self.discovery.pop(0)()
        if request.path == "/apis":
            return web.json_response({"groups": [OUR_GROUP]})
        if request.path == f"/apis/{GROUP}/{VERSION}":
            return web.json_response({"resources": [_resource("inferences", "Inference", namespaced=True)]})
        if request.path == "/api":
            return web.json_response({"versions": ["v1"]})
        if request.path == "/api/v1":
            return web.json_response({"resources": [_resource("namespaces", "Namespace", namespaced=False)]})
        watching = "watch" in request.query
        self.watches += watching
        if watching and self.watches_end_with is not None:
            return self.watches_end_with()
        if lies := self._lies["watch" if watching else "list"]:
            return lies.pop(0)()
        if not watching:
            return web.json_response(
                {"metadata": {"resourceVersion": "1"}, "items": [an_inference("listed", 1)]}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        for body in self._told:
            await response.write(json.dumps({"type": "ADDED", "object": body}).encode() + b"\n")
        await asyncio.Event().wait()
        return response


@asynccontextmanager
async def watched(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[ObjectStore, asyncio.Task[None]]]:
    application = web.Application()
    application.router.add_get("/{path:.*}", server.answer)
    store = ObjectStore(kinds.INFERENCE)
    async with on_loopback(application) as address:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(folder, address)))
        watching = asyncio.create_task(watch_objects([store], "test"))
        try:
            yield store, watching
        finally:
            watching.cancel()
            await asyncio.wait({watching})


async def test_no_event_is_lost_to_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is changed in another thread raises WrongThreadError, which kopf logs and forgets, and the event with it."""
    server = ApiServer(*(an_inference(f"told-{number}", 2 + number) for number in range(3)))
    async with watched(server, tmp_path, monkeypatch) as (store, _):
        await eventually(lambda: names(store) == ["listed", "told-0", "told-1", "told-2"], what="every event")


def names(store: ObjectStore) -> list[str]:
    return sorted(key.name for key in store.keys())  # noqa: SIM118 - a store, not a dict


def error(code: int) -> web.Response:
    body = {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "etcd: no leader"}}
    return web.Response(text=json.dumps(body) + "\n", content_type="application/json")


JSON = "application/json"
LIES: Mapping[str, Callable[[], web.Response]] = {
    "html": lambda: web.Response(text="<html><h1>502 Bad Gateway</h1></html>", content_type="text/html"),
    "html-lines": lambda: web.Response(text="<html>\n<h1>502</h1>\n", content_type="text/html"),
    "half": lambda: web.Response(text='{"type":"ADDED","object":{"metadata":{"na', content_type=JSON),
    "list": lambda: web.Response(text="[1, 2]\n", content_type=JSON),
    "blank lines": lambda: web.Response(text="\r\n \r\n", content_type=JSON),
    "deep": lambda: web.Response(text="[" * 100_000, content_type=JSON),
    "no text": lambda: web.Response(body=b'{"type":"ADDED","object":{"a":"\xff"}}\n', content_type=JSON),
    "plain": lambda: web.Response(text="{}", content_type="text/plain"),
    "other items": lambda: web.Response(text='{"metadata":{},"items":[1]}', content_type=JSON),
    "broken ERROR": lambda: web.Response(text='{"type":"ERROR"\n', content_type=JSON),
    "ERROR 500": lambda: error(500),
    "ERROR 410": lambda: error(410),
    "400": lambda: web.Response(status=400, text="no"),
    "403": lambda: web.Response(status=403, text="no"),
    "404": lambda: web.Response(status=404, text="page not found"),
    "410": lambda: web.Response(status=410, text="expired"),
    "429": lambda: web.Response(status=429, text="slow down", headers={"Retry-After": "999999"}),
    "429 until": lambda: web.Response(status=429, headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
    "503 in Latin-1": lambda: web.Response(status=503, body=b"\xe9\xff", content_type="text/html"),
    "700": lambda: web.Response(status=700),
    "redirect": lambda: web.Response(status=302, headers={"Location": "ftp://127.0.0.1/"}),
    "nothing": web.Response,
}
"""What an API server, or a proxy before it, may answer."""


async def survive(server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(server, folder, monkeypatch) as (store, watching):
        await eventually(
            lambda: watching.done() or names(store) == ["listed", "told"], what="what comes after the lies"
        )
        assert not watching.done()


@pytest.mark.parametrize("name", LIES)
async def test_no_answer_of_the_api_server_ends_the_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf ends when it cannot read an answer, and every task of the process with it."""
    server = ApiServer(an_inference("told", 2), lies=[LIES[name]] * 2)
    await survive(server, tmp_path, monkeypatch)
    assert not server.left


async def test_no_answer_about_what_there_is_ends_the_process_or_hides_a_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf asks once, when it starts, and would never look for a kind again that was not named then."""
    server = ApiServer(an_inference("told", 2))
    empty = partial(web.json_response, {"groups": [], "resources": []})
    server.discovery = [LIES["html"], LIES["503 in Latin-1"], empty, LIES["404"], LIES["plain"], LIES["half"]]
    await survive(server, tmp_path, monkeypatch)
    assert not server.discovery


async def test_credentials_that_are_refused_while_a_watch_pauses_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf closes the session at a 401, also of a body that it cannot read, and opens another one."""
    refused = partial(web.Response, status=401, body=b"\xff\xfe")
    lies = [LIES["400"], LIES["nothing"], refused, LIES["404"], refused]
    server = ApiServer(an_inference("told", 2), lies=lies)
    await survive(server, tmp_path, monkeypatch)
    assert not server.left


@pytest.mark.parametrize("lie", ["nothing", "ERROR 500", "410"])
async def test_watches_that_fail_at_once_are_opened_again_later_each_time(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ApiServer(an_inference("told", 2))
    server.watches_end_with = LIES[lie]
    async with watched(server, tmp_path, monkeypatch) as (store, _):
        await eventually(lambda: names(store) == ["listed"], what="the listing")
        opened = server.watches
        await asyncio.sleep(2)  # a rate is measured over time
        assert server.watches - opened <= 15


async def test_refused_credentials_are_tried_again_and_later_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    info = kopf.ConnectionInfo(server="https://127.0.0.1:1")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: info)
    monkeypatch.setattr(asyncio, "sleep", note)
    login = KopfLogin(Backoff(jitter=0.0))
    for _ in range(4):
        session = await login.open_session()
        assert session is not None
        await session.aiohttp_session.close()
    assert pauses == [0.1, 0.2, 0.4]
