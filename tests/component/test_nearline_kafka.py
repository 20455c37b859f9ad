"""What the near-line worker asks of a real Kafka broker, where a group keeps one offset for each partition."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from builders.scenario import require_scenario
from builders.stream_messages import taken
from builders.waiting import LIMIT_S, ends_in_time, wait_until
from fixtures.kafka import PASSWORD, USER, RunningKafka
from fixtures.nats import RunningNats, a_nats, let_nats_stall
from tidegate_dataplane.agent import kafka_server
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.kafka_server import KafkaServer
from tidegate_dataplane.agent.nats_server import NatsServer
from tidegate_dataplane.agent.nearline import kafka_broker, kafka_group
from tidegate_dataplane.agent.nearline.broker import StreamMessage
from tidegate_dataplane.agent.nearline.failure_policy import DeadLetter, DeadReason
from tidegate_dataplane.agent.nearline.kafka_broker import KafkaBroker
from tidegate_dataplane.agent.nearline.progress import PartitionProgress, encode_progress
from tidegate_dataplane.contract import KafkaOrder, SaslMechanism, StreamOrder

pytestmark = [
    # aiokafka drops a connection that is being made while its client is closed: the system has it until it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WHY = DeadLetter(DeadReason.REFUSED, "the model\nrefuses it")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNats]:
    with a_nats(tmp_path_factory.mktemp("nats")) as running:
        yield running


class Place:
    """A topic of the test's own, its dead letters and its group."""

    def __init__(self, kafka: RunningKafka, nats: RunningNats, partitions: int = 1, **dead: str) -> None:
        self.kafka, self.nats = kafka, nats
        self.topic = f"work-{next(_numbers)}"
        self.dead, self.group = f"{self.topic}.dead", f"group-{self.topic}"
        kafka.make_topic(self.topic, partitions)
        kafka.make_topic(self.dead, **dead)

    def broker(
        self, loopback: bool = True, secret: dict[str, str] | None = None, **changes: Any
    ) -> KafkaBroker:
        kafka = KafkaOrder(
            **{"servers": (self.kafka.server,), "topic": self.topic, "group": self.group} | changes
        )
        order = StreamOrder(
            url=self.nats.url,
            kafka=kafka,
            max_in_flight=4,
            bucket="results",
            ttl_s=60.0,
            dead_letters=self.dead,
            max_deliveries=3,
        )
        known = SecretCredentials("reader", secret or {})
        server = KafkaServer(kafka, lambda: known, Path("/nowhere"), allow_loopback=loopback)
        results = NatsServer(
            self.nats.url, "", lambda: SecretCredentials(), Path("/nowhere"), allow_loopback=True
        )
        return KafkaBroker(order, server, results, "tidegate ads/rank pod-0")

    @asynccontextmanager
    async def opened(self, **changes: Any) -> AsyncGenerator[KafkaBroker]:
        broker = self.broker(**changes)
        await broker.open()
        try:
            yield broker
        finally:
            await broker.close()

    async def publish(self, *bodies: bytes, **options: Any) -> None:
        await asyncio.to_thread(self.kafka.publish, self.topic, bodies, **options)

    async def unsettled(self) -> tuple[int, int]:
        return await asyncio.to_thread(self.kafka.unsettled, self.group, self.topic)


