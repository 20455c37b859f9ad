"""One member of a Kafka consumer group: its partitions, their progress and commits.

A group keeps one offset for each partition and nothing about single messages; `progress` encodes those beside the
offset. Messages that are given back wait here, since a partition can only be read forward.
"""

import asyncio
import contextlib
import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from tidegate_dataplane.agent.kafka_client import import_library, make_listener, make_topic_partition
from tidegate_dataplane.agent.kafka_server import CALL_TIMEOUT_S
from tidegate_dataplane.agent.nearline.broker import FETCH_S, Backlog, StreamMessage
from tidegate_dataplane.agent.nearline.progress import PartitionProgress, decode_progress, encode_progress
from tidegate_dataplane.agent.nearline.tasks import cancel_tasks

log = structlog.get_logger()

COMMIT_EVERY_S: Final = 0.25
"""Messages settled within this time come again after a kill, and are recognised by their results."""
MAX_RETURNED: Final = 256
"""Most messages that were given back and wait in the pod; at the limit nothing new is read."""
LEAVE_S: Final = 1.0
"""Limit for the last commit before partitions are lost or the group is left."""
RETRY_S: Final = 0.1
"""Pause between two requests to a coordinator that has not started yet."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Position of a record; `progress` is that of the partition at its delivery."""

    partition: int
    offset: int
    key: bytes | None
    progress: PartitionProgress


