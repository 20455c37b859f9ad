"""NATS as the worker's broker: a durable consumer, a bucket for results, and a subject for dead letters."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate_dataplane.agent.dead_letters.letter import (
    LetterContent,
    make_letter_id,
    make_reason_headers,
    select_sender_headers,
)
from tidegate_dataplane.agent.dead_letters.nats_subject import DeadLetterSubject
from tidegate_dataplane.agent.nats_server import CALL_TIMEOUT_S, NatsServer, close_client
from tidegate_dataplane.agent.nearline.broker import FETCH_S, Backlog, StreamMessage
from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter
from tidegate_dataplane.agent.nearline.nats_bucket import ResultBucket
from tidegate_dataplane.contract import StreamOrder

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import ConsumerInfo

ACK_WAIT_S: Final = 10.0
"""After this time without a sign of the pod a message is delivered to another pod; holds are renewed three times as often."""
MAX_UNSETTLED: Final = 10_000
"""Most messages that all pods together may hold."""
NO_STREAM: Final = 10059
"""JetStream's err_code for a stream that does not exist."""


@dataclass(frozen=True, slots=True)
class _NatsSession:
    """A connection, and what was opened through it."""

    client: "Client"
    stream: "JetStreamContext"
    messages: "JetStreamContext.PullSubscription"


