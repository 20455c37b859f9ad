"""The client and the watch against a server that misbehaves in every way an API server or a proxy before it can."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from builders.loopback import kubeconfig_of, on_loopback
from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.errors import (
    ApiUnavailableError,
    ConflictError,
    InvalidRequestError,
    LeadershipLostError,
    PermanentError,
    UnknownKindError,
)
from tidegate.kube.backoff import Backoff
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import EVENT, INFERENCE, POD, WORKLOAD, Kind
from tidegate.kube.store import ObjectStore
from tidegate.kube.watch import Reflector, WatchSettings

A = ObjectKey("ads", "a")
PATIENT = WatchSettings(
    duration=timedelta(seconds=60),
    backoff=Backoff(
        initial=timedelta(milliseconds=1), cap=timedelta(milliseconds=10), random=random.Random(1)
    ),
)
QUICK = replace(PATIENT, duration=timedelta(seconds=1), grace=timedelta(seconds=0.2))
"""A watch ends after that time, whatever was on its way: for those that are silent."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeServer:
    """Answers as its handler says, and remembers what was asked."""

    def __init__(self, handler: Handler) -> None:
        self.requests: list[web.Request] = []
        self._handler = handler

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self._handler(request)

    @property
    def lists(self) -> int:
        return sum("watch" not in request.query for request in self.requests)


@asynccontextmanager
async def talking_to(
    handler: Handler, folder: Path, **settings: Any
) -> AsyncIterator[tuple[KubeClient, FakeServer]]:
    server = FakeServer(handler)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address, token="s3cret")
        client_settings = ClientSettings(field_manager="tidegate-test", **settings)
        async with await KubeClient.connect(client_settings, kubeconfig=kubeconfig) as client:
            yield client, server


def status(code: int, message: str = "no", **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "code": code, "message": message}
        return web.json_response(
            body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return answer


ERRORS: dict[int, type[Exception]] = {
    **dict.fromkeys((403, 422), PermanentError),
    400: InvalidRequestError,
    **dict.fromkeys((401, 408, 429, 500, 503, 504), ApiUnavailableError),
    409: ConflictError,
}


async def test_each_status_becomes_one_of_our_errors(tmp_path: Path) -> None:
    for code, error in ERRORS.items():
        async with talking_to(status(code, "quota exceeded"), tmp_path) as (client, _):
            with pytest.raises(error, match=f"GET /api/v1/namespaces/ads/pods/a: {code} quota exceeded"):
                await client.get(POD, A)


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (INFERENCE, "are the CRDs installed"),
        (EVENT, "a version or an add-on that serves v1"),
        (WORKLOAD, "a version or an add-on that serves kueue.x-k8s.io/v1beta2"),
    ],
)
async def test_only_kinds_of_ours_need_our_crds(kind: Kind, way_out: str, tmp_path: Path) -> None:
    async with talking_to(status(404), tmp_path) as (client, _):
        with pytest.raises(UnknownKindError, match=f"does not know the kind {kind}: .*{way_out}"):
            await client.list(kind)


@pytest.mark.parametrize(("value", "seconds"), [("7", 7), ("99999999999", 300), ("soon", None), ("-1", None)])
async def test_a_busy_server_says_when_to_come_back(value: str, seconds: int | None, tmp_path: Path) -> None:
    async with talking_to(status(429, Retry_After=value), tmp_path) as (client, _):
        with pytest.raises(ApiUnavailableError) as caught:
            await client.get(POD, A)
    assert caught.value.retry_after == (None if seconds is None else timedelta(seconds=seconds))


async def test_an_error_page_of_a_proxy_is_quoted(tmp_path: Path) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad gateway</html>")

    async with talking_to(page, tmp_path) as (client, _):
        with pytest.raises(ApiUnavailableError, match="502 <html>bad gateway"):
            await client.get(POD, A)


