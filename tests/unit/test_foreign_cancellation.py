"""A client that cancels what it awaits itself: that ends a call, and neither the task that made it nor the process's other parts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.kafka_server import KafkaServer, stop_client
from tidegate_dataplane.agent.stopping import run_until
from tidegate_dataplane.contract import KafkaOrder


@dataclass
class FakeConnections:
    """The client below a consumer, which has its connections."""

    closed: int = 0

    async def close(self) -> None:
        self.closed += 1


@dataclass
class FakeConsumer:
    """As aiokafka's: it awaits the fetch that it has cancelled."""

    answered: bool
    _client: FakeConnections = field(default_factory=FakeConnections)

    async def stop(self) -> None:
        fetch = asyncio.create_task(asyncio.sleep(0 if self.answered else 60))
        await asyncio.sleep(0.01)
        fetch.cancel()
        await fetch
        await self._client.close()


def a_server() -> KafkaServer:
    order = KafkaOrder(servers=("kafka:9092",), topic="work")
    return KafkaServer(order, lambda: SecretCredentials(), Path("/nowhere"), allow_loopback=False)


async def _cancel_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("answered", [True, False])
async def test_a_consumer_with_a_fetch_that_is_not_answered_is_closed_and_its_owner_goes_on(
    answered: bool,
) -> None:
    consumer = FakeConsumer(answered)
    await stop_client(consumer)
    assert consumer._client.closed == 1


async def test_a_call_that_the_client_cancels_has_failed() -> None:
    with pytest.raises(BrokerError, match="the client has cancelled the call") as failed:
        await a_server().translate_errors(_cancel_itself())
    assert not failed.value.refused


async def test_whoever_is_cancelled_while_it_waits_for_the_client_ends() -> None:
    for waiting in (stop_client(FakeConsumer(False)), a_server().translate_errors(asyncio.sleep(60))):
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_part_of_a_process_that_ends_with_a_foreign_cancellation_ends_the_process() -> None:
    with pytest.raises(BaseExceptionGroup, match="unhandled errors") as ended:
        await run_until(asyncio.Event(), _cancel_itself, lambda: asyncio.sleep(60))
    (error,) = ended.value.exceptions
    assert isinstance(error, RuntimeError)


async def test_parts_end_when_the_process_is_to_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    await run_until(stop, lambda: asyncio.sleep(60), lambda: asyncio.sleep(60))
