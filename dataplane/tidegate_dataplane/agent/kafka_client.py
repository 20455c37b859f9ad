"""aiokafka, which publishes no types; imported on first use, so that other pods do not pay for it."""

import importlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


def import_library(module: str = "aiokafka") -> Any:
    """Import and return aiokafka, or a module of it."""
    return importlib.import_module(module)


def make_topic_partition(topic: str, partition: int) -> Any:
    """Return aiokafka's TopicPartition."""
    return import_library().TopicPartition(topic, partition)


def make_listener(
    revoked: Callable[[], Awaitable[None]], assigned: Callable[[Sequence[int]], Awaitable[None]]
) -> Any:
    """Return a rebalance listener that calls `revoked` and `assigned`."""

    async def on_revoked(_: Any, partitions: Any) -> None:
        del partitions
        await revoked()

    async def on_assigned(_: Any, partitions: Any) -> None:
        await assigned([int(partition.partition) for partition in partitions])

    methods = {"on_partitions_revoked": on_revoked, "on_partitions_assigned": on_assigned}
    return type("Listener", (import_library("aiokafka.abc").ConsumerRebalanceListener,), methods)()
