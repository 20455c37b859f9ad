"""What the near-line worker asks of a real NATS server: consumers that it refuses, and dead letters of every size."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig

from builders.stream_messages import taken
from builders.waiting import LONGEST_S
from fixtures.nats import RunningNats, a_nats, let_nats_stall
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.nats_subject import subjects_overlap
from tidegate_dataplane.agent.nats_server import NatsServer
from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter, DeadReason
from tidegate_dataplane.agent.nearline.nats_broker import NatsBroker
from tidegate_dataplane.contract import StreamOrder

MOST_BYTES = 8_192
WHY = DeadLetter(DeadReason.MALFORMED, "it is no JSON")


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    let_nats_stall(monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningNats]:
    with a_nats(tmp_path / "nats", f"max_payload: {MOST_BYTES}") as running:
        yield running


def an_order(server: RunningNats, **changes: Any) -> StreamOrder:
    order: dict[str, Any] = {
        "url": server.url,
        "stream": "WORK",
        "subject": "work.a",
        "consumer": "c",
        "max_in_flight": 4,
        "bucket": "results",
        "ttl_s": 60.0,
        "dead_letters": "dead.a",
        "max_deliveries": 3,
    }
    return StreamOrder(**order | changes)


@asynccontextmanager
async def a_broker(
    server: RunningNats, folder: Path, *, subjects: list[str], **changes: Any
) -> AsyncGenerator[tuple[NatsBroker, Client]]:
    """Over streams WORK and DEAD, and a consumer `all` that has no subject; not opened yet."""
    client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=int(LONGEST_S))
    stream = client.jetstream(timeout=LONGEST_S)
    await stream.add_stream(name="WORK", subjects=subjects)
    await stream.add_stream(StreamConfig(name="DEAD", subjects=["dead.>"], max_msg_size=7_000))
    await stream.add_consumer("WORK", ConsumerConfig(durable_name="all", ack_policy="explicit"))  # type: ignore[arg-type]
    order = an_order(server, **changes)
    reached = NatsServer(order.url, "", lambda: SecretCredentials("(none)"), folder, allow_loopback=True)
    broker = NatsBroker(order, reached, "test")
    try:
        yield broker, client
    finally:
        await broker.close()
        await client.close()


@pytest.mark.parametrize(
    ("subjects", "changes", "said"),
    [
        (["work.>"], {"consumer": "all"}, r"takes all of the stream's \(work.>\), and the spec says work.a"),
        (["work.a", "dead-of.a"], {"consumer": "all", "dead_letters": "dead-of.a"}, "has no subject"),
        (["work.>"], {"subject": "work.>", "dead_letters": "work.dead"}, "which is among what is consumed"),
    ],
)
async def test_a_consumer_that_would_take_its_own_dead_letters_is_refused(
    server: RunningNats, tmp_path: Path, subjects: list[str], changes: dict[str, Any], said: str
) -> None:
    async with a_broker(server, tmp_path, subjects=subjects, **changes) as (broker, _):
        with pytest.raises(BrokerError, match=said) as refused:
            await broker.open()
        assert refused.value.refused


async def test_a_consumer_without_a_subject_will_do_where_the_stream_has_no_other(
    server: RunningNats, tmp_path: Path
) -> None:
    async with a_broker(server, tmp_path, subjects=["work.a"], consumer="all") as (broker, client):
        await broker.open()
        await client.jetstream(timeout=LONGEST_S).publish("work.a", b"1")
        assert [message.body for message in await taken(broker, 1, at_once=4)] == [b"1"]


@pytest.mark.no_rerun("a lost message")
async def test_a_message_with_the_header_of_a_status_is_delivered_as_any_other(
    server: RunningNats, tmp_path: Path
) -> None:
    async with a_broker(server, tmp_path, subjects=["work.a"]) as (broker, client):
        await broker.open()
        stream = client.jetstream(timeout=LONGEST_S)
        statuses = ("100", "200", "404", "408", "409", "503", "no status")
        for status in statuses:
            headers = {"Status": status, "Description": "Idle", "x": "y"}
            await stream.publish("work.a", status.encode(), headers=headers)
        await stream.publish("work.a", b"", headers={"Status": "100", "Description": "Idle Heartbeat"})
        messages = await taken(broker, len(statuses) + 1, at_once=4)
        assert [message.body for message in messages] == [*(status.encode() for status in statuses), b""]
        assert [message.headers.get("x") for message in messages] == ["y"] * len(statuses) + [None]
        assert {message.headers["Sender-Status"] for message in messages} == set(statuses)
        assert (await broker.fetch_messages(1)) == (), "the end of the stream is still seen"


@pytest.mark.no_rerun("a doubled result")
async def test_an_id_keeps_its_first_result(server: RunningNats, tmp_path: Path) -> None:
    async with a_broker(server, tmp_path, subjects=["work.a"]) as (broker, client):
        await broker.open()
        assert await broker.keep_result("m-1", b"first")
        assert not await broker.keep_result("m-1", b"second")
        bucket = await client.jetstream(timeout=LONGEST_S).key_value("results")
        assert (await bucket.get("m-1")).value == b"first"


async def test_a_dead_letter_keeps_its_body_before_its_headers_and_is_refused_where_it_does_not_fit(
    server: RunningNats, tmp_path: Path
) -> None:
    async with a_broker(server, tmp_path, subjects=["work.a"]) as (broker, client):
        await broker.open()
        stream = client.jetstream(timeout=LONGEST_S)
        sizes = {"both": 100, "body": 6_000, "large": 7_000, "none": MOST_BYTES - 60}
        for name, size in sizes.items():
            headers = {"x": "y" * 1_500} if name in ("both", "body") else {"x": "y"}
            await stream.publish("work.a", name.encode() + b" " * (size - len(name)), headers=headers)
        messages = await taken(broker, len(sizes), at_once=1)
        for message in messages[:2]:
            await broker.publish_dead_letter(message, WHY)
        for message, said in (
            (messages[2], "takes no dead letter: message size exceeds maximum allowed"),
            (messages[3], f"the server takes {MOST_BYTES}: raise max_payload"),
        ):
            with pytest.raises(BrokerError, match=said) as refused:
                await broker.publish_dead_letter(message, WHY)
            assert refused.value.refused

        dead = [await stream.get_msg("DEAD", number) for number in (1, 2)]
        assert [one.data for one in dead] == [message.body for message in messages[:2]]
        assert [("x" in (one.headers or {})) for one in dead] == [True, False]
        assert all((one.headers or {})["Tidegate-Reason"] == "Malformed" for one in dead)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("work.a", "work.a", True),
        ("work.a", "work.b", False),
        ("work.>", "work.a.b", True),
        ("work.>", "work", False),
        ("work.*", "work.a", True),
        ("work.*", "work.a.b", False),
        ("*.dead", "work.dead", True),
    ],
)
def test_which_subjects_a_pattern_takes(pattern: str, subject: str, expected: bool) -> None:
    assert subjects_overlap(pattern, subject) is expected
