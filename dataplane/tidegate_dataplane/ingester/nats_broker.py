"""NATS as the ingester's broker: an ephemeral consumer that begins at the ingester's own position."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidegate_dataplane.agent.nats_server import CALL_TIMEOUT_S, NatsServer, close_client
from tidegate_dataplane.contract import NatsEvents
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.ingester.broker import (
    MAX_MESSAGES,
    READ_S,
    EventMessage,
    ReadMessages,
    StreamRestartedError,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerConfig, ConsumerInfo, StreamInfo

PARTITION: Final = "0"
"""A stream of JetStream has one order of messages."""
FORGOTTEN_AFTER_S: Final = 60.0
"""After this time without us the server removes the consumer."""
MAX_WAITING_BYTES: Final = 32 << 20
"""Size of the messages that wait here; the server sends no more until some were read."""
MAX_LOST_CHECKS: Final = 2
"""After this many checks with messages that were sent and have not arrived, they are read again."""
CHECK_EVERY_S: Final = 5.0
"""Interval at which an idle stream is asked whether the consumer still exists."""
HEARTBEAT_S: Final = 5.0


class _WaitingMessages:
    """Messages that were received and not read yet, bounded in bytes."""

    def __init__(self) -> None:
        self._messages: deque[Msg] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def put_message(self, message: "Msg") -> None:
        """Add a message as soon as there is room."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._bytes < MAX_WAITING_BYTES)
            self._messages.append(message)
            self._bytes += len(message.data)
            self._changed.notify_all()

    async def take_messages(self, count: int) -> "Sequence[Msg]":
        """Return at most `count` messages as soon as there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._messages))
            taken = [self._messages.popleft() for _ in range(min(count, len(self._messages)))]
            self._bytes -= sum(len(message.data) for message in taken)
            self._changed.notify_all()
            return taken


@dataclass(slots=True)
class _ReadSession:
    client: "Client"
    subscription: Any
    waiting: _WaitingMessages
    next_delivery: int = 1
    pending: int | None = None
    checked_at_s: float = 0.0
    lost_checks: int = 0


class NatsEventBroker:
    """Reads a subject of a stream of JetStream."""

    def __init__(self, order: NatsEvents, server: NatsServer, name: str) -> None:
        """`name` is what the server shows of the connection."""
        self._order = order
        self._server = server
        self._name = name
        self._client: Client | None = None
        self._session: _ReadSession | None = None

    async def open_stream(self, state: StreamState, since_s: float) -> str:
        """Connect and begin behind the last position that was read."""
        from nats.js.errors import APIError

        await self.close_stream()
        self._server.clear_errors()
        self._client = client = await self._server.connect(self._name)
        stream = client.jetstream(timeout=CALL_TIMEOUT_S)
        try:
            info = await self._server.call_server(self._find_stream(stream))
            origin = f"{self._order.stream} made {info.created}, {self._order.subject}"
            position = state.positions.get(PARTITION)
            if (state.origin and state.origin != origin) or (position or 0) > info.state.last_seq + 1:
                raise StreamRestartedError(origin)
            waiting = _WaitingMessages()
            subscription = await self._server.call_server(
                stream.subscribe(
                    self._order.subject,
                    stream=self._order.stream,
                    cb=waiting.put_message,
                    config=_make_consumer(self._order.subject, position, since_s),
                    manual_ack=True,
                )
            )
            consumer = await self._server.call_server(subscription.consumer_info())
        except APIError as error:
            raise self._server.refusal_error(str(error.description or error)) from error
        pending = int(consumer.num_pending or 0) + _count_delivered(consumer)
        self._session = _ReadSession(client, subscription, waiting, pending=pending)
        return origin

    async def read_messages(self) -> ReadMessages:
        """Return messages as soon as there is one; none if none arrived within READ_S."""
        session = self._current_session
        try:
            async with asyncio.timeout(READ_S):
                handles = await session.waiting.take_messages(MAX_MESSAGES)
        except TimeoutError:
            return await self._read_nothing(session)
        session.lost_checks = 0
        for handle in handles:
            number = int(handle.metadata.sequence.consumer)
            if number != session.next_delivery:
                raise self._server.connection_error(
                    f"message {number} came instead of {session.next_delivery}"
                )
            session.next_delivery += 1
        session.pending = int(handles[-1].metadata.num_pending)
        messages = [_make_message(handle) for handle in handles]
        return ReadMessages(
            messages,
            {PARTITION: messages[-1].position + 1},
            session.pending,
            time.time() if session.pending == 0 else messages[-1].arrived_s,
        )

    async def check_stream(self) -> None:
        """Ask the server for the consumer."""
        await self._call_consumer(self._current_session)

    async def close_stream(self) -> None:
        """Close the connection; the server removes the consumer."""
        client, self._client, self._session = self._client, None, None
        if client is not None:
            await close_client(client)

    async def _read_nothing(self, session: _ReadSession) -> ReadMessages:
        """Return the end of the stream, unless the consumer is gone or messages are on their way."""
        now_s = asyncio.get_running_loop().time()
        if now_s - session.checked_at_s >= CHECK_EVERY_S:
            consumer = await self._call_consumer(session)
            session.checked_at_s = now_s
            undelivered = _count_delivered(consumer) - (session.next_delivery - 1)
            session.pending = int(consumer.num_pending or 0) + max(undelivered, 0)
            session.lost_checks = session.lost_checks + 1 if session.pending else 0
            if session.lost_checks >= MAX_LOST_CHECKS:
                raise self._server.connection_error(f"{session.pending} messages do not come")
        return ReadMessages(
            pending=session.pending, complete_until_s=time.time() if session.pending == 0 else None
        )

    async def _call_consumer(self, session: _ReadSession) -> "ConsumerInfo":
        from nats.js.errors import APIError

        try:
            info: ConsumerInfo = await self._server.call_server(session.subscription.consumer_info())
        except APIError as error:
            raise self._server.connection_error(f"the consumer is gone: {error.description}") from error
        return info

    async def _find_stream(self, stream: "JetStreamContext") -> "StreamInfo":
        from nats.js.errors import NotFoundError

        try:
            return await stream.stream_info(self._order.stream)
        except NotFoundError as error:
            raise self._server.missing_stream_error(
                self._order.stream, self._order.subject, "stream.nats.stream"
            ) from error

    @property
    def _current_session(self) -> _ReadSession:
        if self._session is None or not self._session.client.is_connected:
            raise self._server.connection_error("the connection ended")
        return self._session


def _make_consumer(subject: str, position: int | None, since_s: float) -> "ConsumerConfig":
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    begin: dict[str, Any] = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": position}
    if position is None:
        start = datetime.fromtimestamp(since_s, UTC)
        begin = {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}
    return ConsumerConfig(
        **begin,
        filter_subject=subject,
        ack_policy=AckPolicy.NONE,
        flow_control=True,
        idle_heartbeat=HEARTBEAT_S,
        inactive_threshold=FORGOTTEN_AFTER_S,
        mem_storage=True,
        num_replicas=1,
    )


def _count_delivered(consumer: "ConsumerInfo") -> int:
    return int(consumer.delivered.consumer_seq) if consumer.delivered is not None else 0


def _make_message(handle: "Msg") -> EventMessage:
    metadata = handle.metadata
    position, arrived_s = int(metadata.sequence.stream), metadata.timestamp.timestamp()
    return EventMessage(PARTITION, position, arrived_s, handle.data, handle.headers or {})
