"""aiokafka, which publishes no types; imported when it is used: a pod that talks to no Kafka does not pay for it."""

import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


def library(module: str = "aiokafka") -> Any:
    """Return aiokafka, or a module of it."""
    return importlib.import_module(module)


def place_of(topic: str, partition: int) -> Any:
    """Return what aiokafka calls a TopicPartition."""
    return library().TopicPartition(topic, partition)


def listener(
    revoked: Callable[[], Awaitable[None]], assigned: Callable[[Sequence[int]], Awaitable[None]]
) -> Any:
    """Return what a consumer tells of the partitions that it loses and gets."""

    async def on_revoked(_: Any, partitions: Any) -> None:
        del partitions
        await revoked()

    async def on_assigned(_: Any, partitions: Any) -> None:
        await assigned([int(partition.partition) for partition in partitions])

    methods = {"on_partitions_revoked": on_revoked, "on_partitions_assigned": on_assigned}
    return type("Listener", (library("aiokafka.abc").ConsumerRebalanceListener,), methods)()
