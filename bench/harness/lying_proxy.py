"""A proxy in front of the API server that lies: it ends watches at once, answers with HTML, 429 or half a page, or says nothing."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import aiohttp
from aiohttp import web

from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.pki import KeyPair, Pki
from tidegate_localcluster.ports import find_unused_port

HONEST_S: Final = (2.0, 6.0)
LIES_S: Final = (2.0, 8.0)
"""How long it says the truth, and how long it lies then: at least and at most."""
PAGE: Final = "<h1>Dienst nicht verf\u00fcgbar</h1>".encode("latin-1")
HTML: Final = "<html><body><h1>502 Bad Gateway</h1></body></html>"
_NOT_PASSED_ON: Final = frozenset(
    {"accept-encoding", "authorization", "connection", "content-length", "host", "transfer-encoding"}
)
_LARGEST_BODY: Final = 16 * 1024 * 1024


class Lie(StrEnum):
    """What the proxy does instead of forwarding a request."""

    EMPTY_WATCH = "empty-watch"
    HTML = "html"
    TOO_MANY_REQUESTS = "429"
    ERROR_PAGE = "503"
    HALF_PAGE = "half-page"
    SILENCE = "silence"


@dataclass(slots=True)
class LyingProxy:
    """Forwards requests, and lies about some while `lies` is true.

    Leases are always forwarded, because otherwise no process would lead.
    """

    upstream: str
    session: aiohttp.ClientSession
    random: random.Random
    lies: bool = False
    lie: Lie | None = None
    lie_ended: asyncio.Event = field(default_factory=asyncio.Event)
    lies_told: Counter[Lie] = field(default_factory=Counter[Lie])
    """Number of requests that each lie has affected."""
    watches: list[web.Request] = field(default_factory=list[web.Request])
    """Open watches: each lie begins with their end, because otherwise it would affect few."""

    async def run(self) -> None:
        """Alternate between truth and lies until cancelled."""
        lies = self._choose_lies()
        while True:
            await asyncio.sleep(self.random.uniform(*HONEST_S))
            if self.lies:
                self.lie = next(lies)
                for request in tuple(self.watches):
                    _break_off(request)
                await asyncio.sleep(self.random.uniform(*LIES_S))
                self.stop_lying()

    def _choose_lies(self) -> Iterator[Lie]:
        """Yield all lies in a random order, again and again, so that a minute has each of them."""
        while True:
            yield from self.random.sample(list(Lie), len(Lie))

    def stop_lying(self) -> None:
        """Stop the current lie, and end the requests that got no answer."""
        self.lie = None
        self.lie_ended.set()
        self.lie_ended = asyncio.Event()

    async def handle_request(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; skip clients that have disconnected."""
        try:
            return await self._answer_request(request)
        except (aiohttp.ClientError, ConnectionError):
            _break_off(request)
            return web.Response(status=502)

    async def _answer_request(self, request: web.Request) -> web.StreamResponse:
        lie = None if "/leases" in request.path else self.lie
        watching = request.query.get("watch", "").lower() in {"1", "true"}
        if lie is Lie.EMPTY_WATCH and not watching:
            lie = None
        if lie is None and watching:
            self.watches.append(request)
            try:
                return await self._forward_request(request, complete=True)
            finally:
                self.watches.remove(request)
        if lie is None:
            return await self._forward_request(request, complete=True)
        self.lies_told[lie] += 1
        match lie:
            case Lie.EMPTY_WATCH:
                return web.Response(content_type="application/json")
            case Lie.HTML:
                return web.Response(text=HTML, content_type="text/html")
            case Lie.TOO_MANY_REQUESTS:
                return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests")
            case Lie.ERROR_PAGE:
                return web.Response(status=503, body=PAGE, content_type="text/html")
            case Lie.HALF_PAGE:
                return await self._forward_request(request, complete=False)
            case Lie.SILENCE:
                await self.lie_ended.wait()
                _break_off(request)
                return web.Response(status=500)

    async def _forward_request(self, request: web.Request, *, complete: bool) -> web.StreamResponse:
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED_ON
        }
        async with self.session.request(
            request.method,
            self.upstream + request.raw_path,
            headers=headers,
            data=await request.read() or None,
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            if complete and answer.content_length is not None:
                response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk if complete else chunk[: len(chunk) // 2])
                if not complete:
                    _break_off(request)
                    break
            else:
                await response.write_eof()
            return response


def _break_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


@asynccontextmanager
async def run_lying_proxy(
    upstream: str, pki: Pki, credentials: KeyPair, seed: int
) -> AsyncGenerator[tuple[str, LyingProxy]]:
    """Run a proxy to `upstream` with `credentials` while the block lasts; yield its URL and itself."""
    client_tls = ssl.create_default_context(cafile=str(pki.authority.certificate))
    client_tls.load_cert_chain(credentials.certificate, credentials.key)
    certificate = pki.issue_server("lying-proxy", [LOOPBACK])
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate.certificate, certificate.key)
    connector, timeout = aiohttp.TCPConnector(ssl=client_tls, limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        proxy = LyingProxy(upstream, session, random.Random(seed))
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", proxy.handle_request)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        task = asyncio.create_task(proxy.run())
        try:
            port = find_unused_port(LOOPBACK)
            await web.TCPSite(runner, LOOPBACK, port, ssl_context=server_tls).start()
            yield f"https://{LOOPBACK}:{port}", proxy
        finally:
            task.cancel()
            proxy.stop_lying()
            await runner.cleanup()