async def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async def silence(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    patience = timedelta(milliseconds=50)
    async with talking_to(silence, tmp_path, request_timeout=patience) as (client, _):
        with pytest.raises(ApiUnavailableError, match="did not answer"):
            await client.get(POD, A)
        with pytest.raises(ApiUnavailableError, match="did not answer"):
            async with client.open_watch(POD, resource_version="1", duration=timedelta(seconds=1)):
                pass


async def test_a_connection_cut_in_the_middle_is_unavailable(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with talking_to(cut, tmp_path) as (client, _):
        with pytest.raises(ApiUnavailableError, match="did not answer"):
            await client.get(POD, A)


async def test_no_error_shows_the_token(tmp_path: Path) -> None:
    async with talking_to(status(401), tmp_path) as (client, server):
        with pytest.raises(ApiUnavailableError) as caught:
            await client.get(POD, A)
        assert server.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(caught.value)


Writing = Callable[[KubeClient, Fence], Awaitable[object]]
WRITES: dict[str, Writing] = {
    "apply": lambda client, fence: client.apply({**a_pod(1), "apiVersion": "v1", "kind": "Pod"}, fence),
    "apply_status": lambda client, fence: client.apply_status(POD, A, {}, uid="uid-a", fence=fence),
    "merge": lambda client, fence: client.merge(POD, A, {}, fence),
    "delete": lambda client, fence: client.delete(POD, A, uid="uid-a", fence=fence),
}


@pytest.mark.parametrize("write", WRITES)
async def test_no_write_is_sent_after_the_end_of_its_fence(write: str, tmp_path: Path) -> None:
    ended = Fence(6, deadline=lambda: 0.0, monotonic=lambda: 1.0)
    async with talking_to(status(500), tmp_path) as (client, server):
        with pytest.raises(LeadershipLostError, match="epoch 6 has ended"):
            await WRITES[write](client, ended)
        assert server.requests == []


def a_pod(version: int, name: str = "a", **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ads", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def event(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


class Script:
    """A server whose lists answer one pod, and whose watches follow a script: bytes to send, None to hang."""

    def __init__(self, *watches: list[bytes | None], listing: list[dict[str, Any]] | None = None) -> None:
        self.listing = [a_pod(1)] if listing is None else listing
        self.version = 1
        self._watches = list(watches)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(
                {"metadata": {"resourceVersion": str(self.version)}, "items": self.listing}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        for part in self._watches.pop(0) if self._watches else [None]:
            if part is None:
                await asyncio.Event().wait()
            else:
                await response.write(part)
        return response


@asynccontextmanager
async def reflecting(
    script: Handler, folder: Path, settings: WatchSettings = PATIENT
) -> AsyncIterator[tuple[ObjectStore, Reflector, FakeServer]]:
    async with talking_to(script, folder) as (client, server):
        store = ObjectStore(POD)
        reflector = Reflector(client, store, settings=settings)
        task = asyncio.create_task(reflector.run())
        try:
            yield store, reflector, server
        finally:
            assert not task.done(), "the reflector ended"
            task.cancel()
            await asyncio.wait({task})


def version_of(store: ObjectStore) -> int:
    body = store.get(A)
    return 0 if body is None else int(body["metadata"]["resourceVersion"])


async def test_events_are_taken_however_they_are_cut_into_packets(tmp_path: Path) -> None:
    stream = (
        event("MODIFIED", a_pod(2))
        + event("MODIFIED", a_pod(3, note="n" * 300_000))
        + event("ADDED", a_pod(4, "b"))
    )
    pieces: list[bytes | None] = [stream[at : at + 70_000] for at in range(0, len(stream), 70_000)]
    async with reflecting(Script([*pieces, None]), tmp_path) as (store, reflector, _):
        await eventually(lambda: reflector.counts.events == 3, what="three events")
        assert version_of(store) == 3
        assert len(store) == 2


async def test_a_watch_cut_in_a_line_goes_on_where_the_last_whole_line_ended(tmp_path: Path) -> None:
    half = event("MODIFIED", a_pod(3))[:20]
    script = Script([event("MODIFIED", a_pod(2)), half], [event("MODIFIED", a_pod(3)), None])
    async with reflecting(script, tmp_path) as (store, reflector, server):
        await eventually(lambda: version_of(store) == 3, what="the event after the cut")
        assert reflector.counts.lists == 1
        assert server.requests[-1].query["resourceVersion"] == "2"


@pytest.mark.no_rerun("a secret is seen")
async def test_nothing_that_an_object_holds_is_in_the_log(tmp_path: Path) -> None:
    held = a_pod(2, data={"token": "czNjcmV0"})
    no_event = event("MODIFIED", held)[:-5] + b"\n"
    with capture_logs() as logs:
        async with reflecting(Script([no_event], [None], listing=[held]), tmp_path) as (
            _,
            reflector,
            _server,
        ):
            await eventually(lambda: reflector.counts.watches >= 2, what="a second watch")
    assert {"listed", "watch_failed"} <= {entry["event"] for entry in logs}
    assert "czNjcmV0" not in str(logs)


async def test_a_bookmark_moves_the_place_to_watch_on_from(tmp_path: Path) -> None:
    script = Script([event("BOOKMARK", {"metadata": {"resourceVersion": "50"}})], [None])
    async with reflecting(script, tmp_path) as (store, reflector, server):
        await eventually(lambda: reflector.counts.watches >= 2, what="a second watch")
        await eventually(lambda: len(server.requests) >= 3, what="its request")
        assert server.requests[-1].query["resourceVersion"] == "50"
        assert version_of(store) == 1


GONE = {"kind": "Status", "code": 410, "message": "too old resource version"}


async def test_after_410_it_lists_again_and_drops_ghosts(tmp_path: Path) -> None:
    script = Script([event("ADDED", a_pod(2, "ghost")), event("ERROR", GONE)], [None])
    async with reflecting(script, tmp_path) as (store, reflector, _):
        await eventually(lambda: reflector.counts.lists >= 2, what="a second listing")
        await eventually(lambda: len(store) == 1, what="the ghost goes")
        assert reflector.counts.expired == 1


async def test_a_server_that_always_says_410_is_not_asked_in_a_hot_loop(tmp_path: Path) -> None:
    script = Script(*[[event("ERROR", GONE)] for _ in range(1000)])
    async with reflecting(script, tmp_path) as (_, reflector, _server):
        await eventually(lambda: reflector.counts.expired >= 20, what="twenty refusals")
        assert reflector._failures >= 19


async def test_a_silent_watch_is_noticed_and_opened_again_without_a_listing(tmp_path: Path) -> None:
    # On a busy machine the second one may end before its event has come.
    script = Script([None], *([event("MODIFIED", a_pod(2)), None] for _ in range(10)))
    async with reflecting(script, tmp_path, QUICK) as (store, reflector, _):
        await eventually(lambda: version_of(store) == 2, what="the event of a later watch")
        assert reflector.counts.stalls == reflector.counts.watches - 1 >= 1
        assert reflector.counts.lists == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"not json\n",
        b'{"type": "MODIFIED"}\n',
        b"[]\n",
        b'{"type": "MODIFIED", "object": {}}\n',
        b'{"type": "MODIFIED", "object": {"metadata": "none"}}\n',
        b"[" * 100_000 + b"\n",
        event("ERROR", {"kind": "Status", "code": 500, "message": "etcd"}),
        b"x" * 9_000_000,
    ],
)
async def test_garbage_in_a_watch_is_survived(garbage: bytes, tmp_path: Path) -> None:
    script = Script([garbage, None], [event("MODIFIED", a_pod(2)), None])
    async with reflecting(script, tmp_path) as (store, reflector, _):
        await eventually(lambda: version_of(store) == 2, what="the event of the second watch")
        assert reflector.counts.failures == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>down for maintenance</html>",
        b"",
        b"[]",
        b'{"items": [{}], "metadata": {}}',
        b'{"items": "none", "metadata": {}}',
        b'{"items": []}',
        b"[" * 100_000,
    ],
)
async def test_an_answer_that_is_no_listing_ends_no_watch(answer: bytes, tmp_path: Path) -> None:
    """A proxy before an API server that is away may answer 200 with a page of its own."""
    answers = [answer]
    well = Script()

    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(body=answers.pop()) if answers else await well(request)

    async with reflecting(script, tmp_path) as (store, reflector, _):
        await eventually(lambda: version_of(store) == 1, what="the listing that came afterwards")
        assert reflector.counts.failures == 1


