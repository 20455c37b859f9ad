"""Kafka as the worker's broker: a consumer group, a topic for dead letters, and a NATS bucket for results."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.kafka_topic import DeadLetterTopic, make_letter_producer
from tidegate_dataplane.agent.dead_letters.letter import (
    LetterContent,
    make_reason_headers,
    select_sender_headers,
)
from tidegate_dataplane.agent.kafka_client import import_library
from tidegate_dataplane.agent.kafka_server import KafkaServer, stop_client
from tidegate_dataplane.agent.nats_server import NatsServer, close_client
from tidegate_dataplane.agent.nearline.broker import Backlog, StreamMessage
from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter
from tidegate_dataplane.agent.nearline.kafka_group import LEAVE_S, GroupMember, RecordPosition
from tidegate_dataplane.agent.nearline.nats_bucket import ResultBucket
from tidegate_dataplane.contract import KafkaOrder, StreamOrder

SESSION_S: Final = 10.0
"""After this time without a heartbeat other pods get the partitions; the same time as the ack wait on NATS."""
IDLE_S: Final = 15.0
"""A pod that fetches nothing for this time, since its model is not ready, loses its partitions to others."""


@dataclass(slots=True)
class _KafkaSession:
    """Clients of one session."""

    consumer: Any
    producer: Any
    admin: Any
    group: GroupMember
    failed: BrokerError | None = None


class KafkaBroker:
    """Holds one session at a time: a membership of the group, and a connection to the bucket's server."""

    id_header = "ce_id"
    hold_interval_s = IDLE_S / 3

    def __init__(self, order: StreamOrder, server: KafkaServer, results: NatsServer, name: str) -> None:
        """`results` is the server of the bucket; `name` is what both servers show of the connection."""
        self._order: KafkaOrder = server.order
        self._dead_letters = order.dead_letters
        self._server = server
        self._dead_letter_topic = DeadLetterTopic(server, order.dead_letters)
        self._results = results
        self._bucket = ResultBucket(results, order.bucket, order.ttl_s)
        self._name = name
        self._client: Any = None
        self._session: _KafkaSession | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect, and check topics and bucket; only the first fetch joins the group.

        Raises:
            BrokerError: with a message for the author of the spec.
        """
        await self.close()
        await self._open_bucket()
        self._session = session = self._make_session(await self._server.reach_cluster(self._name))
        try:
            await self._server.call_in_time(session.admin.start())
            for topic in (self._order.topic, self._dead_letters):
                await self._server.call_in_time(self._list_partitions(session.admin, topic))
            await self._server.call_in_time(session.producer.start())
            await self._server.call_in_time(session.consumer.start())
        except BrokerError:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit, leave the group and close every connection, so that other pods get the partitions at once."""
        session, self._session = self._session, None
        if session is not None:
            await session.group.leave_group()
            clients = (session.consumer, session.producer, session.admin)
            stopping = {asyncio.create_task(stop_client(client), name="kafka_stop") for client in clients}
            _, self._stopping = await asyncio.wait(stopping | self._stopping, timeout=LEAVE_S)
        client, self._client = self._client, None
        if client is not None:
            await close_client(client)

    async def fetch_messages(self, count: int) -> Sequence[StreamMessage]:
        """Return at most `count` messages as soon as there is one; none if none came within FETCH_S."""
        return await self._server.translate_errors(self._current_session.group.fetch_messages(count))

    async def count_backlog(self) -> Backlog:
        """Return the numbers of waiting messages.

        The client does not notice that its cluster has gone, so this regular call detects it. A partition without a leader is
        different: there is no number until it has one, and the work on other partitions goes on.
        """
        session = self._current_session

        async def count_all_partitions() -> Backlog:
            partitions = await self._list_partitions(session.admin, self._order.topic)
            return await session.group.count_backlog(partitions)

        try:
            return await self._server.call_in_time(count_all_partitions())
        except BrokerError as error:
            if error.refused or not await self._coordinator_answers(session):
                session.failed = error
            raise

    async def has_result(self, request_id: str) -> bool:
        """Return whether the id has a result."""
        return await self._bucket.has_result(request_id)

    async def keep_result(self, request_id: str, content: bytes) -> bool:
        """Store a result; return False if the id already has one, which stays."""
        return await self._bucket.keep_result(request_id, content)

    async def publish_dead_letter(self, message: StreamMessage, verdict: DeadLetter) -> None:
        """Publish a message to the dead letters' topic, with the reason in its headers."""
        place: RecordPosition = message.handle
        our_headers = {
            **make_reason_headers(verdict.reason, verdict.message),
            "Tidegate-Stream": self._order.topic,
            "Tidegate-Partition": str(place.partition),
            "Tidegate-Sequence": str(place.offset),
            "Tidegate-Deliveries": str(message.delivery_count),
        }
        content = LetterContent(message.body, select_sender_headers(message.headers), our_headers, place.key)
        await self._dead_letter_topic.publish_letter(self._current_session.producer, content)

    def is_ours(self, message: StreamMessage) -> bool:
        """Return False once another pod has the partition."""
        return self._session is not None and self._session.group.owns_message(message)

    async def settle(self, message: StreamMessage) -> None:
        """Acknowledge the message."""
        await self._server.translate_errors(self._current_session.group.settle(message))

    async def give_back(self, message: StreamMessage, after_s: float) -> None:
        """Deliver the message again: here after `after_s`, or elsewhere if this pod ends first."""
        self._current_session.group.give_back(message, after_s)

    async def renew_hold(self, message: StreamMessage) -> None:
        """Stay in the group while there is no room for more."""
        del message
        await self._server.translate_errors(
            self._current_session.group.stay_in_group(self.hold_interval_s / 2)
        )

    async def _coordinator_answers(self, session: _KafkaSession) -> bool:
        try:
            await self._server.call_in_time(session.group.check_coordinator())
        except BrokerError:
            return False
        return True

    async def _list_partitions(self, admin: Any, topic: str) -> Sequence[int]:
        field = "consume.kafka.topic" if topic == self._order.topic else "deadLetters.topic"
        return await self._server.list_partitions(admin, topic, field)

    def _make_session(self, options: Mapping[str, Any]) -> _KafkaSession:
        consumer = import_library().AIOKafkaConsumer(
            **options,
            group_id=self._order.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=int(SESSION_S * 1000),
            heartbeat_interval_ms=int(SESSION_S * 100),
            max_poll_interval_ms=int(IDLE_S * 1000),
        )
        producer = make_letter_producer(options)
        admin = import_library("aiokafka.admin").AIOKafkaAdminClient(**options)
        group = GroupMember(consumer, admin, self._order.topic, self._order.group)
        return _KafkaSession(consumer, producer, admin, group)

    async def _open_bucket(self) -> None:
        from nats.js.errors import APIError

        self._results.clear_errors()
        self._client = await self._results.connect(self._name)
        try:
            await self._bucket.open(self._client)
        except APIError as error:
            raise self._results.refusal_error(str(error.description or error)) from error

    @property
    def _current_session(self) -> _KafkaSession:
        if self._session is None:
            raise BrokerError(f"Kafka at {self._server.name}: the connection ended", refused=False)
        if self._session.failed is not None:
            raise self._session.failed
        return self._session
