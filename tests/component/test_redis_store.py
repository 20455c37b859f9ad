"""The events of a plan in a real Redis: the same features as from a pod's own store, whatever ends in between."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from builders.certificates import Authority
from builders.events import DAY, MINUTE, Click, a_click_plan, clicks
from builders.waiting import LONGEST_S, wait_until
from fixtures.redis import RunningRedis, a_redis
from tidegate_dataplane.contract import AS_OF, EventStreamReport, FeaturePlan, RedisStore
from tidegate_dataplane.event_store.redis_client import (
    CA,
    CERTIFICATE,
    MAX_REPLY_BYTES,
    PASSWORD,
    PRIVATE_KEY,
    USERNAME,
    Command,
    RedisAccess,
    RedisClient,
    Reply,
)
from tidegate_dataplane.event_store.report import IngesterReport
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.event_store.writer import (
    EventWriter,
    OtherWriterError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
)
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.events import EventReader, EventSource
from tidegate_dataplane.features.redis_events import (
    CACHE_S,
    CACHED,
    DEFAULT,
    ENTRY_BYTES,
    LAST_KNOWN,
    READ,
    RETRY_S,
    RedisEventReader,
)
from tidegate_dataplane.features.stored_events import open_stored_events
from tidegate_localcluster.ports import find_unused_port

NOW = 1_790_000_000_000
PATIENT_MS = int(LONGEST_S * 1_000)
ONE = Click(1, NOW - MINUTE, 11, 1, 1.5, "home")
TWO = Click(1, NOW - 1_000, 12, 0, 2.5, "cart")


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRedis]:
    """A server for tests that leave it as it is."""
    with a_redis(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture
def server(shared_server: RunningRedis) -> Iterator[RunningRedis]:
    """The server, empty."""
    shared_server.ask("FLUSHALL")
    yield shared_server
    shared_server.close_opened()


def put(store: EventWriter, events: Sequence[Click], position: int, before: StreamState) -> StreamState:
    """Store events, after which the next position is `position`."""
    rows: dict[bytes, list[bytes]] = {}
    for event in events:
        rows.setdefault(event.key, []).append(event.row)
    after = StreamState(positions={"0": position}, stored=before.stored + len(events))
    store.store_events("clicks", rows, before=before, after=after, now_ms=NOW)
    return after


def compute(
    plan: FeaturePlan, source: EventReader | dict[str, EventSource], users: Sequence[int], as_of: int = NOW
) -> dict[str, NDArray[Any]]:
    return FeatureEngine(plan, {}, source).compute_features(
        {
            "user_id": np.array(users, dtype=np.int64),
            "position": np.arange(len(users)),
            AS_OF: np.full(len(users), as_of),
        }
    )


events_of_keys = st.lists(
    st.builds(
        Click,
        user=st.integers(0, 3),
        ts=st.integers(NOW - 8 * DAY, NOW + 30_000),
        item=st.integers(0, 9),
        click=st.integers(0, 1),
        price=st.floats(-1e6, 1e6),
        page=st.sampled_from(["home", "ä", "cart"]),
    ),
    max_size=60,
)


class TestTheStore:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(portions=st.lists(events_of_keys, max_size=4), limit=st.integers(1, 8))
    def test_features_are_bit_by_bit_those_of_a_pods_own_store(
        self,
        server: RunningRedis,
        tmp_path_factory: pytest.TempPathFactory,
        portions: Sequence[Sequence[Click]],
        limit: int,
    ) -> None:
        server.ask("FLUSHALL")
        plan = server.plan(a_click_plan(clicks(max_events=limit)))
        folder = tmp_path_factory.mktemp("store")
        own, shared = EventStore(folder, plan.streams, max_bytes=1 << 24), server.open_store(plan)
        states = [StreamState(), shared.read_state("clicks")]
        for number, portion in enumerate(portions, 1):
            states = [put(own, portion, number, states[0]), put(shared, portion, number, states[1])]
        users = list(range(5))
        keys = [Click(user, 0, 0, 0, 0, "").key for user in users]

        assert shared.read_rows("clicks", keys) == own.read_rows("clicks", keys)
        own.close_file()
        expected = compute(plan, open_stored_events(plan, folder), users)
        found = compute(plan, server.open_reader(plan), users)
        for name, values in expected.items():
            assert found[name].tobytes() == values.tobytes(), name
        server.close_opened()

    def test_of_two_writers_only_the_one_that_has_read_the_last_write_can_write(
        self, server: RunningRedis
    ) -> None:
        plan = server.plan(a_click_plan())
        first, second = server.open_store(plan), server.open_store(plan)
        start = first.read_state("clicks")
        assert second.read_state("clicks") == start == StreamState()

        written = put(first, [ONE], 1, start)
        with pytest.raises(OtherWriterError, match="clicks"):
            put(second, [ONE], 1, start)
        assert second.read_state("clicks") == written
        put(second, [TWO], 2, written)
        with pytest.raises(OtherWriterError):
            put(first, [TWO], 2, written)

        assert first.read_rows("clicks", [ONE.key]) == [ONE.row + TWO.row]

    def test_a_write_while_another_one_is_prepared_makes_that_one_store_nothing(
        self, server: RunningRedis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = server.plan(a_click_plan())
        first, second = server.open_store(plan), server.open_store(plan)
        start = first.read_state("clicks")
        second.read_state("clicks")
        exchange = RedisClient.call_server
        written: list[StreamState] = []

        def write_in_between(
            client: RedisClient, commands: Sequence[Command], timeout_s: float
        ) -> list[Reply]:
            if commands[0][0] == b"EVAL" and not written:
                written.append(StreamState())
                written.append(put(second, [TWO], 7, start))
            return exchange(client, commands, timeout_s)

        monkeypatch.setattr(RedisClient, "call_server", write_in_between)
        with pytest.raises(OtherWriterError):
            put(first, [ONE], 1, start)

        assert first.read_state("clicks") == written[-1]
        assert first.read_rows("clicks", [ONE.key]) == [TWO.row]

    def test_a_writer_that_writes_without_having_read_is_refused(self, server: RunningRedis) -> None:
        store = server.open_store(server.plan(a_click_plan()))

        with pytest.raises(OtherWriterError):
            put(store, [ONE], 1, StreamState())

    def test_a_stream_that_began_anew_has_no_events_of_before(self, server: RunningRedis) -> None:
        store = server.open_store(server.plan(a_click_plan()))
        put(store, [ONE], 1, store.read_state("clicks"))
        anew = StreamState(origin="another")

        store.remove_events("clicks", anew)

        assert store.read_rows("clicks", [ONE.key]) == [b""]
        assert store.read_state("clicks") == anew
        put(store, [TWO], 1, anew)
        assert store.read_rows("clicks", [ONE.key]) == [TWO.row]

    def test_everything_expires(self, server: RunningRedis) -> None:
        plan = server.plan(a_click_plan(clicks(ttl_ms=MINUTE, lateness_ms=0)))
        store = server.open_store(plan)
        put(store, [TWO], 1, store.read_state("clicks"))
        store.publish_report(IngesterReport(at_s=time.time(), boot_id=""))

        lives = {name: server.ask("PTTL", name) for name in server.list_keys()}

        assert len(lives) == 4
        assert all(isinstance(life, int) and 0 < life <= MINUTE + DAY for life in lives.values())
        (event_life,) = (life for name, life in lives.items() if b"/events/" in name)
        assert isinstance(event_life, int)
        assert MINUTE < event_life <= MINUTE + 2 * MINUTE

    def test_a_report_is_read_by_others_and_a_damaged_one_is_none(self, server: RunningRedis) -> None:
        plan = server.plan(a_click_plan())
        store, other = server.open_store(plan), server.open_store(plan)
        report = EventStreamReport(source="clicks", caught_up=True, lag_s=0.5)
        assert other.read_published() == ()

        store.publish_report(IngesterReport(at_s=time.time(), boot_id="", streams=(report,)))

        assert other.read_published() == (report,)
        (name,) = (key for key in server.list_keys() if key.endswith(b"/report"))
        server.ask("SET", name, "{")
        assert other.read_published() == ()

    def test_a_damaged_state_is_refused_until_the_key_that_is_named_is_deleted(
        self, server: RunningRedis
    ) -> None:
        store = server.open_store(server.plan(a_click_plan()))
        put(store, [ONE], 1, store.read_state("clicks"))
        (name,) = (key for key in server.list_keys() if key.endswith(b"/state"))
        server.ask("SET", name, '{"positions": 3}')

        with pytest.raises(
            StoreRefusedError, match="state of stream 'clicks' is damaged: delete the key"
        ) as refused:
            store.read_state("clicks")
        (head,) = re.findall(r"delete the key (\S+),", str(refused.value))
        server.ask("DEL", head)

        assert store.read_state("clicks") == StreamState()
        put(store, [ONE], 1, StreamState())
        assert store.read_rows("clicks", [ONE.key]) == [ONE.row]

    def test_a_plan_with_another_time_limit_has_the_same_keys(self, server: RunningRedis) -> None:
        plan, other = server.plan(a_click_plan()), server.plan(a_click_plan(), timeout_ms=2_000)
        store = server.open_store(plan)
        state = put(store, [ONE], 1, store.read_state("clicks"))

        assert server.open_store(other).read_state("clicks") == state
        assert server.open_store(other).read_rows("clicks", [ONE.key]) == [ONE.row]

    def test_another_plan_has_other_keys(self, server: RunningRedis) -> None:
        plan, other = server.plan(a_click_plan()), server.plan(a_click_plan(clicks(max_events=5)))
        store = server.open_store(plan)
        put(store, [ONE], 1, store.read_state("clicks"))

        assert server.open_store(other).read_rows("clicks", [ONE.key]) == [b""]


class TestARedisThatFails:
    def test_killed_and_started_again_it_has_all_or_none_of_each_write(self, tmp_path: Path) -> None:
        with a_redis(tmp_path / "redis") as server:
            plan = server.plan(a_click_plan(clicks(max_events=4096)))
            store = server.open_store(plan)
            state = store.read_state("clicks")
            events = [
                Click(user, NOW - number, number, 1, 1.0, "home") for number in range(200) for user in (1, 2)
            ]
            number, kills = 0, {120, 260}
            while number < len(events):
                try:
                    state = put(store, events[number : number + 2], number + 2, state)
                except StoreError:
                    state = store.read_state("clicks")
                number = state.positions.get("0", 0)
                if number in kills:
                    kills.remove(number)
                    server.kill()
                    with pytest.raises(StoreError, match="cannot be reached"):
                        store.read_state("clicks")
                    server.start()

            assert not kills
            rows = store.read_rows("clicks", [events[0].key, events[1].key])
            assert [len(found) for found in rows] == [200 * len(ONE.row)] * 2
            assert store.read_state("clicks").stored == len(events)

    def test_after_a_loss_of_its_last_writes_it_goes_on_from_an_older_state(self, tmp_path: Path) -> None:
        with a_redis(tmp_path / "redis") as server:
            plan = server.plan(a_click_plan())
            store = server.open_store(plan)
            first = put(store, [ONE], 1, store.read_state("clicks"))
            saved = server.save_keys()
            second = put(store, [TWO], 2, first)
            store.confirm_state("clicks")
            server.restore_keys(saved)

            with pytest.raises(OtherWriterError, match="its last write is lost"):
                store.confirm_state("clicks")
            with pytest.raises(OtherWriterError):
                put(store, [Click(1, NOW, 13, 1, 1.0, "home")], 3, second)

            assert store.read_state("clicks") == first
            put(store, [TWO], 2, first)
            assert store.read_rows("clicks", [ONE.key]) == [ONE.row + TWO.row]

    def test_a_full_one_stores_nothing_of_a_write(self, tmp_path: Path) -> None:
        with a_redis(tmp_path / "redis") as server:
            store = server.open_store(server.plan(a_click_plan()))
            state = put(store, [ONE], 1, store.read_state("clicks"))
            server.ask("CONFIG", "SET", "maxmemory", "1")

            with pytest.raises(StoreFullError, match="raise its maxmemory, or lower ttl or maxEvents"):
                put(store, [TWO], 2, state)

            assert store.read_state("clicks") == state
            assert store.read_rows("clicks", [ONE.key]) == [ONE.row]
            server.ask("CONFIG", "SET", "maxmemory", "0")
            put(store, [TWO], 2, state)
            assert store.read_rows("clicks", [ONE.key]) == [ONE.row + TWO.row]

    def test_one_that_evicts_is_refused(self, tmp_path: Path) -> None:
        with a_redis(tmp_path / "redis", "--maxmemory-policy", "allkeys-lru") as server:
            store = server.open_store(server.plan(a_click_plan()))

            with pytest.raises(StoreRefusedError, match=r"maxmemory-policy allkeys-lru.*set noeviction"):
                store.read_state("clicks")

    def test_a_read_only_replica_is_read_and_refuses_writes(self, tmp_path: Path) -> None:
        with a_redis(tmp_path / "first") as first, a_redis(tmp_path / "second") as second:
            plan = first.plan(a_click_plan())
            state = put(store := first.open_store(plan), [ONE], 1, store.read_state("clicks"))
            second.ask("REPLICAOF", *first.address.split(":"))
            replica = second.open_store(plan.model_copy(update={"store": second.order()}))
            wait_until(
                lambda: replica.read_rows("clicks", [ONE.key]) == [ONE.row], what="the replica has the event"
            )
            assert replica.read_state("clicks") == state

            with pytest.raises(StoreRefusedError, match="READONLY"):
                put(replica, [TWO], 2, state)


class TestTheClient:
    def test_a_password_and_a_user_are_needed_where_redis_asks_for_them(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.mkdir()
        with a_redis(tmp_path / "redis") as server:
            server.ask("ACL", "SETUSER", "features", "on", ">wordy-password", "~*", "+@all")
            server.ask("CONFIG", "SET", "requirepass", "another")
            order = server.order(secret="ads-redis")

            with pytest.raises(StoreRefusedError, match="NOAUTH"):
                ping(server.access())
            with pytest.raises(
                StoreRefusedError, match=f"Secret ads-redis .* has neither {PASSWORD} nor {CA}"
            ):
                ping(server.access(order, secret))
            (secret / PASSWORD).write_text("wordy-password\n")
            with pytest.raises(StoreRefusedError, match="WRONGPASS") as refused:
                ping(server.access(order, secret))
            assert "wordy-password" not in str(refused.value)
            (secret / USERNAME).write_text("features\n")

            assert ping(server.access(order, secret)) == [b"PONG"]

    def test_tls_needs_the_authority_and_the_clients_certificate(self, tmp_path: Path) -> None:
        authority, port = Authority.make(tmp_path / "authority"), find_unused_port("127.0.0.1")
        folder = authority.issue_into(tmp_path / "issued", "localhost")
        files = {
            CA: authority.certificate,
            CERTIFICATE: folder / CERTIFICATE,
            PRIVATE_KEY: folder / PRIVATE_KEY,
        }
        options = ("--tls-ca-cert-file", files[CA], "--tls-cert-file", files[CERTIFICATE])
        secret = tmp_path / "secret"
        secret.mkdir()
        with a_redis(
            tmp_path / "redis",
            *("--tls-port", str(port)),
            *map(str, (*options, "--tls-key-file", files[PRIVATE_KEY])),
        ) as server:
            order = server.order(address=f"localhost:{port}", tls=True, secret="ads-redis")
            with pytest.raises(StoreError, match="certificate verify failed"):
                ping(server.access(order.model_copy(update={"secret": ""}), secret))
            (secret / CA).write_bytes(files[CA].read_bytes())
            with pytest.raises(StoreError, match="cannot be reached"):
                ping(server.access(order, secret))
            for name in (CERTIFICATE, PRIVATE_KEY):
                (secret / name).write_bytes(files[name].read_bytes())

            assert ping(server.access(order, secret)) == [b"PONG"]

    def test_loopback_is_refused_unless_allowed(self, server: RunningRedis) -> None:
        access = RedisAccess(server.order(), server.folder)

        with pytest.raises(StoreRefusedError, match="a loopback address: connections to it are not allowed"):
            ping(access)

    def test_what_does_not_speak_the_protocol_is_an_error(self) -> None:
        with (
            answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as access,
            pytest.raises(StoreError, match="does not speak the protocol of Redis"),
        ):
            ping(access)

    def test_replies_that_never_end_are_an_error(self) -> None:
        with (
            answering(b"$%d\r\n" % (MAX_REPLY_BYTES + 1) + bytes(1 << 20), repeat=True) as access,
            pytest.raises(StoreError, match="its replies have more than"),
        ):
            ping(access, 30)

    def test_the_time_limit_holds_for_all_of_a_reply(self) -> None:
        with (
            answering(b"+", repeat=True, pause_s=0.02) as access,
            pytest.raises(StoreError, match=r"no answer within 0\.3 s"),
        ):
            ping(access, 0.3)

    def test_connecting_may_take_longer_than_a_request_waits(self, tmp_path: Path) -> None:
        (tmp_path / PASSWORD).write_text("wordy-password")
        greets = threading.Event()
        with replying([b"+OK\r\n", b"+PONG\r\n"], greets) as found:
            client = RedisClient(
                replace(found, order=found.order.model_copy(update={"secret": "s"}), secret_dir=tmp_path)
            )
            client.start_connecting()
            with pytest.raises(StoreError, match=r"no answer within 0\.05 s"):
                client.call_server([(b"PING",)], 0.05)
            greets.set()
            # The server knows one connection: the one that was begun is used.
            assert client.call_server([(b"PING",)], LONGEST_S) == [b"PONG"]
            client.close_connection()

    def test_an_address_that_hangs_does_not_take_the_time_of_the_next_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidegate_dataplane.event_store.redis_client.CONNECT_S", 2.0)
        with replying([b"+PONG\r\n"]) as found, ExitStack() as others:
            port = int(found.order.address.split(":")[1])
            # Its queue is full, so that it does not answer those that connect.
            others.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
            for _ in range(3):
                waiting = others.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.2", port))
            addresses = [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]

            def list_addresses(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, str]]:
                return addresses

            monkeypatch.setattr("tidegate_dataplane.event_store.redis_client._list_addresses", list_addresses)

            assert ping(found, LONGEST_S) == [b"PONG"]

    @pytest.mark.parametrize("reply", [b"*-1\r\n", b"*0\r\n", b"+OK\r\n", b"*1\r\n$-1\r\n"])
    def test_an_answer_that_is_no_list_of_all_values_counts_as_none(self, reply: bytes) -> None:
        with replying([reply]) as found:
            plan = a_click_plan().model_copy(update={"store": found.order})
            reader = RedisEventReader(plan, found)

            read = reader.read_streams({"clicks": np.array([1])})

            assert read["clicks"].event_counts.tolist() == [0]
            assert reader.not_current == ("clicks",)
            assert "did not return 2 values" in reader.last_error
            reader.close_connection()


@contextmanager
def replying(replies: Sequence[bytes], begins: threading.Event | None = None) -> Iterator[RedisAccess]:
    """A server that answers each command of its first connection, once `begins` is set."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                for reply in replies:
                    connection.recv(1000)
                    if begins is not None:
                        begins.wait()
                    connection.sendall(reply)
                connection.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        order = RedisStore(
            address=f"127.0.0.1:{listener.getsockname()[1]}", key_prefix="p", timeout_ms=PATIENT_MS
        )
        yield RedisAccess(order, Path("/nowhere"), allow_loopback=True)
        thread.join(10)


