"""A reverse proxy between the operator and the API server, which counts writes and lets faults happen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from aiohttp import web

from faults.injections import EveryMove, When, WriteDeed, WriteFault
from faults.traffic import Call, Step, Traffic
from faults.watches import ArmedWatch, CutError, WatchPump
from tidegate_localcluster.fleet_demo.api import read_lines

_HOP: Final = frozenset(
    {"accept-encoding", "authorization", "connection", "content-length", "host", "transfer-encoding"}
)
_LIMIT: Final = 16 * 1024 * 1024
_EPOCH: Final = "tidegate.io/epoch"
_ALLOCATOR: Final = "tidegate-allocator"
_OF_POOLS: Final = frozenset({"computepools", "allocationdecisions"})


class BrokenError(Exception):
    """The client is to see a broken connection."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A status as it was written, and what the data plane had been through by then: versions by agent, in turn."""

    status: Mapping[str, Any]
    histories: Sequence[Sequence[int]]


@dataclass(slots=True)
class Trace:
    """What one run did, and what is to happen to it; `struck` says that it has happened."""

    namespace: str
    """Only what concerns this namespace counts, and what is about a pool of its name."""
    fault: WriteFault | EveryMove | None = None
    watch: ArmedWatch | None = None
    steps: list[Step] = field(default_factory=list[Step])
    others: dict[Traffic, int] = field(default_factory=dict[Traffic, int])
    touched_at: float = field(default_factory=time.monotonic)
    struck: bool = False
    claims: list[Claim] = field(default_factory=list[Claim])

    def concerns(self, call: Call) -> bool:
        """Whether a request is of this run; decisions have the name of their pool before their own."""
        if call.namespace or call.resource not in _OF_POOLS:
            return call.namespace == self.namespace
        return call.name == self.namespace or call.name.startswith(f"{self.namespace}-")

    def add(
        self, traffic: Traffic, what: str, epoch: int | None = None, *, moves: bool = False
    ) -> WriteFault | None:
        """Counts a step; the fault that strikes at it, if one does. `moves`: whether it makes slices change hands."""
        step = Step(len(self.steps) + 1, traffic, what, epoch)
        self.steps.append(step)
        self.touched_at = time.monotonic()
        if isinstance(self.fault, EveryMove):
            self.struck = self.struck or moves
            return WriteFault(step.number, When.AFTER) if moves else None
        if self.fault is None or self.struck or step.number != self.fault.at:
            return None
        self.struck = True
        return self.fault

    @property
    def has_struck(self) -> bool:
        """Whether the fault of this run has happened."""
        return self.struck or (self.watch is not None and self.watch.fired)