async def test_watches_that_end_as_soon_as_they_are_opened_are_not_asked_for_in_a_hot_loop(
    tmp_path: Path,
) -> None:
    slow = replace(PATIENT, backoff=Backoff(initial=timedelta(milliseconds=100), jitter=0.0))
    async with reflecting(Script(*[[] for _ in range(1000)]), tmp_path, slow) as (_, reflector, server):
        await eventually(lambda: reflector.counts.failures == 3, what="three watches that told nothing")
        assert server.lists == 1
        assert reflector.counts.watches == 3


async def test_a_short_watch_that_tells_something_is_opened_again_at_once(tmp_path: Path) -> None:
    never = replace(PATIENT, backoff=Backoff(initial=timedelta(hours=1), cap=timedelta(hours=1)))
    script = Script(*[[event("MODIFIED", a_pod(version))] for version in (2, 3, 4)])
    async with reflecting(script, tmp_path, never) as (store, _, _):
        await eventually(lambda: version_of(store) == 4, what="the event of the third watch")


async def test_a_duplicate_or_late_event_does_not_turn_time_back(tmp_path: Path) -> None:
    late = [event("MODIFIED", a_pod(version)) for version in (5, 3, 5, 4)]
    async with reflecting(Script([*late, None]), tmp_path) as (store, reflector, _):
        await eventually(lambda: reflector.counts.events == 4, what="all events")
        assert version_of(store) == 5


