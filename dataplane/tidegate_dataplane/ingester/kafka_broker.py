"""Kafka as the ingester's broker: all partitions of a topic, from the ingester's own offsets, without a group."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate_dataplane.agent.kafka_client import import_library, make_topic_partition
from tidegate_dataplane.agent.kafka_server import KafkaServer, stop_client
from tidegate_dataplane.contract import KafkaOrder
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.ingester.broker import (
    MAX_MESSAGES,
    READ_S,
    EventMessage,
    ReadMessages,
    StreamChangedError,
    StreamRestartedError,
)

CHECK_EVERY_S: Final = 5.0
"""Interval at which the topic is asked for new partitions, and a cluster that is gone is noticed."""


class KafkaEventBroker:
    """Reads a topic."""

    def __init__(self, order: KafkaOrder, server: KafkaServer, name: str) -> None:
        """`name` is what the cluster shows of the connection."""
        self._order = order
        self._server = server
        self._name = name
        self._admin: Any = None
        self._consumer: Any = None
        self._partitions: set[Any] = set()
        self._arrived_s: dict[Any, float] = {}
        self._checked_at_s = 0.0

    async def open_stream(self, state: StreamState, since_s: float) -> str:
        """Connect and go behind the last offset of each partition that was read."""
        await self.close_stream()
        options = await self._server.reach_cluster(self._name)
        self._admin = import_library("aiokafka.admin").AIOKafkaAdminClient(**options)
        self._consumer = consumer = import_library().AIOKafkaConsumer(
            **options, enable_auto_commit=False, auto_offset_reset="none", isolation_level="read_committed"
        )
        await self._server.call_in_time(self._admin.start())
        await self._server.call_in_time(consumer.start())
        self._partitions = {
            make_topic_partition(self._order.topic, number) for number in await self._list_partitions()
        }
        self._arrived_s = {}
        consumer.assign(list(self._partitions))
        ends = await self._server.call_in_time(consumer.end_offsets(list(self._partitions)))
        positions = await self._find_positions(state, since_s, ends)
        for partition, position in positions.items():
            if position > ends[partition]:
                raise StreamRestartedError(self._order.topic)
            consumer.seek(partition, position)
        self._checked_at_s = asyncio.get_running_loop().time()
        return self._order.topic

    async def read_messages(self) -> ReadMessages:
        """Return messages as soon as there is one; none if none arrived within READ_S."""
        consumer = self._consumer
        if consumer is None:
            raise self._server.translate_error(RuntimeError("the connection ended"))
        await self._check_partitions()
        records_read = await self._server.translate_errors(
            consumer.getmany(timeout_ms=int(READ_S * 1000), max_records=MAX_MESSAGES)
        )
        messages = [
            _make_message(partition.partition, record)
            for partition, records in records_read.items()
            for record in records
        ]
        for partition, records in records_read.items():
            self._arrived_s[partition] = records[-1].timestamp / 1000
        positions = {
            partition: await self._server.call_in_time(consumer.position(partition))
            for partition in self._partitions
        }
        pending = {
            partition: max(mark - positions[partition], 0)
            for partition in self._partitions
            if (mark := consumer.highwater(partition)) is not None
        }
        return ReadMessages(
            messages,
            {str(partition.partition): position for partition, position in positions.items()},
            sum(pending.values()) if len(pending) == len(positions) else None,
            self._find_complete_time(pending),
        )

    def _find_complete_time(self, pending: Mapping[Any, int]) -> float | None:
        """Return the arrival of the last message that was read of the partition that is furthest behind."""
        behind = [partition for partition in self._partitions if pending.get(partition) != 0]
        if not behind:
            return time.time()
        arrivals = [self._arrived_s.get(partition) for partition in behind]
        return None if None in arrivals else min(arrival for arrival in arrivals if arrival is not None)

    async def check_stream(self) -> None:
        """Ask the cluster for the ends of the partitions."""
        await self._server.call_in_time(self._consumer.end_offsets(list(self._partitions)))

    async def close_stream(self) -> None:
        """Close the connections."""
        clients = [client for client in (self._consumer, self._admin) if client is not None]
        self._consumer = self._admin = None
        await asyncio.gather(*map(stop_client, clients))

    async def _check_partitions(self) -> None:
        """Notice new partitions, and a cluster that does not answer: the client itself waits for it without a word."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._checked_at_s < CHECK_EVERY_S:
            return
        await self.check_stream()
        if len(await self._list_partitions()) != len(self._partitions):
            raise StreamChangedError(self._order.topic)
        self._checked_at_s = now_s

    async def _list_partitions(self) -> Sequence[int]:
        return await self._server.call_in_time(
            self._server.list_partitions(self._admin, self._order.topic, "stream.kafka.topic")
        )

    async def _find_positions(
        self, state: StreamState, since_s: float, ends: Mapping[Any, int]
    ) -> dict[Any, int]:
        stored = {
            partition: state.positions[str(partition.partition)]
            for partition in self._partitions
            if str(partition.partition) in state.positions
        }
        begins = await self._server.call_in_time(self._consumer.beginning_offsets(list(self._partitions)))
        since = dict.fromkeys(self._partitions - stored.keys(), max(int(since_s * 1000), 0))
        offsets = await self._server.call_in_time(self._consumer.offsets_for_times(since)) if since else {}
        new = {
            partition: ends[partition] if offsets.get(partition) is None else offsets[partition].offset
            for partition in since
        }
        # What the topic no longer retains is lost for us.
        return {partition: max(position, begins[partition]) for partition, position in (stored | new).items()}


def _make_message(partition: int, record: Any) -> EventMessage:
    headers = {str(name): (value or b"").decode(errors="replace") for name, value in record.headers}
    arrived_s = record.timestamp / 1000
    return EventMessage(str(partition), record.offset, arrived_s, record.value or b"", headers, record.key)