@pytest.fixture(autouse=True)
def patient_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pods wait for brokers that a busy machine lets stand still; the last test shortens what it is about."""
    _limit_calls(monkeypatch, LIMIT_S)
    _limit_leaving(monkeypatch, LIMIT_S)
    let_nats_stall(monkeypatch)


def _limit_calls(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
    for module in (kafka_server, kafka_group):
        monkeypatch.setattr(module, "CALL_TIMEOUT_S", limit_s)


def _limit_leaving(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
    for module in (kafka_broker, kafka_group):
        monkeypatch.setattr(module, "LEAVE_S", limit_s)


@pytest.fixture
def place(kafka: RunningKafka, nats: RunningNats) -> Place:
    return Place(kafka, nats)


def bodies(messages: list[StreamMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_what_is_settled_out_of_order_is_not_delivered_to_the_next_pod_and_deliveries_are_counted_on(
    place: Place,
) -> None:
    await place.publish(*(b"%d" % number for number in range(8)))
    async with place.opened() as first:
        messages = await taken(first, 5)
        assert [(each.body, each.delivery_count) for each in messages] == [(b"%d" % n, 1) for n in range(5)]
        for number in (1, 3, 4):
            await first.settle(messages[number])
        assert (await first.count_backlog()).pending == 3
    assert await place.unsettled() == (3, 2)

    async with place.opened() as second:
        again = await taken(second, 5)
        assert [(each.body, each.delivery_count) for each in again] == [
            *((b"%d" % number, 2) for number in (0, 2)),
            *((b"%d" % number, 1) for number in (5, 6, 7)),
        ]
        assert [each.sequence for each in again[:2]] == [messages[0].sequence, messages[2].sequence]
        for each in again:
            await second.settle(each)
        backlog = await second.count_backlog()
        assert (backlog.pending, backlog.unacknowledged, backlog.arrived) == (0, 0, 8)
        assert await second.fetch_messages(4) == []
    assert await place.unsettled() == (0, 0)


async def test_deliveries_to_pods_that_died_before_they_could_say_anything_are_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.publish(b"poison", b"good")
    for delivered in (1, 2, 3):
        dying = place.broker()
        await dying.open()
        messages = await taken(dying, 2)
        assert [(each.body, each.delivery_count) for each in messages] == [
            (b"poison", delivered),
            (b"good", delivered),
        ]
        # A kill leaves what was committed before; that the group is told saves the test its session timeout.
        session: Any = dying._session
        monkeypatch.setattr(session.group, "commit_offsets", _cannot)
        await dying.close()


async def _cannot() -> None:
    raise OSError("killed")


async def test_what_is_given_back_comes_again_after_its_pause_and_holds_nobody_up(place: Place) -> None:
    await place.publish(b"1", b"2", b"3")
    async with place.opened() as broker:
        first, second = await taken(broker, 2)
        started = asyncio.get_running_loop().time()
        await broker.give_back(first, 3.0)
        await broker.settle(second)
        passed_s = asyncio.get_running_loop().time() - started
        require_scenario(passed_s < 3.0, "the next message is asked for within the pause")
        assert bodies(await taken(broker, 1)) == [b"3"]
        (again,) = await taken(broker, 1)
        assert (again.body, again.delivery_count) == (b"1", 2)
        assert asyncio.get_running_loop().time() - started >= 3.0
        await broker.settle(again)


async def test_a_pod_reads_no_more_than_it_is_asked_to_and_keeps_its_share_while_it_is_full(
    kafka: RunningKafka, nats: RunningNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker, "IDLE_S", 4.0)
    monkeypatch.setattr(KafkaBroker, "hold_interval_s", 0.3)
    place = await asyncio.to_thread(Place, kafka, nats)
    await place.publish(*(b"%d" % number for number in range(100)))
    async with place.opened() as broker:
        messages = await taken(broker, 4)
        assert await place.unsettled() == (96, 4)
        clock = asyncio.get_running_loop().time
        for _ in range(27):
            held_at = clock()
            await broker.renew_hold(messages[0])
            await asyncio.sleep(0.3)  # the time itself is what is tried: twice what makes a pod idle
            require_scenario(clock() - held_at < kafka_broker.IDLE_S / 2, "holds are renewed in time")
        assert await asyncio.to_thread(kafka.members, place.group) == 1
        assert bodies(await taken(broker, 2)) == [b"4", b"5"]

        # And the other way round: one that neither reads nor holds leaves its partitions to others.
        await asyncio.to_thread(
            wait_until, lambda: kafka.members(place.group) == 0, what="it has left", timeout_s=30
        )


@pytest.mark.no_rerun("a doubled message")
async def test_a_second_pod_takes_over_half_and_nobody_does_what_the_other_has(
    kafka: RunningKafka, nats: RunningNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither is killed; one that stood still for longer would lose its partitions without a last commit.
    monkeypatch.setattr(kafka_broker, "SESSION_S", 30.0)
    monkeypatch.setattr(kafka_broker, "IDLE_S", LIMIT_S)
    place = await asyncio.to_thread(Place, kafka, nats, partitions=2)
    everything = [b"%d" % number for number in range(60)]
    await place.publish(*everything)
    done: list[bytes] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(place.opened())
        held = await taken(first, 20)
        while (
            len({message.handle.partition for message in held[10:]}) < 2
        ):  # else there is nothing to take over
            held += await taken(first, 1)
        for message in held[:10]:
            await first.settle(message)
            done.append(message.body)
        second = await stack.enter_async_context(place.opened())

        async def work(broker: KafkaBroker, mine: list[StreamMessage]) -> int:
            settled = 0
            while len(done) < len(everything):
                for message in mine:
                    if broker.is_ours(message):
                        await broker.settle(message)
                        done.append(message.body)
                        settled += 1
                mine = list(await broker.fetch_messages(3))
            return settled

        async def begun() -> list[StreamMessage]:
            """The second begins to fetch, and so joins; the first goes on only when it has something."""
            return list(await taken(second, 1))

        joining = asyncio.create_task(begun())
        async with ends_in_time("all is done"):
            while not joining.done():
                for message in await first.fetch_messages(1):
                    held.append(message)
            shares = await asyncio.gather(work(first, held[10:]), work(second, joining.result()))
        assert sorted(done) == sorted(everything)
        assert min(shares) > 0
        theirs = [message for message in held[10:] if not first.is_ours(message)]
        assert theirs, "some of what the first held went to the second"
    assert await place.unsettled() == (0, 0)


async def test_a_dead_letter_has_body_key_headers_and_reason_and_one_that_does_not_fit_is_refused(
    kafka: RunningKafka, nats: RunningNats
) -> None:
    options = {"max.message.bytes": "3000"}
    place = await asyncio.to_thread(Place, kafka, nats, **options)  # type: ignore[arg-type]
    sizes = {"both": 100, "body": 2_000, "none": 3_000}
    for name, size in sizes.items():
        headers = {"x": "y" * 1_500} if name != "none" else {"x": "y"}
        await place.publish(name.encode() + b" " * (size - len(name)), headers=headers)
    async with place.opened() as broker:
        messages = await taken(broker, 3)
        for message in messages[:2]:
            await broker.publish_dead_letter(message, WHY)
        with pytest.raises(
            BrokerError, match=r"takes no dead letter of 3000 bytes: .*raise its max.message.bytes"
        ) as no:
            await broker.publish_dead_letter(messages[2], WHY)
        assert no.value.refused
    dead = await asyncio.to_thread(kafka.records, place.dead)
    said = [{name: value.decode() for name, value in each.headers} for each in dead]
    assert [each.value for each in dead] == bodies(messages[:2])
    assert [("x" in each) for each in said] == [True, False]
    assert [(each["Tidegate-Reason"], each["Tidegate-Message"]) for each in said] == [
        ("Refused", "the model refuses it")
    ] * 2
    assert [(each["Tidegate-Partition"], each["Tidegate-Sequence"]) for each in said] == [
        ("0", "0"),
        ("0", "1"),
    ]


async def test_markers_of_transactions_are_no_work_and_aborted_messages_are_not_delivered(
    place: Place,
) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=place.kafka.server, transactional_id=place.topic
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait(place.topic, b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait(place.topic, b"aborted")
        await producer.abort_transaction()
    async with place.opened() as broker:
        (message,) = await taken(broker, 1)
        assert message.body == b"kept"
        await broker.settle(message)
        assert await broker.fetch_messages(4) == []
        async with ends_in_time("the markers are passed"):
            while (backlog := await broker.count_backlog()).pending:
                assert await broker.fetch_messages(4) == []
        assert backlog.unacknowledged == 0


async def test_what_expired_before_it_was_settled_is_no_work_and_holds_nothing_up(place: Place) -> None:
    await place.publish(b"1", b"2", b"3")
    async with place.opened() as first:
        await taken(first, 2)
    assert await place.unsettled() == (1, 2)
    await asyncio.to_thread(place.kafka.expire, place.topic, 3)
    async with place.opened() as second:
        assert await second.fetch_messages(1) == []
        async with ends_in_time("what expired is passed"):
            while (backlog := await second.count_backlog()).unacknowledged:
                assert await second.fetch_messages(1) == []
        assert backlog.pending == 0
    assert await place.unsettled() == (0, 0)


async def test_a_log_that_begins_again_below_what_was_committed_is_worked_off(place: Place) -> None:
    # Of a topic that was made anew since, or whose records an election has lost.
    offset, text = encode_progress(PartitionProgress(7, {5: 2}))
    await asyncio.to_thread(place.kafka.commit, place.group, place.topic, offset, text)
    await place.publish(b"1", b"2", b"3")
    async with place.opened() as broker:
        messages = await taken(broker, 3)
        assert [(each.body, each.delivery_count) for each in messages] == [(b"1", 1), (b"2", 1), (b"3", 1)]
        for message in messages:
            await broker.settle(message)
    assert await place.unsettled() == (0, 0)


@pytest.mark.slow("starts the broker again for one kind of loss among several")
async def test_a_partition_without_a_leader_ends_no_work_in_the_others(
    kafka: RunningKafka, nats: RunningNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = await asyncio.to_thread(Place, kafka, nats, partitions=4)
    await place.publish(*(b"%d" % number for number in range(12)))
    async with place.opened() as before:
        await taken(before, 1)  # of the other partitions nothing was ever committed
    monkeypatch.setattr(kafka_server, "CALL_TIMEOUT_S", 4.0)
    left = await asyncio.to_thread(kafka.lose_a_disk, place.topic)
    try:
        async with place.opened() as broker:
            messages = await taken(broker, 1)
            for _ in range(2):
                with pytest.raises(BrokerError, match="Failed to get offsets") as late:
                    await broker.count_backlog()
                assert not late.value.refused
                messages += await taken(broker, len(left))
            messages += await taken(broker, 3 * len(left) - len(messages))
        assert {each.handle.partition for each in messages} == left
        assert len(set(bodies(messages))) == 3 * len(left)
    finally:
        await asyncio.to_thread(kafka.repair)


async def test_what_producers_compress_is_read(place: Place) -> None:
    ways = ("gzip", "snappy", "lz4", "zstd")
    for way in ways:
        await place.publish(way.encode() * 200, compression_type=way)
    async with place.opened() as broker:
        assert bodies(await taken(broker, 4)) == [way.encode() * 200 for way in ways]


async def test_what_is_wrong_with_the_spec_is_said_with_the_way_out(place: Place) -> None:
    authority = place.kafka.authority.certificate.read_text()
    safe: dict[str, Any] = {"servers": (place.kafka.safe_server,), "tls": True}
    password: dict[str, Any] = {**safe, "sasl": SaslMechanism.SCRAM_SHA_512}
    for changes, said in (
        ({"topic": "nowhere"}, "there is no topic nowhere.*kafka-topics.sh --create --topic nowhere"),
        ({"loopback": False}, "is a loopback address|resolves to 127"),
        (safe | {"secret_": {}}, "TLS failed: .*put the authority's certificate into ca.crt"),
        (password | {"secret_": {"ca.crt": authority}}, "has no kafka-password and no kafka-username"),
        (
            password | {"secret_": {"ca.crt": authority, "kafka-username": USER, "kafka-password": "no"}},
            "does not accept the credentials in Secret reader",
        ),
    ):
        given = dict(changes)
        secret = given.pop("secret_", None)
        broker = place.broker(secret=secret, **given)
        with pytest.raises(BrokerError, match=said) as refused:
            await broker.open()
        await broker.close()
        assert refused.value.refused, said
        assert PASSWORD not in refused.value.message

    nobody = place.broker(servers=(f"{place.kafka.host}:9",))
    with pytest.raises(BrokerError, match="cannot be reached") as away:
        await nobody.open()
    await nobody.close()
    assert not away.value.refused


async def test_a_password_and_tls_let_in_and_the_work_is_done_over_them(place: Place) -> None:
    secret = {
        "ca.crt": place.kafka.authority.certificate.read_text(),
        "kafka-username": USER,
        "kafka-password": PASSWORD,
    }
    await place.publish(b"1")
    async with place.opened(
        servers=(place.kafka.safe_server,), tls=True, sasl=SaslMechanism.SCRAM_SHA_512, secret=secret
    ) as broker:
        (message,) = await taken(broker, 1)
        assert await broker.keep_result("one", b"{}")
        assert not await broker.keep_result("one", b"{}")
        await broker.settle(message)
    assert await place.unsettled() == (0, 0)


async def test_a_cluster_that_goes_is_missed_and_one_that_comes_back_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_broker, "SESSION_S", 4.0)  # nobody could say that the first member left
    await place.publish(b"1", b"2", b"3")
    broker = place.broker()
    try:
        await broker.open()
        first, _ = await taken(broker, 2)
        await broker.settle(first)
        await broker.count_backlog()

        _limit_calls(monkeypatch, 1.0)
        _limit_leaving(monkeypatch, 1.0)
        await asyncio.to_thread(place.kafka.kill)
        with pytest.raises(BrokerError) as missed:
            await broker.count_backlog()
        assert not missed.value.refused
        assert place.kafka.server in missed.value.message
        with pytest.raises(BrokerError):
            await broker.fetch_messages(1)
        with pytest.raises(BrokerError, match="cannot be reached"):
            await broker.open()

        _limit_calls(monkeypatch, LIMIT_S)
        await asyncio.to_thread(place.kafka.start)
        await broker.open()
        again = await taken(broker, 2)
        assert [(each.body, each.delivery_count) for each in again] == [(b"2", 2), (b"3", 1)]
    finally:
        await broker.close()