async def test_a_listing_that_fails_leaves_the_cache_as_it_is(tmp_path: Path) -> None:
    script = Script([event("ERROR", GONE)], [None])
    answers = {"down": False}

    async def handler(request: web.Request) -> web.StreamResponse:
        if answers["down"] and "watch" not in request.query:
            return await status(500)(request)
        answer = await script(request)
        answers["down"] = True
        return answer

    async with reflecting(handler, tmp_path) as (store, reflector, _):
        await eventually(lambda: reflector.counts.failures >= 3, what="three failed listings")
        assert len(store) == 1
        answers["down"] = False
        await eventually(lambda: reflector.counts.lists >= 2, what="a listing")


async def test_a_namespace_that_stays_refused_keeps_nobody_waiting_who_asks_for_others(
    tmp_path: Path,
) -> None:
    now = {"s": 0.0}
    async with talking_to(status(403), tmp_path) as (client, _):
        store = ObjectStore(POD)
        store.expect_listings(["ads", "shop"])
        store.replace([], namespace="shop")
        reflector = Reflector(client, store, namespace="ads", settings=QUICK, monotonic=lambda: now["s"])
        task = asyncio.create_task(reflector.run())
        await eventually(lambda: reflector.counts.failures >= 3, what="three refusals")
        assert not store.synced.is_set()
        now["s"] = 61.0
        await eventually(store.synced.is_set, what="it is waited for no longer")
        task.cancel()
        await asyncio.wait({task})


async def test_an_old_listing_is_made_anew_even_when_the_watch_looks_well(tmp_path: Path) -> None:
    now = {"s": 0.0}
    script = Script([], [], [None])
    async with talking_to(script, tmp_path) as (client, _):
        store = ObjectStore(POD)
        reflector = Reflector(client, store, settings=QUICK, monotonic=lambda: now["s"])
        task = asyncio.create_task(reflector.run())
        await eventually(lambda: reflector.counts.watches >= 1, what="a watch")
        script.listing, script.version, now["s"] = [a_pod(1, "b")], 1, 3_600.0
        await eventually(lambda: store.keys() == (ObjectKey("ads", "b"),), what="the new listing")
        task.cancel()
        await asyncio.wait({task})