class Door:
    """Where one operator process enters; once shut, nothing of that process gets through any more."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.shut = False

    async def open(self) -> Self:
        """Listens on a free port of loopback."""
        app = web.Application(client_max_size=_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def close(self) -> None:
        """Ends every connection."""
        self.shut = True
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._proxy.handle(self, request)
        except (BrokenError, CutError):
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None


@dataclass(slots=True)
class _Past:
    """What lists gave at one moment; served instead of the present while `until` has not come."""

    lists: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    until: float = 0.0


class Proxy:
    """Everything that the operator says to the API server passes here; use it as an async context manager."""

    def __init__(self, upstream: str, tls: ssl.SSLContext, *, user: str) -> None:
        """`tls` is the administrator's; requests go on in the name of `user`."""
        self._upstream = upstream
        self._tls = tls
        self._headers = {
            "Accept-Encoding": "identity",
            "Impersonate-User": user,
            "Impersonate-Group": "system:authenticated",
        }
        self._session: aiohttp.ClientSession | None = None
        self._seen_lists: set[str] = set()
        self._past = _Past()
        self.trace = Trace("")
        self.kill: Callable[[], None] = lambda: None
        """Ends the operator that runs, at once."""
        self.histories: Callable[[], Sequence[Sequence[int]]] = tuple
        """What the agents of the run's namespace have served so far."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0), auto_decompress=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def door(self) -> Door:
        """An entrance for one operator process."""
        return await Door(self).open()

    async def remember(self) -> None:
        """Keeps what every list that was asked for so far gives now, for `serve_past`."""
        lists = {address: json.loads(await self._get(address)) for address in self._seen_lists}
        self._past = _Past(lists)

    def serve_past(self, seconds: float) -> None:
        """From now on and for so long, lists give what was remembered and watches are silent.

        As behind a watch cache that lags; a GET of one object is answered from etcd by every API server.
        """
        self._past.until = time.monotonic() + seconds

    async def handle(self, door: Door, request: web.Request) -> web.StreamResponse:
        """One request of the operator."""
        call = Call.parse(request.method, request.path, request.query)
        if call.traffic is Traffic.WATCH:
            return await self._watch(door, call, request)
        body = await request.read()
        if door.shut:
            raise BrokenError
        if call.is_list and "continue" not in request.query:
            self._seen_lists.add(request.path_qs)
        past = self._from_past(request.path_qs)
        if past is not None:
            return past
        counted = self.trace.concerns(call)
        if counted and call.traffic in {Traffic.EVENT, Traffic.LEASE}:
            self.trace.others[call.traffic] = self.trace.others.get(call.traffic, 0) + 1
        if counted and call.traffic is Traffic.WRITE:
            return await self._write(door, call, request, body)
        return await self._forward(request, body)

    def strike(self, fault: WriteFault) -> None:
        """Does what a write fault does, whoever was asked."""
        if fault.deed is WriteDeed.KILL:
            if fault.stale_s:
                self.serve_past(fault.stale_s)
            self.kill()
        raise BrokenError

    async def _write(self, door: Door, call: Call, request: web.Request, body: bytes) -> web.StreamResponse:
        content: Mapping[str, Any] = json.loads(body) if body else {}
        moves = call.resource == "deployments" or request.query.get("fieldManager") == _ALLOCATOR
        fault = self.trace.add(Traffic.WRITE, str(call), _epoch(content), moves=moves)
        if fault is None or fault.when is When.AFTER:
            self._note(call, content)
            answer = await self._forward(request, body)
            if fault is None:
                if door.shut:
                    raise BrokenError
                return answer
        if door.shut:  # another of its writes has struck meanwhile: nobody dies twice
            raise BrokenError
        if fault.deed is WriteDeed.REFUSE:
            status = {"kind": "Status", "code": 503, "message": "the sweep said so"}
            return web.json_response(status, status=503, headers={"Retry-After": "1"})
        self.strike(fault)
        raise AssertionError("unreachable")

    def _note(self, call: Call, content: Mapping[str, Any]) -> None:
        if call.subresource == "status" and call.resource == "inferences":
            self.trace.claims.append(Claim(content["status"], self.histories()))

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._open().request(
            request.method,
            self._upstream + request.path_qs,
            data=body or None,
            headers=self._outgoing(request),
        ) as response:
            content = await response.read()
            headers = {name: value for name, value in response.headers.items() if name.lower() not in _HOP}
            return web.Response(body=content, status=response.status, headers=headers)

    async def _watch(self, door: Door, call: Call, request: web.Request) -> web.StreamResponse:
        await self._while_past()
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._open().get(
            self._upstream + request.path_qs, headers=self._outgoing(request), timeout=timeout
        ) as upstream:
            if upstream.status != web.HTTPOk.status_code:
                return web.Response(body=await upstream.read(), status=upstream.status)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)

            async def send(line: bytes) -> None:
                if door.shut:
                    raise CutError
                await response.write(line)

            with contextlib.suppress(ConnectionError):
                await WatchPump(call.resource, send, lambda: self.trace.watch).run(
                    read_lines(upstream.content)
                )
            return response

    async def _while_past(self) -> None:
        """A watch of the past brings nothing until the past is over; it then catches up."""
        await asyncio.sleep(max(0.0, self._past.until - time.monotonic()))

    def _from_past(self, address: str) -> web.Response | None:
        if time.monotonic() >= self._past.until:
            return None
        known = self._past.lists.get(address)
        return None if known is None else web.json_response(known)

    async def _get(self, address: str) -> bytes:
        async with self._open().get(self._upstream + address, headers=self._headers) as response:
            return await response.read()

    def _outgoing(self, request: web.Request) -> Mapping[str, str]:
        kept = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        return {**kept, **self._headers}

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside of its async context"
        return self._session


def _epoch(body: Mapping[str, Any]) -> int | None:
    text = (body.get("metadata", {}).get("annotations") or {}).get(_EPOCH)
    if isinstance(text, str) and text.isdecimal():
        return int(text)
    epoch = (body.get("status", {}).get("allocation") or {}).get("epoch")
    return int(epoch) if epoch is not None else None