def ping(access: RedisAccess, timeout_s: float = 5) -> list[Reply]:
    """Ask over a connection of its own."""
    client = RedisClient(access)
    try:
        return client.call_server([(b"PING",)], timeout_s)
    finally:
        client.close_connection()


@contextmanager
def answering(content: bytes, *, repeat: bool = False, pause_s: float = 0.0) -> Iterator[RedisAccess]:
    """A server that answers whatever it is asked with `content`, once or until the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(100)
                connection.sendall(content)
                while repeat:
                    time.sleep(pause_s)
                    connection.sendall(content)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        order = RedisStore(address=f"127.0.0.1:{listener.getsockname()[1]}", key_prefix="p", timeout_ms=50)
        yield RedisAccess(order, Path("/nowhere"), allow_loopback=True)
        thread.join(10)


class TestReads:
    """Of requests: what is current, and what they get while Redis does not answer."""

    @pytest.fixture
    def clock(self) -> list[float]:
        """The time, which tests set."""
        return [1_000.0]

    @pytest.fixture
    def own_server(self, tmp_path: Path) -> Iterator[RunningRedis]:
        """A server of the test's own, to be stopped."""
        with a_redis(tmp_path / "redis", "--appendfsync", "always") as found:
            yield found

    def open_reader(self, server: RunningRedis, clock: list[float], **options: Any) -> RedisEventReader:
        return server.open_reader(server.plan(a_click_plan(), **options), lambda: clock[0])

    def count_events(self, reader: RedisEventReader, *users: int) -> list[int]:
        read = reader.read_streams({"clicks": np.array(users, dtype=np.int64)})
        return [int(count) for count in read["clicks"].event_counts]

    def test_one_round_trip_reads_all_streams_and_keys(
        self, own_server: RunningRedis, clock: list[float]
    ) -> None:
        plan = a_click_plan()
        two = plan.model_copy(update={"streams": (clicks(), clicks(name="views"))})
        stored = own_server.plan(two)
        reader = own_server.open_reader(stored, lambda: clock[0])
        keys = np.arange(64)
        reader.read_streams({"clicks": keys, "views": keys})
        clock[0] += 1
        before = count_commands(own_server)

        reader.read_streams({"clicks": keys, "views": keys})

        assert count_commands(own_server) - before == {"mget": 2}
        assert reader.key_counts[READ] == 256

    def test_an_event_is_seen_once_what_was_read_is_no_longer_taken_for_current(
        self, own_server: RunningRedis, clock: list[float]
    ) -> None:
        reader = self.open_reader(own_server, clock)
        store = own_server.open_store(own_server.plan(a_click_plan()))
        assert self.count_events(reader, 1, 2) == [0, 0]
        put(store, [ONE], 1, store.read_state("clicks"))

        clock[0] += CACHE_S - 0.001
        assert self.count_events(reader, 1, 2) == [0, 0]
        clock[0] += 0.002
        assert self.count_events(reader, 1, 2) == [1, 0]

        assert reader.key_counts == {READ: 4, CACHED: 2, LAST_KNOWN: 0, DEFAULT: 0}

    @pytest.mark.parametrize(
        ("failure", "timeout_ms", "said"),
        [("away", PATIENT_MS, "cannot be reached"), ("slow", 2_000, "no answer within 2 s")],
        ids=["away", "slow"],
    )
    def test_without_an_answer_the_last_known_events_count_and_the_answer_is_marked(
        self, own_server: RunningRedis, clock: list[float], failure: str, timeout_ms: int, said: str
    ) -> None:
        reader = self.open_reader(own_server, clock, timeout_ms=timeout_ms)
        store = own_server.open_store(own_server.plan(a_click_plan()))
        state = put(store, [ONE], 1, store.read_state("clicks"))
        assert self.count_events(reader, 1) == [1]
        assert not reader.not_current
        put(store, [TWO], 2, state)
        clock[0] += 10

        with own_server.killed() if failure == "away" else own_server.stopped():
            started_s = time.monotonic()
            assert self.count_events(reader, 1, 2) == [1, 0]
            assert time.monotonic() - started_s < LONGEST_S / 2
            assert said in reader.last_error
            assert reader.not_current == ("clicks",)
            assert (reader.failures, reader.key_counts[LAST_KNOWN], reader.key_counts[DEFAULT]) == (1, 1, 1)
            # The next one does not wait at all.
            assert self.count_events(reader, 1) == [1]
            assert reader.failures == 1
            assert reader.not_current == ("clicks",)

        clock[0] += RETRY_S + 0.001
        wait_until(lambda: own_server.ask("PING") == b"PONG", what="Redis answers again")
        assert self.count_events(reader, 1, 2) == [2, 0]
        assert not reader.not_current

    def test_a_connection_that_the_server_has_closed_costs_no_answer(
        self, own_server: RunningRedis, clock: list[float]
    ) -> None:
        reader = self.open_reader(own_server, clock)
        store = own_server.open_store(own_server.plan(a_click_plan()))
        put(store, [ONE], 1, store.read_state("clicks"))
        assert self.count_events(reader, 1) == [1]
        own_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        clock[0] += 1

        assert self.count_events(reader, 1, 2) == [1, 0]
        assert not reader.not_current
        assert reader.failures == 0

    def test_a_redis_that_was_never_there_gives_defaults(self, clock: list[float]) -> None:
        order = RedisStore(
            address=f"127.0.0.1:{find_unused_port('127.0.0.1')}", key_prefix="p", timeout_ms=PATIENT_MS
        )
        plan = a_click_plan().model_copy(update={"store": order})
        reader = RedisEventReader(plan, RedisAccess(order, Path("/nowhere"), allow_loopback=True))

        found = compute(plan, reader, [1])

        assert found["items"].tolist() == [[-1] * 5]
        assert reader.not_current == ("clicks",)
        assert "cannot be reached" in reader.last_error
        reader.close_connection()

    def test_the_cache_is_bounded_in_bytes(
        self, server: RunningRedis, clock: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidegate_dataplane.features.redis_events.MAX_CACHED_BYTES", 7 * ENTRY_BYTES)
        # One of two processes, which have the bytes together.
        reader = server.open_reader(server.plan(a_click_plan()), lambda: clock[0], instances=2)

        self.count_events(reader, *range(10))
        self.count_events(reader, 7, 8, 9)
        assert reader.key_counts[CACHED] == 3
        self.count_events(reader, 0)

        assert reader.key_counts == {READ: 11, CACHED: 3, LAST_KNOWN: 0, DEFAULT: 0}


def count_commands(server: RunningRedis) -> Counter[str]:
    """How often clients sent each command that reads."""
    stats = server.ask("INFO", "commandstats")
    assert isinstance(stats, bytes)
    calls = re.findall(r"cmdstat_(mget|get|eval):calls=(\d+)", stats.decode())
    return Counter({name: int(count) for name, count in calls})