class NatsBroker:
    """Holds one connection at a time; the bucket is on the stream's own server."""

    id_header = "Nats-Msg-Id"

    def __init__(self, order: StreamOrder, server: NatsServer, name: str) -> None:
        """`name` is what the server shows of the connection."""
        self._order = order
        self._server = server
        self._name = name
        self._client: Client | None = None
        self._session: _NatsSession | None = None
        self._bucket = ResultBucket(server, order.bucket, order.ttl_s)
        self._dead_letters = DeadLetterSubject(server, order.dead_letters)
        self.hold_interval_s = ACK_WAIT_S / 3

    async def open(self) -> None:
        """Connect, and find or make the consumer and the bucket.

        Raises:
            BrokerError: with a message for the author of the spec.
        """
        from nats.js.errors import APIError

        await self.close()
        self._server.clear_errors()
        self._client = await self._server.connect(self._name)
        try:
            self._session = await self._make_session(self._client)
        except APIError as error:
            raise self._server.refusal_error(str(error.description or error)) from error

    async def _make_session(self, client: "Client") -> _NatsSession:
        stream = client.jetstream(timeout=CALL_TIMEOUT_S)
        info = await self._server.call_server(self._find_or_add_consumer(stream))
        self._check_consumer(info)
        await self._check_subjects(stream, info)
        self.hold_interval_s = (info.config.ack_wait or ACK_WAIT_S) / 3
        await self._bucket.open(client)
        # One that is the consumed stream itself is no harm: `_check_subjects` has seen to it.
        await self._dead_letters.find_stream(stream)
        messages = await self._server.call_server(
            stream.pull_subscribe_bind(consumer=self._order.consumer, stream=self._order.stream)
        )
        return _NatsSession(client, stream, messages)

    async def close(self) -> None:
        """Flush pending output and close the connection."""
        client, self._client, self._session = self._client, None, None
        if client is not None:
            with contextlib.suppress(Exception):  # it is gone either way
                await client.flush(timeout=1)
            await close_client(client)

    async def fetch_messages(self, count: int) -> Sequence[StreamMessage]:
        """Return at most `count` messages as soon as there is one; none if none came within FETCH_S."""
        from nats import errors

        messages = self._current_session.messages
        try:
            return [_make_message(handle) for handle in await messages.fetch(count, timeout=FETCH_S)]
        except (errors.TimeoutError, TimeoutError):
            return ()
        except (errors.Error, OSError) as error:
            raise self._server.connection_error(str(error) or type(error).__name__) from error

    async def count_backlog(self) -> Backlog:
        """Return the numbers of waiting messages."""
        from nats.js.errors import APIError

        try:
            info = await self._server.call_server(
                self._current_session.stream.consumer_info(self._order.stream, self._order.consumer)
            )
        except APIError as error:
            raise self._server.refusal_error(
                f"consumer {self._order.consumer}: {error.description}"
            ) from error
        pending = int(info.num_pending or 0)
        delivered = int(info.delivered.consumer_seq) if info.delivered is not None else 0
        return Backlog(pending, int(info.num_ack_pending or 0), delivered + pending)

    async def has_result(self, request_id: str) -> bool:
        """Return whether the id has a result."""
        return await self._bucket.has_result(request_id)

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        """Store a result; return False if the id already has one, which stays."""
        return await self._bucket.keep_result(request_id, content)

    async def publish_dead_letter(self, message: StreamMessage, verdict: DeadLetter) -> None:
        """Publish a message to the dead letters, with the reason in its headers; a repetition is dropped as a duplicate.

        Raises:
            BrokerError: refused, if they accept no message, or none of this size.
        """
        session, metadata = self._current_session, message.handle.metadata
        our_headers = {
            "Nats-Msg-Id": make_letter_id(
                self._order.stream, message.sequence, metadata.timestamp.timestamp()
            ),
            **make_reason_headers(verdict.reason, verdict.message),
            "Tidegate-Stream": self._order.stream,
            "Tidegate-Sequence": str(message.sequence),
            "Tidegate-Deliveries": str(message.delivery_count),
        }
        content = LetterContent(message.body, select_sender_headers(message.headers, ["Nats-"]), our_headers)
        await self._dead_letters.publish_letter(session.stream, session.client.max_payload, content)

    def is_ours(self, message: StreamMessage) -> bool:
        """Return True: NATS does not report when a message went to another pod."""
        del message
        return True

    async def settle(self, message: StreamMessage) -> None:
        """Acknowledge the message."""
        await self._server.call_server(message.handle.ack())

    async def give_back(self, message: StreamMessage, after_s: float) -> None:
        """Return the message to the stream, for another delivery after `after_s`."""
        await self._server.call_server(message.handle.nak(delay=after_s or None))

    async def renew_hold(self, message: StreamMessage) -> None:
        """Extend the time that this pod may hold the message."""
        await self._server.call_server(message.handle.in_progress())

    @property
    def _current_session(self) -> _NatsSession:
        if self._session is None or not self._session.client.is_connected:
            raise self._server.connection_error("the connection ended")
        return self._session

    async def _find_or_add_consumer(self, stream: "JetStreamContext") -> "ConsumerInfo":
        from nats.js.api import AckPolicy, ConsumerConfig
        from nats.js.errors import NotFoundError

        order = self._order
        try:
            info: ConsumerInfo = await stream.consumer_info(order.stream, order.consumer)
        except NotFoundError as error:
            if error.err_code == NO_STREAM:
                raise self._server.missing_stream_error(
                    order.stream, order.subject, "consume.nats.stream"
                ) from error
        else:
            return info
        return await stream.add_consumer(
            order.stream,
            ConsumerConfig(
                durable_name=order.consumer,
                filter_subject=order.subject,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=ACK_WAIT_S,
                max_deliver=-1,
                max_ack_pending=MAX_UNSETTLED,
            ),
        )

    def _check_consumer(self, info: "ConsumerInfo") -> None:
        """Refuse a consumer that loses messages or delivers others than the spec's."""
        from nats.js.api import AckPolicy

        config, name = info.config, f"consumer {self._order.consumer} of stream {self._order.stream}"
        if config.deliver_subject:
            raise self._server.refusal_error(f"{name} pushes; make a pull consumer, or name none")
        if config.ack_policy is not None and AckPolicy(config.ack_policy) is not AckPolicy.EXPLICIT:
            raise self._server.refusal_error(f"{name} has ackPolicy {config.ack_policy}; it must be explicit")
        if config.max_deliver is not None and config.max_deliver > 0:
            raise self._server.refusal_error(
                f"{name} gives a message up after {config.max_deliver} deliveries, without a dead letter: set its "
                "max-deliver to -1; maxDeliveries of the spec decides"
            )
        if config.filter_subjects or config.filter_subject not in (None, "", self._order.subject):
            filters = config.filter_subjects or [str(config.filter_subject)]
            raise self._server.refusal_error(
                f"{name} has the subject {', '.join(filters)}, and the spec says {self._order.subject}"
            )

    async def _check_subjects(self, stream: "JetStreamContext", info: "ConsumerInfo") -> None:
        """Refuse a consumer of more than the spec's subject, and dead letters that it would consume again."""
        order = self._order
        self._dead_letters.check_source(order.subject)
        if info.config.filter_subject:
            return
        subjects = (await self._server.call_server(stream.stream_info(order.stream))).config.subjects or []
        if subjects != [order.subject]:
            raise self._server.refusal_error(
                f"consumer {order.consumer} of stream {order.stream} has no subject, so it takes all of the stream's "
                f"({', '.join(subjects)}), and the spec says {order.subject}: make it with --filter {order.subject}, or "
                "name none"
            )


def _make_message(handle: "Msg") -> StreamMessage:
    metadata = handle.metadata
    headers = {name: str(value) for name, value in (handle.headers or {}).items()}
    return StreamMessage(
        handle.data, headers, int(metadata.sequence.stream), int(metadata.num_delivered), handle
    )