class GroupMember:
    """A membership, from the first fetch on; errors are the client's own."""

    def __init__(self, consumer: Any, admin: Any, topic: str, name: str) -> None:
        """Take started clients of aiokafka; `name` is the group's."""
        self._consumer = consumer
        self._admin = admin
        self._topic = topic
        self._name = name
        self._assigned: dict[int, PartitionProgress] = {}
        """Progress of our partitions, until the next rebalance has ended; absent for a partition before its first read."""
        self._read_to: dict[int, int] = {}
        """Offset at which each partition is read on in this generation; only a log that began again has anything below."""
        self._committed: dict[int, tuple[int, str]] = {}
        self._returned: list[tuple[float, int, StreamMessage]] = []
        self._joined = False
        self._rebalanced = asyncio.Event()
        self._generation = 0
        """Number of rebalances."""
        self._failure: Exception | None = None
        self._read_task: asyncio.Task[tuple[int, dict[Any, list[Any]]]] | None = None
        """A read that a rebalance delays; cancelling it would corrupt the client's state."""
        self._commit_lock = asyncio.Lock()
        self._committed_at = self._read_at = 0.0

    async def leave_group(self) -> None:
        """Commit what is settled; stopping the consumer then leaves the group."""
        with contextlib.suppress(Exception):  # what is not committed comes again
            async with asyncio.timeout(LEAVE_S):
                await self.commit_offsets()
        if self._read_task is not None:
            await cancel_tasks([self._read_task])

    async def fetch_messages(self, count: int) -> Sequence[StreamMessage]:
        """Return at most `count` messages; messages that were given back and are due come first."""
        if not self._joined:
            self._joined = True
            self._consumer.subscribe(
                [self._topic], listener=make_listener(self._on_revoked, self._on_assigned)
            )
        messages = self._take_due_messages(count) or await self._read_messages(count)
        await self.commit_offsets()
        return messages

    async def stay_in_group(self, every_s: float) -> None:
        """Poll without reading, so that the client does not count as idle while the pod has no room."""
        now = time.monotonic()
        if self._read_task is not None or now - self._read_at < every_s or not self._rebalanced.is_set():
            return
        self._read_at = now
        partitions = self._consumer.assignment()
        self._consumer.pause(*partitions)
        await self._consumer.getmany(timeout_ms=0)
        self._consumer.resume(*(partitions & self._consumer.assignment()))

    def owns_message(self, message: StreamMessage) -> bool:
        """Return False once another member has the message's partition."""
        place: RecordPosition = message.handle
        return self._assigned.get(place.partition) is place.progress

    async def settle(self, message: StreamMessage) -> None:
        """Record that the message is settled, and commit now and then."""
        place: RecordPosition = message.handle
        place.progress.settle_offset(place.offset)
        if time.monotonic() - self._committed_at > COMMIT_EVERY_S:
            await self.commit_offsets()

    def give_back(self, message: StreamMessage, after_s: float) -> None:
        """Keep the message until it is due; a pod that ends leaves it uncommitted."""
        heapq.heappush(self._returned, (time.monotonic() + after_s, message.sequence, message))

    async def commit_offsets(self) -> None:
        """Commit what has changed; a commit that the group refuses during a rebalance is repeated with the next change.

        Between the start of a rebalance and the read of the other members' commits nothing is committed: the client would
        send offsets of the old generation for the new one.
        """
        errors = import_library("aiokafka.errors")
        async with self._commit_lock:
            if not self._rebalanced.is_set():
                return
            self._committed_at = time.monotonic()
            changed = {
                partition: offset_and_metadata
                for partition, progress in self._assigned.items()
                if self._committed.get(partition) != (offset_and_metadata := encode_progress(progress))
            }
            if not changed:
                return
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await self._consumer.commit(
                        {
                            self._topic_partition(partition): offset_and_metadata
                            for partition, offset_and_metadata in changed.items()
                        }
                    )
            except (
                errors.CommitFailedError,
                errors.IllegalStateError,
                errors.RebalanceInProgressError,
            ) as error:
                log.info("commit_refused", topic=self._topic, error=str(error))
            else:
                self._committed |= changed

    async def count_backlog(self, partitions: Sequence[int]) -> Backlog:
        """Return the numbers of waiting messages in all partitions, from the commits of all members."""
        await self.commit_offsets()
        ends = await self._consumer.end_offsets(
            [self._topic_partition(partition) for partition in partitions]
        )
        committed = await self._committed_offsets(partitions)
        progresses = {
            partition: decode_progress(entry.offset, entry.metadata or "")
            for partition, entry in committed.items()
        }
        next_offsets = await self._beginning_offsets(
            [partition for partition in partitions if partition not in progresses]
        )
        next_offsets |= {partition: progress.next_offset for partition, progress in progresses.items()}
        pending = sum(max(0, end - next_offsets[place.partition]) for place, end in ends.items())
        unsettled = sum(len(progress.unsettled) for progress in progresses.values())
        return Backlog(pending, unsettled, sum(ends.values()))

    async def check_coordinator(self) -> None:
        """Return once the group's coordinator has answered."""
        await self._committed_offsets([0])

    async def _on_revoked(self) -> None:
        """Commit what is settled when a rebalance begins; messages in flight may still be ours afterwards."""
        self._generation += 1
        # The group may have gone on without us; repeated messages are recognised by their results.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LEAVE_S):
                await self.commit_offsets()
        self._rebalanced.clear()

    async def _on_assigned(self, partitions: Sequence[int]) -> None:
        try:
            await self._take_partitions(partitions)
        except Exception as error:  # the client would only log it
            log.exception("assignment_failed")
            self._failure = error
        self._rebalanced.set()

    async def _take_partitions(self, partitions: Sequence[int]) -> None:
        """Continue where the last owner of each partition stopped; keep our progress if no other member has committed."""
        before, current = self._assigned, dict[int, PartitionProgress]()
        committed = await self._committed_offsets(partitions)
        for partition, entry in committed.items():
            is_unchanged = (
                self._committed.get(partition) == (entry.offset, entry.metadata) and partition in before
            )
            current[partition] = (
                before[partition] if is_unchanged else decode_progress(entry.offset, entry.metadata or "")
            )
        # Without any commit for a partition, our own progress in it stays valid.
        uncommitted = [
            partition
            for partition in partitions
            if partition not in current and partition not in self._committed
        ]
        current |= {partition: before[partition] for partition in uncommitted if partition in before}
        self._assigned = current
        self._read_to = {partition: entry.offset for partition, entry in committed.items()}
        self._committed = {
            partition: offset_and_metadata
            for partition, offset_and_metadata in self._committed.items()
            if partition in current
        }
        self._returned = [returned for returned in self._returned if self.owns_message(returned[2])]
        heapq.heapify(self._returned)
        log.info("partitions_assigned", topic=self._topic, partitions=sorted(partitions))

    async def _committed_offsets(self, partitions: Sequence[int]) -> dict[int, Any]:
        """Return the group's committed offsets; partitions without a commit are absent.

        A coordinator that has just started reports that where the client does not look, and names no partition.
        """
        places = [self._topic_partition(partition) for partition in partitions]
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while places:
                try:
                    offsets = await self._admin.list_consumer_group_offsets(self._name, partitions=places)
                except import_library("aiokafka.errors").KafkaError as error:
                    if not error.retriable:
                        raise
                else:
                    if len(offsets) == len(places):
                        return {
                            place.partition: entry for place, entry in offsets.items() if entry.offset >= 0
                        }
                await asyncio.sleep(RETRY_S)
        return {}

    async def _beginning_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        if not partitions:
            return {}
        offsets = await self._consumer.beginning_offsets(
            [self._topic_partition(partition) for partition in partitions]
        )
        return {place.partition: offset for place, offset in offsets.items()}

    def _take_due_messages(self, count: int) -> list[StreamMessage]:
        messages: list[StreamMessage] = []
        while self._returned and len(messages) < count and self._returned[0][0] <= time.monotonic():
            _, _, message = heapq.heappop(self._returned)
            place: RecordPosition = message.handle
            if self.owns_message(message):
                delivered = place.progress.deliver_again(place.offset)
                messages.append(
                    StreamMessage(message.body, message.headers, message.sequence, delivered, place)
                )
        return messages

    async def _read_messages(self, count: int) -> list[StreamMessage]:
        """Read forward until FETCH_S have passed or a message that was given back is due."""
        wait_s = FETCH_S
        if self._returned:
            wait_s = min(FETCH_S, max(0.0, self._returned[0][0] - time.monotonic()))
        if len(self._returned) >= MAX_RETURNED:
            await asyncio.sleep(wait_s)
            return []
        if self._read_task is None:
            self._read_task = asyncio.create_task(self._poll_records(wait_s, count))
        # Records that arrive before the offsets are known are handled once they are.
        waiting = [self._read_task, asyncio.create_task(self._rebalanced.wait())]
        await asyncio.wait(waiting, timeout=FETCH_S + 0.2, return_when=asyncio.ALL_COMPLETED)
        waiting[1].cancel()
        self._read_at = time.monotonic()
        if self._failure is not None:
            raise self._failure
        if not self._read_task.done() or not self._rebalanced.is_set():
            return []
        (generation, records), self._read_task = self._read_task.result(), None
        if generation != self._generation:
            return []  # records of partitions that we still own are read again
        if not records:
            await self._pass_markers()
        return self._deliver_records(records)

    async def _poll_records(self, wait_s: float, count: int) -> tuple[int, dict[Any, list[Any]]]:
        """Read forward, and return the generation with the records; nothing happens between the two."""
        records = await self._consumer.getmany(timeout_ms=int(wait_s * 1000), max_records=count)
        return self._generation, records

    async def _pass_markers(self) -> None:
        """Advance over offsets without a record, such as the end of a transaction or expired messages."""
        generation = self._generation
        for place in self._consumer.assignment():
            with contextlib.suppress(TimeoutError, import_library("aiokafka.errors").IllegalStateError):
                async with asyncio.timeout(RETRY_S):
                    position = await self._consumer.position(place)
                if generation != self._generation:
                    return
                self._progress_at(place.partition, position).advance_to(position)
                self._read_to[place.partition] = position

    def _deliver_records(self, records: Mapping[Any, Sequence[Any]]) -> list[StreamMessage]:
        """Return the messages of the records that are neither settled nor already here."""
        messages: list[StreamMessage] = []
        for topic_partition, partition_records in records.items():
            progress = self._progress_at(topic_partition.partition, partition_records[0].offset)
            for record in partition_records:
                delivered = progress.deliver_offset(record.offset)
                if delivered is not None:
                    place = RecordPosition(record.partition, record.offset, record.key, progress)
                    messages.append(_make_message(record, delivered, place))
            progress.advance_to(partition_records[-1].offset + 1)
            self._read_to[topic_partition.partition] = partition_records[-1].offset + 1
        return messages

    def _progress_at(self, partition: int, offset: int) -> PartitionProgress:
        """Return the progress of a partition whose next offset is `offset`; a new one if the log began again."""
        progress, read_to = self._assigned.get(partition), self._read_to.get(partition, 0)
        if progress is None or offset < read_to:
            if progress is not None:
                # An election lost records, or the topic was recreated: the old progress does not apply to the new records.
                log.warning(
                    "log_began_again", topic=self._topic, partition=partition, offset=offset, read_to=read_to
                )
            progress = self._assigned[partition] = PartitionProgress(offset)
        return progress

    def _topic_partition(self, partition: int) -> Any:
        return make_topic_partition(self._topic, partition)


def _make_message(record: Any, delivered: int, place: RecordPosition) -> StreamMessage:
    headers = {str(name): (value or b"").decode(errors="replace") for name, value in record.headers}
    # Time orders messages of different partitions; offset and partition make the number unique.
    sequence = (max(0, record.timestamp) << 96) | (record.offset << 32) | record.partition
    return StreamMessage(record.value or b"", headers, sequence, delivered, place)
