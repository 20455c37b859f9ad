"""The aggregated discovery service on grpc.aio: a thin shell around one `DiscoveryStream` for each proxy.

Each kind of proxy has a protocol of its own: gateways DeltaAggregatedResources, gRPC clients StreamAggregatedResources.
A stream with the other one is refused at its first request (ADR 56).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc.aio
import structlog

from tidegate.xds.cache import SnapshotCache
from tidegate.xds.identity import ServerCertificate, belongs_to_namespace, certificate_names, matches_node_id
from tidegate.xds.inspection import ProxyKind, ProxyState
from tidegate.xds.ledger import AckLedger
from tidegate.xds.messages import (
    DeltaRequest,
    DiscoveryResponse,
    SotwRequest,
    decode_delta_request,
    decode_sotw_request,
    encode_delta_response,
    encode_sotw_response,
)
from tidegate.xds.metrics import XdsMetrics
from tidegate.xds.protocols import DeltaStream, SotwStream
from tidegate.xds.proxyless import GrpcSnapshots, kind_from_user_agent
from tidegate.xds.resources import Snapshot
from tidegate.xds.shares import AdmittedShares, SharesStream
from tidegate.xds.stream import MAKE_TIMEOUT_S, DiscoveryRequest, DiscoveryStream

_SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
_STATE_OF_THE_WORLD: Final = "StreamAggregatedResources"
_DELTA: Final = "DeltaAggregatedResources"

# What the other kind of proxy reads when it opens a stream.
_WRONG_PROTOCOL: Final = {
    ProxyKind.GATEWAY: f"{_DELTA} serves gateways only; gRPC clients use {_STATE_OF_THE_WORLD}",
    ProxyKind.GRPC_CLIENT: (
        f"{_STATE_OF_THE_WORLD} serves gRPC clients only; gateways use {_DELTA}: "
        "set api_type: DELTA_GRPC in Envoy's bootstrap"
    ),
}

# A proxy that sends requests faster than we answer them waits; it has one request of each type in flight.
_MAILBOX_SIZE: Final = 64

# The first request of a gateway that reconnects names all its resources with their versions.
_MAX_REQUEST_BYTES: Final = 64 << 20

_log = structlog.stdlib.get_logger(__name__)

_WRONG_CERTIFICATE: Final = "the certificate is not for this node id, or not for a gateway's"

Context = grpc.aio.ServicerContext[Any, Any]


R = TypeVar("R", bound=DiscoveryRequest)


class SnapshotWatcher(Protocol):
    """Is notified of how far gateways are with the newest snapshot; must not block."""

    def record_accepted(self, node: str, snapshot: Snapshot, seconds: float) -> None:
        """Record that a gateway runs `snapshot`, `seconds` after the snapshot was set or the gateway connected."""
        ...

    def record_rejected(self, node: str, message: str) -> None:
        """Record that a gateway NACKed a part of the newest snapshot, with the reason in `message`."""
        ...


@dataclass(frozen=True, slots=True)
class XdsServerSettings:
    """Timeouts of one server, in seconds, and the namespace of its gateways.

    `write_timeout_s`: the stream of a proxy that reads nothing for this long ends, and the proxy reconnects.
    `gateway_namespace`: under mutual TLS, only proxies whose node id is in this namespace may be gateways, whose snapshots
    contain private keys; all others may only be gRPC clients. Empty: every namespace may have gateways.
    `max_connection_age_s`: when a proxy must reconnect, so that the proxies spread over the replicas.
    """

    make_timeout_s: float = MAKE_TIMEOUT_S
    write_timeout_s: float = 60.0
    max_connection_age_s: float = 1800.0
    drain_s: float = 5.0
    gateway_namespace: str = ""


class XdsServer:
    """Serves the snapshots of `cache` to Envoy proxies and writes what they accept into `ledger`.

    gRPC clients without a gateway get `grpc_snapshots` instead, and no condition waits for them.
    """

    def __init__(
        self,
        cache: SnapshotCache,
        ledger: AckLedger,
        metrics: XdsMetrics,
        *,
        grpc_snapshots: GrpcSnapshots,
        settings: XdsServerSettings = XdsServerSettings(),
        shares: AdmittedShares | None = None,
        watcher: SnapshotWatcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watcher = watcher
        self._cache = cache
        self._ledger = ledger
        self._metrics = metrics
        self._grpc_snapshots = grpc_snapshots
        self._grpc_cache: SnapshotCache | None = None
        self._settings = settings
        self._clock = clock
        self._server: grpc.aio.Server | None = None
        self._sessions: dict[int, _StreamSession[Any]] = {}
        self._numbers = itertools.count(1)
        self._stopping = False
        self._requires_certificates = False
        self._changed_at = clock()
        self._shares = shares or AdmittedShares()
        self._shares.add_listener(lambda: self._wake_sessions(self._cache))
        cache.subscribe(self._handle_change)

    async def start(self, address: str, certificate: ServerCertificate | None = None) -> int:
        """Listen on `address` (`host:port`, port 0 for any) and return the port.

        With a `certificate` each proxy must show one for its node id too; without, every proxy is served.
        Raises RuntimeError if the address is not available.
        """
        server = grpc.aio.server(options=_channel_options(self._settings))
        handlers = {
            _STATE_OF_THE_WORLD: grpc.stream_stream_rpc_method_handler(
                self._serve_grpc_client,
                request_deserializer=decode_sotw_request,
                response_serializer=encode_sotw_response,
            ),
            _DELTA: grpc.stream_stream_rpc_method_handler(
                self._serve_gateway,
                request_deserializer=decode_delta_request,
                response_serializer=encode_delta_response,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificate.server_credentials())
        self._requires_certificates = certificate is not None
        await server.start()
        self._server = server
        return port

    async def stop(self, *, at_once: bool = False) -> None:
        """End every stream with OK, so that the proxies connect to another replica immediately, and stop listening.

        `at_once` cuts the connections instead, as a crash would.
        """
        if self._server is None:
            return
        if not at_once:
            self._stopping = True
            for session in self._sessions.values():
                session.mailbox.wake()
        await self._server.stop(None if at_once else self._settings.drain_s)

    def proxy_states(self) -> list[ProxyState]:
        """Return how far every connected proxy is."""
        sessions = [session for session in self._sessions.values() if session.stream.progress.node]
        return [_proxy_state(session) for session in sessions]

    def _handle_change(self) -> None:
        self._changed_at = self._clock()
        self._wake_sessions(self._cache)

    def _wake_sessions(self, cache: SnapshotCache) -> None:
        for session in self._sessions.values():
            if session.cache is cache:
                session.mailbox.wake()

    def _select_cache(self, kind: ProxyKind) -> SnapshotCache:
        """Return the snapshot cache for this kind of proxy; the one that all gRPC clients share is created when the first connects."""
        if kind is ProxyKind.GATEWAY:
            return self._cache
        if self._grpc_cache is None:
            self._grpc_cache = cache = self._grpc_snapshots.open_cache()
            cache.subscribe(lambda: self._wake_sessions(cache))
        return self._grpc_cache

    async def _serve_gateway(self, requests: AsyncIterable[DeltaRequest], context: Context) -> None:
        stream = DeltaStream(None, make_timeout_s=self._settings.make_timeout_s)
        await self._serve_stream(stream, requests, context)

    async def _serve_grpc_client(self, requests: AsyncIterable[SotwRequest], context: Context) -> None:
        stream = SotwStream(None, make_timeout_s=self._settings.make_timeout_s)
        await self._serve_stream(stream, requests, context)

    async def _serve_stream(
        self, stream: DiscoveryStream[R], requests: AsyncIterable[R], context: Context
    ) -> None:
        session = _StreamSession(next(self._numbers), stream, _Mailbox[R](), opened_at=self._clock())
        self._sessions[session.number] = session
        end: _StreamEnd | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(session.mailbox.fill_from(requests))
                end = await self._run_session(session, context)
                reader.cancel()
        finally:
            self._close_session(session, context)
        if end is not None:
            await context.abort(end.status, end.details)

    async def _run_session(self, session: _StreamSession[Any], context: Context) -> _StreamEnd | None:
        """Handle requests and snapshots until the proxy leaves or this server stops (None), or return why the stream ends."""
        stream = session.stream
        while not self._stopping:
            wait = None if stream.wake_at is None else stream.wake_at - self._clock()
            request = await session.mailbox.next_request(wait)
            if request is None and session.mailbox.closed:
                return None
            if request is not None and session.cache is None:
                refusal = self._find_refusal(stream.KIND, request, context)
                if refusal is not None:
                    return refusal
                session.cache = self._select_cache(stream.KIND)
            responses = self._advance_stream(session, request)
            if responses and not await self._write_responses(responses, context):
                details = f"nothing was read for {self._settings.write_timeout_s} s"
                return _StreamEnd(grpc.StatusCode.UNAVAILABLE, details)
        return None

    async def _write_responses(self, responses: Sequence[DiscoveryResponse], context: Context) -> bool:
        """Send `responses`; return False if the proxy does not read them in time."""
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                for response in responses:
                    await context.write(response)
        except TimeoutError:
            return False
        return True

    def _find_refusal(
        self, kind: ProxyKind, request: DiscoveryRequest, context: Context
    ) -> _StreamEnd | None:
        """Return why a stream for this kind of proxy ends at its first request; None lets the proxy in.

        Only that request names the node and the user agent, so a client cannot become a gateway later.
        """
        node, peer = request.node, context.peer()
        if kind_from_user_agent(request.user_agent) is not kind:
            _log.warning("proxy_uses_wrong_protocol", node=node, user_agent=request.user_agent, peer=peer)
            return _StreamEnd(grpc.StatusCode.UNIMPLEMENTED, _WRONG_PROTOCOL[kind])
        if not self._requires_certificates:
            return None
        names = certificate_names(context.auth_context())
        may_be_gateway = belongs_to_namespace(node, self._settings.gateway_namespace)
        if matches_node_id(node, names) and (kind is not ProxyKind.GATEWAY or may_be_gateway):
            return None
        self._metrics.refused_proxies.inc()
        _log.warning("proxy_is_not_who_it_says", node=node, names=names, peer=peer)
        return _StreamEnd(grpc.StatusCode.PERMISSION_DENIED, _WRONG_CERTIFICATE)

    def _advance_stream(self, session: _StreamSession[R], request: R | None) -> list[DiscoveryResponse]:
        now = self._clock()
        responses = session.shares.advance_stream(request, self._shares.resource)
        snapshot = session.cache.snapshot if session.cache else None
        newer = snapshot is not None and snapshot is not session.snapshot
        if snapshot is not None and newer:
            session.snapshot = snapshot
            responses += session.stream.on_snapshot(snapshot, now)
        if request is not None:
            responses += session.stream.on_request(request, now)
        elif not newer:
            responses += session.stream.on_timer(now)
        self._record_progress(session, now)
        return responses

    def _record_progress(self, session: _StreamSession[Any], now: float) -> None:
        progress = session.stream.progress
        self._metrics.add_counts(session.stream.counters)
        if session.cache is self._cache:
            self._ledger.record_progress(session.number, progress)
        if session.cache is not None and not session.counted:
            session.counted = True
            self._count_connected()
        running = progress.running.snapshot if progress.running else None
        if running is not session.running and running is self._cache.snapshot:
            session.running = running
            seconds = now - max(self._changed_at, session.opened_at)
            self._metrics.push_seconds.observe(seconds)
            if self._watcher is not None and running is not None and session.cache is self._cache:
                self._watcher.record_accepted(progress.node, running, seconds)
        if progress.nack != session.nack:
            session.nack = progress.nack
            if progress.nack is not None:
                _log.warning("snapshot_nacked", node=progress.node, message=progress.nack)
                if self._watcher is not None and session.cache is self._cache:
                    self._watcher.record_rejected(progress.node, progress.nack)

    def _count_connected(self) -> None:
        self._metrics.connected_proxies.set(self._ledger.connected_count)
        if self._grpc_cache is not None:
            clients = sum(session.cache is self._grpc_cache for session in self._sessions.values())
            self._metrics.connected_clients.set(clients)

    def _close_session(self, session: _StreamSession[Any], context: Context) -> None:
        del self._sessions[session.number]
        node = session.stream.progress.node
        self._ledger.record_closed(session.number, node)
        self._count_connected()
        _log.info("proxy_disconnected", node=node, peer=context.peer())


class _Mailbox(Generic[R]):
    """The inputs of a stream: requests in their order, and wake-ups, which count once however many there are."""

    def __init__(self) -> None:
        self._requests: asyncio.Queue[R] = asyncio.Queue(_MAILBOX_SIZE)
        self._awake = asyncio.Event()
        self.closed = False

    def wake(self) -> None:
        """Make `next_request` return, now or the next time that it is called."""
        self._awake.set()

    async def fill_from(self, requests: AsyncIterable[R]) -> None:
        """Put requests in until there are no more."""
        try:
            async for request in requests:
                await self._requests.put(request)
                self._awake.set()
        finally:
            self.closed = True
            self._awake.set()

    async def next_request(self, timeout_s: float | None) -> R | None:
        """Return the next request; None after a wake-up, after `timeout_s`, or at the end."""
        if self._requests.empty() and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._awake.wait()
        self._awake.clear()
        return None if self._requests.empty() else self._requests.get_nowait()


@dataclass(slots=True)
class _StreamSession(Generic[R]):
    """One open stream.

    `cache` has its snapshots, None before its first request; `snapshot` is the last that it was given.
    `running` and `nack` are the last that were recorded; `counted`: its proxy is among those connected.
    """

    number: int
    stream: DiscoveryStream[R]
    mailbox: _Mailbox[R]
    opened_at: float
    cache: SnapshotCache | None = None
    snapshot: Snapshot | None = None
    running: Snapshot | None = None
    nack: str | None = None
    counted: bool = False
    shares: SharesStream = field(default_factory=SharesStream)


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    """Why a stream ends."""

    status: grpc.StatusCode
    details: str


def _proxy_state(session: _StreamSession[Any]) -> ProxyState:
    stream, progress = session.stream, session.stream.progress
    revision = progress.acked.revision if progress.acked else ""
    return ProxyState(progress.node, stream.KIND, revision, stream.sync_states(), progress.nack)


def _channel_options(settings: XdsServerSettings) -> list[tuple[str, int]]:
    return [
        # Two replicas must not share one port: a proxy would reach either by chance.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Proxies send pings of their own every 10 s.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_connection_age_ms", int(settings.max_connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(settings.drain_s * 1000)),
    ]
