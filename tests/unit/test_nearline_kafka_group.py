"""A member of a group of Kafka: what it commits while the group agrees again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from tidegate_dataplane.agent.nearline.broker import StreamMessage
from tidegate_dataplane.agent.nearline.kafka_group import GroupMember, RecordPosition
from tidegate_dataplane.agent.nearline.progress import PartitionProgress, encode_progress

HERE = TopicPartition("work", 0)


@dataclass
class FakeKafka:
    """One partition: what is committed for it; it answers questions only while `answering`."""

    committed: tuple[int, str]
    refuses: bool = False
    answering: asyncio.Event = field(default_factory=asyncio.Event)

    async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        if self.refuses:
            raise CommitFailedError
        self.committed = offsets[HERE]

    async def list_consumer_group_offsets(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        del group
        await self.answering.wait()
        return {each: OffsetAndMetadata(*self.committed) for each in partitions}


async def test_a_pod_that_gets_its_partition_back_does_not_undo_what_others_have_done_meanwhile() -> None:
    kafka = FakeKafka(encode_progress(PartitionProgress(0)))
    kafka.answering.set()
    client: Any = kafka
    group = GroupMember(client, client, "work", "group")
    await group._on_assigned([0])
    progress = group._assigned[0]
    held = [
        StreamMessage(
            b"", {}, offset, progress.deliver_offset(offset) or 0, RecordPosition(0, offset, None, progress)
        )
        for offset in range(3)
    ]
    await group.commit_offsets()
    assert kafka.committed[0] == 0

    # Thrown out; another pod has it all done and leaves; the client has the partition back, and asks what is committed.
    kafka.refuses = True
    await group._on_revoked()
    kafka.refuses = False
    kafka.committed = others = encode_progress(PartitionProgress(3))
    kafka.answering.clear()
    taking = asyncio.create_task(group._on_assigned([0]))
    await asyncio.sleep(0)
    await group.settle(held[1])
    await group.commit_offsets()
    assert kafka.committed == others

    kafka.answering.set()
    await taking
    assert not group.owns_message(held[0])
    await group.commit_offsets()
    assert kafka.committed == others


async def test_what_was_settled_is_committed_before_the_group_agrees_again() -> None:
    kafka = FakeKafka(encode_progress(PartitionProgress(0)))
    kafka.answering.set()
    client: Any = kafka
    group = GroupMember(client, client, "work", "group")
    await group._on_assigned([0])
    group._assigned[0].deliver_offset(0)
    group._assigned[0].settle_offset(0)
    await group._on_revoked()
    assert kafka.committed[0] == 1
