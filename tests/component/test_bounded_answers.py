"""Neighbours that answer without end, drip, or answer with anything: each is as good as silent, and costs nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from builders.loopback import on_loopback
from tidegate.errors import AgentUnreachableError
from tidegate.telemetry import prometheus_api
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError
from tidegate.telemetry.prometheus_traffic import PrometheusTraffic
from tidegate.triton.agent_call import call_agent
from tidegate_dataplane.agent.memory import read_memory
from tidegate_dataplane.contract import AgentReport
from tidegate_dataplane.contract.answers import (
    AnswerError,
    make_bounded_session,
    parse_json,
    read_body,
    read_lines,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PIECE = b" " * (1 << 16)
FEW_BYTES = 32 << 20
"""What sockets and buffers may hold beyond what is read."""


class Endless:
    """Answers with pieces without end, and counts what was taken of them."""

    def __init__(self, piece: bytes = PIECE, pause_s: float = 0.0) -> None:
        self.piece, self.pause_s = piece, pause_s
        self.sent_bytes = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(self.piece)
                self.sent_bytes += len(self.piece)
                await asyncio.sleep(self.pause_s)
        except ConnectionError:
            return response


def saying(body: bytes, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return answer


@asynccontextmanager
async def served(handler: Handler, path: str = "/") -> AsyncIterator[str]:
    """The URL of a server that answers at `path`."""
    application = web.Application()
    application.router.add_route("*", path, handler)
    async with on_loopback(application) as address:
        yield f"http://{address}/"


async def ask(url: str, total_s: float = 30.0) -> AgentReport:
    async with make_bounded_session(aiohttp.ClientTimeout(total=total_s)) as session:
        return await call_agent(session, "GET", url, None, AgentReport, agent="agent of pod ads/ctr")


async def test_an_agent_that_answers_without_end_is_hung_up_on() -> None:
    endless = Endless()
    async with served(endless.answer) as url:
        with pytest.raises(AgentUnreachableError, match="more than 1048576 bytes"):
            await ask(url)
    assert endless.sent_bytes < FEW_BYTES


async def test_an_agent_that_drips_is_given_up() -> None:
    async with served(Endless(b" ", pause_s=0.01).answer) as url:
        with pytest.raises(AgentUnreachableError, match="TimeoutError"):
            await ask(url, total_s=0.3)


@pytest.mark.parametrize(
    "body",
    [b'{"pod":"\xff\xfe"}', b"[" * 100_000, b"<html>", b"", b"{}"],
    ids=["no text", "deep", "HTML", "empty", "no report"],
)
async def test_an_agent_that_answers_with_anything_is_as_good_as_silent(body: bytes) -> None:
    async with served(saying(body)) as url:
        with pytest.raises(AgentUnreachableError, match="agent of pod ads/ctr"):
            await ask(url)


async def test_an_agent_leads_the_controllers_nowhere_else() -> None:
    endless = Endless()

    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(inside)

    async with served(endless.answer) as inside, served(elsewhere) as url:
        with pytest.raises(AgentUnreachableError, match="answered 302"):
            await ask(url)
    assert endless.sent_bytes == 0


async def test_what_is_compressed_is_not_blown_up() -> None:
    async with (
        served(saying(b"\x1f\x8b", **{"Content-Encoding": "gzip"})) as url,
        make_bounded_session(aiohttp.ClientTimeout(total=30)) as session,
        session.get(url) as response,
    ):
        assert await read_body(response, 10) == b"\x1f\x8b"


async def test_a_page_without_end_or_without_lines_is_hung_up_on() -> None:
    for endless, why in ((Endless(b"a 1\n" * 10_000), "the answer has more"), (Endless(), "a line has more")):
        async with (
            served(endless.answer) as url,
            make_bounded_session(aiohttp.ClientTimeout(total=30)) as session,
            session.get(url) as response,
        ):
            with pytest.raises(AnswerError, match=why):
                _ = [line async for lines in read_lines(response, 1 << 20) for line in lines]
        assert endless.sent_bytes < FEW_BYTES


@pytest.mark.parametrize("page", [b"a\nbc\n\nd", b"a\nbc\n\nd\n"])
async def test_every_line_of_a_page_is_read_once(page: bytes) -> None:
    async with (
        served(saying(page)) as url,
        make_bounded_session(aiohttp.ClientTimeout(total=30)) as session,
        session.get(url) as response,
    ):
        lines = [line async for lines in read_lines(response, 100) for line in lines]
    assert lines == [b"a", b"bc", b"", b"d"]


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b"{"])
def test_what_is_no_json_is_one_error(body: bytes) -> None:
    with pytest.raises(AnswerError, match="no JSON"):
        parse_json(body)


@pytest.mark.parametrize("line", [b'tidegate_model_memory_bytes{model="\xff"} 1\n', PIECE * 8])
async def test_a_metrics_page_that_cannot_be_read_is_no_page(line: bytes) -> None:
    async with served(saying(line)) as url:
        assert await read_memory(url) is None


async def test_a_prometheus_that_answers_without_end_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_api, "_MOST_BYTES", 1 << 20)
    endless = Endless()
    async with served(endless.answer, "/api/v1/query") as url:
        with pytest.raises(PrometheusError, match="more than 1048576 bytes"):
            await PrometheusApi(url).query("up")
    assert endless.sent_bytes < FEW_BYTES


ANSWER = b'{"status": "success", "data": {"resultType": "vector", "result": %s}}'


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[" * 100_000,
        b"<html>",
        b'{"status": "success"}',
        ANSWER % b'[{"metric": {"pod": 1}, "value": [0, "1"]}]',
        ANSWER % b'[{"metric": {}, "value": []}]',
    ],
    ids=["no text", "deep", "HTML", "no data", "no label", "no value"],
)
async def test_a_prometheus_that_answers_with_anything_is_a_look_that_failed(body: bytes) -> None:
    async with served(saying(body), "/api/v1/query") as url:
        look = await PrometheusTraffic(url, list, dict, dict).scrape_signals()
        assert await Prometheus(url).query_value("up") is None
    assert look.failure == "it answered with something that is no answer of a Prometheus"


async def test_a_question_that_prometheus_refuses_is_told_in_its_words() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "error", "error": "parse error"}, status=400)

    async with served(refuse, "/api/v1/query") as url:
        with pytest.raises(PrometheusError, match=r"HTTP 400: .*parse error"):
            await PrometheusApi(url).query("up(")


@pytest.mark.parametrize("status", [301, 302, 307, 308, 403, 405, 501])
async def test_a_prometheus_behind_a_proxy_that_redirects_or_takes_no_post_is_asked_by_get(
    status: int,
) -> None:
    async def refuse_post(request: web.Request) -> web.Response:
        location = {"Location": f"/to{request.path_qs}"} if status < 400 else {}
        if request.method == "POST" or location:
            return web.Response(status=status, headers=location)
        return await answer(request)

    async def answer(request: web.Request) -> web.Response:
        sample = {"metric": {}, "value": [0, request.query["query"]]}
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": [sample]}})

    application = web.Application()
    application.router.add_route("*", "/api/v1/query", refuse_post)
    application.router.add_get("/to/api/v1/query", answer)
    async with on_loopback(application) as address:
        [sample] = await PrometheusApi(f"http://{address}").query("17")
    assert sample["value"][1] == "17"
