"""Features over events: the engine against plain Python, over files and over a pod's store."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.events import (
    APPROXIMATE,
    DAY,
    HOUR,
    MINUTE,
    USER,
    Click,
    a_click_plan,
    clicks,
    compute_plainly,
    of_clicks,
    of_feature,
    of_request,
    recorded,
    to_columns,
    window,
)
from builders.features import compute_parquet, write_table
from tidegate_dataplane.contract import (
    AS_OF,
    Aggregate,
    EventFilter,
    EventSequence,
    EventStream,
    FeaturePlan,
    Hash,
    Log,
    Lookup,
    LookupType,
    RequestField,
    RequestFieldType,
    Window,
)
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.event_store.writer import OtherWriterError, StoreFullError
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.event_file import read_events
from tidegate_dataplane.features.events import Array, EventSource
from tidegate_dataplane.features.stored_events import StoredEvents

NOW = 1_700_000_000_000
EVENTS = st.builds(
    Click,
    user=st.integers(0, 3),
    ts=st.integers(NOW - 2 * DAY, NOW + MINUTE) | st.integers(NOW - 2, NOW + 2),
    item=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    click=st.integers(0, 1),
    price=st.floats(-1e6, 1e6, width=32) | st.just(-0.0),
    page=st.sampled_from(["", "home", "search", "ä"]),
)
ROWS = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(NOW - 2 * DAY, NOW + MINUTE) | st.integers(NOW - 2, NOW + 2)),
    min_size=1,
    max_size=12,
)


def answers(
    plan: FeaturePlan, source: EventSource, users: Sequence[int], times: Sequence[int]
) -> dict[str, Array]:
    return FeatureEngine(plan, {}, {"clicks": source}).compute_features(
        {
            "user_id": np.array(users, dtype=np.int64),
            "position": np.arange(len(users), dtype=np.int64)[:, None],
            AS_OF: np.array(times, dtype=np.int64)[:, None],
        }
    )


@settings(max_examples=150)
@given(st.lists(EVENTS, max_size=60), ROWS, st.sampled_from([2, 64]))
def test_every_feature_is_what_plain_python_computes(
    events: list[Click], rows: list[tuple[int, int]], most: int
) -> None:
    stream = clicks(max_events=most, ttl_ms=30 * HOUR)
    found = answers(a_click_plan(stream), recorded(events, stream), *zip(*rows, strict=True))

    for index, (user, as_of) in enumerate(rows):
        for name, expected in compute_plainly(events, user, as_of, stream).items():
            got = found[name][index]
            if name in APPROXIMATE:
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-2, err_msg=name)
            else:
                assert got.tolist() == [np.asarray(value).item() for value in expected], name


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=80), ROWS, st.randoms(use_true_random=False))
def test_a_store_answers_bit_by_bit_like_a_file_in_whatever_order_events_came(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[Click],
    rows: list[tuple[int, int]],
    order: random.Random,
) -> None:
    plan, stream = a_click_plan(), clicks()
    shuffled = events.copy()
    order.shuffle(shuffled)
    users, times = zip(*rows, strict=True)

    store = EventStore(tmp_path_factory.mktemp("events"), [stream], max_bytes=1 << 24)
    try:
        fill_in_portions(store, stream, shuffled, order)
        online = answers(plan, StoredEvents(store, stream, USER.type), users, times)
    finally:
        store.close_file()
    offline = answers(plan, recorded(events, stream), users, times)

    for name, values in offline.items():
        assert values.tobytes() == online[name].tobytes(), name
        assert values.dtype == online[name].dtype, name


def fill_in_portions(
    store: EventStore, stream: EventStream, events: Sequence[Click], order: random.Random
) -> None:
    state, rest = StreamState(), list(events)
    while rest:
        size = order.randint(1, 20)
        portion, rest = rest[:size], rest[size:]
        by_key: dict[bytes, list[bytes]] = {}
        for event in portion:
            by_key.setdefault(event.key, []).append(event.row)
        after = StreamState(positions={"0": state.positions.get("0", 0) + len(portion)})
        store.store_events(stream.name, by_key, before=state, after=after, now_ms=NOW + DAY)
        state = after


def test_rows_of_one_user_see_the_same_events_as_each_alone() -> None:
    events = [Click(7, NOW - number * MINUTE, number, number % 2, 1.5, "home") for number in range(100)]
    plan = a_click_plan()

    together = answers(plan, recorded(events), [7, 7, 8, 7], [NOW] * 4)

    for row, user in enumerate([7, 7, 8, 7]):
        alone = FeatureEngine(plan, {}, {"clicks": recorded(events)}).compute_features(
            {"user_id": np.array([user]), "position": np.array([row]), AS_OF: np.array([NOW])}
        )
        for name, values in alone.items():
            np.testing.assert_array_equal(together[name][row], values[0], err_msg=name)


def test_an_event_of_the_future_changes_nothing() -> None:
    events = [Click(7, NOW - number * MINUTE, number, 1, 1.5, "home") for number in range(20)]
    plan = a_click_plan()

    before = answers(plan, recorded(events), [7], [NOW])
    after = answers(plan, recorded([*events, Click(7, NOW + 1, 99, 1, 9.5, "home")]), [7], [NOW])

    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name], err_msg=name)
    assert answers(plan, recorded(events), [7], [NOW - 1])["last_item"].tolist() == [[1]]


def test_a_file_gives_each_row_the_features_of_its_time(tmp_path: Path) -> None:
    events = [
        Click(user, NOW - number * MINUTE, number, 1, 0.5, "home") for user in (1, 2) for number in range(9)
    ]
    columns = to_columns(events)
    pages = [page.decode() for page in columns["page"].tolist()]
    path = write_table(
        tmp_path / "events.parquet", **{**{n: v.tolist() for n, v in columns.items()}, "page": pages}
    )
    users, times = [1, 2, 3, 1], [NOW, NOW - 5 * MINUTE, NOW, NOW - DAY]
    labels = write_table(
        tmp_path / "labels.parquet", user_id=users, position=[0, 1, 2, 3], shown_at=times, label=[1, 0, 0, 1]
    )

    count = compute_parquet(
        a_click_plan(),
        {},
        labels,
        tmp_path / "out.parquet",
        events={"clicks": path},
        time_column="shown_at",
    )

    import pyarrow.parquet as pq

    written = pq.read_table(tmp_path / "out.parquet")
    expected = answers(a_click_plan(), recorded(events), users, times)
    assert count == 4
    assert written.column("label").to_pylist() == [1, 0, 0, 1]
    for name, values in expected.items():
        column = np.array(written.column(name).to_pylist(), dtype=values.dtype).reshape(values.shape)
        np.testing.assert_array_equal(column, values, err_msg=name)


def test_whole_numbers_stay_exact(tmp_path: Path) -> None:
    large = 123_456_789_012_345_678
    events = [Click(7, NOW - number, 2**62, 1, 1.0, "home") for number in range(3)]
    features = (
        Window(name="last", window=window("item_id", Aggregate.LAST, DAY), default=str(large)),
        Window(name="mean", window=window("item_id", Aggregate.MEAN, DAY)),
        EventSequence(name="items", field=of_clicks("item_id"), last=1, pad=str(large)),
    )

    found = answers(a_click_plan(features=features), recorded(events), [7, 8], [NOW, NOW])

    assert found["last"].tolist() == [[2**62], [large]]
    assert found["items"].tolist() == [[2**62], [large]]
    assert found["mean"].tolist() == [[float(2**62)], [0.0]]


class TestTheStore:
    def test_an_older_state_is_not_written_over_a_newer_one(self, tmp_path: Path) -> None:
        stream, click = clicks(), Click(1, NOW, 1, 1, 1.0, "home")
        store = EventStore(tmp_path, [stream], max_bytes=1 << 24)
        first, second = StreamState(positions={"0": 1}, stored=1), StreamState(positions={"0": 2}, stored=2)
        store.store_events(
            "clicks", {click.key: [click.row]}, before=StreamState(), after=first, now_ms=NOW + DAY
        )

        with pytest.raises(OtherWriterError, match="clicks"):
            store.store_events(
                "clicks", {click.key: [click.row]}, before=StreamState(), after=second, now_ms=NOW + DAY
            )

        assert store.read_state("clicks") == first
        assert len(store.read_rows("clicks", [click.key])[0]) == len(click.row)
        store.close_file()

    def test_a_key_with_a_million_events_takes_the_room_of_the_newest(self, tmp_path: Path) -> None:
        stream = clicks(max_events=64)
        store = EventStore(tmp_path, [stream], max_bytes=1 << 24)
        state = StreamState()
        for portion in range(10):
            rows = [
                Click(1, NOW + number, number, 1, 1.0, "home").row
                for number in range(portion * 1_000, portion * 1_000 + 1_000)
            ]
            after = StreamState(positions={"0": portion + 1})
            store.store_events(
                "clicks",
                {Click(1, 0, 0, 0, 0, "").key: rows * 100},
                before=state,
                after=after,
                now_ms=NOW + DAY,
            )
            state = after

        (stored,) = store.read_rows("clicks", [Click(1, 0, 0, 0, 0, "").key])

        assert len(stored) == 64 * len(rows[0])
        assert stored[-len(rows[0]) :] == rows[-1]
        store.close_file()

    def test_events_of_the_future_take_no_room_of_what_features_see(self, tmp_path: Path) -> None:
        stream = clicks(max_events=2)
        store = EventStore(tmp_path, [stream], max_bytes=1 << 24)
        past = [Click(1, NOW - number, number, 1, 1.0, "home") for number in range(3)]
        future = [Click(1, NOW + number, 10 + number, 1, 1.0, "home") for number in range(1, 5)]
        state = StreamState(positions={"0": 1})
        store.store_events(
            "clicks",
            {past[0].key: [event.row for event in (*future, *past)]},
            before=StreamState(),
            after=state,
            now_ms=NOW,
        )
        source = StoredEvents(store, stream, USER.type)

        seen = answers(a_click_plan(stream), source, [1, 1], [NOW, NOW + 2])

        assert seen["items"].tolist() == [[0, 1, -1, -1, -1], [12, 11, -1, -1, -1]]
        assert len(store.read_rows("clicks", [past[0].key])[0]) == 4 * len(past[0].row)
        store.close_file()

    def test_keys_whose_events_have_expired_are_removed(self, tmp_path: Path) -> None:
        stream = clicks()
        store = EventStore(tmp_path, [stream], max_bytes=1 << 26)
        events = [Click(user, NOW + user, 1, 1, 1.0, "home") for user in range(5_000)]
        store.store_events(
            "clicks",
            {event.key: [event.row] for event in events},
            before=StreamState(),
            after=StreamState(positions={"0": 1}),
            now_ms=NOW + DAY,
        )

        removed, cursor = 0, b""
        while True:
            swept = store.remove_expired("clicks", NOW + 2_499 + stream.ttl_ms, cursor)
            removed, cursor = removed + swept.removed, swept.cursor
            if not cursor:
                break

        assert removed == 2_500
        rows = store.read_rows("clicks", [event.key for event in events])
        assert [bool(row) for row in rows] == [False] * 2_500 + [True] * 2_500
        store.close_file()

    @pytest.mark.parametrize("events_per_key", [8, 50])
    @pytest.mark.parametrize("expired_percent", [5, 30])
    def test_a_full_store_takes_events_again_once_others_have_expired(
        self, tmp_path: Path, events_per_key: int, expired_percent: int
    ) -> None:
        stream = clicks(max_events=events_per_key)
        store = EventStore(tmp_path, [stream], max_bytes=1 << 23)
        users = iter(random.Random(7).sample(range(1_000_000), 100_000))
        state = StreamState()

        def store_keys(count: int) -> int:
            """Return how many of them expire first."""
            nonlocal state
            events, old = dict[bytes, list[bytes]](), 0
            for user in itertools.islice(users, count):
                is_old = user % 100 < expired_percent
                old += is_old
                made = [
                    Click(user, NOW + number + (0 if is_old else DAY), number, 1, 1.0, "home")
                    for number in range(events_per_key)
                ]
                events[made[0].key] = [event.row for event in made]
            after = StreamState(positions={"0": state.positions.get("0", 0) + count})
            store.store_events("clicks", events, before=state, after=after, now_ms=NOW + DAY)
            state = after
            return old

        def fill() -> tuple[int, int]:
            """Return how many keys fit into the store, and how many of them expire first."""
            stored, expiring, at_once = 0, 0, 64
            while at_once:
                try:
                    expiring += store_keys(at_once)
                    stored += at_once
                except StoreFullError:
                    at_once //= 2
            return stored, expiring

        filled, expiring = fill()
        assert 0 < expiring < filled

        def sweep(now_ms: int) -> int:
            removed, cursor = 0, b""
            while True:
                swept = store.remove_expired("clicks", now_ms, cursor)
                removed, cursor = removed + swept.removed, swept.cursor
                if not cursor:
                    return removed

        assert sweep(NOW + DAY // 2 + stream.ttl_ms) == expiring
        # Rows that were removed leave room in the middle of pages, which only keys of these pages can use.
        assert 0 < (refilled := fill()[0]) < filled
        assert sweep(NOW + 2 * DAY + stream.ttl_ms) == filled - expiring + refilled
        assert fill()[0] > 0.9 * filled
        store.close_file()

    def test_a_store_from_before_the_last_start_of_the_node_is_not_used(self, tmp_path: Path) -> None:
        stream, click = clicks(), Click(1, NOW, 1, 1, 1.0, "home")
        store = EventStore(tmp_path, [stream], max_bytes=1 << 24)
        state = StreamState(positions={"0": 1})
        store.store_events(
            "clicks", {click.key: [click.row]}, before=StreamState(), after=state, now_ms=NOW + DAY
        )
        store.close_file()
        again = EventStore(tmp_path, [stream], max_bytes=1 << 24)
        assert again.read_state("clicks") == state
        again.close_file()

        (tmp_path / "boot-id").write_text("another")
        later = EventStore(tmp_path, [stream], max_bytes=1 << 24)

        assert later.read_state("clicks") == StreamState()
        later.close_file()


class TestWhatDoesNotFit:
    def test_a_stream_without_events(self) -> None:
        with pytest.raises(FeatureError, match="clicks"):
            FeatureEngine(a_click_plan(), {})

    def test_a_feature_that_comes_later(self) -> None:
        features = (Log(name="a", field=of_feature("b")), Log(name="b", field=of_feature("a")))
        with pytest.raises(FeatureError, match="'b'"):
            FeatureEngine(a_click_plan(features=features), {}, {"clicks": recorded([])})

    @pytest.mark.parametrize(
        "feature",
        [
            Hash(name="x", field=of_clicks("item_id"), buckets=3),
            Lookup(name="x", field=of_clicks("item_id"), type=LookupType.INT64),
        ],
    )
    def test_an_operation_that_needs_one_value(self, feature: Hash | Lookup) -> None:
        with pytest.raises(FeatureError, match="needs one value per row"):
            FeatureEngine(a_click_plan(features=(feature,)), {}, {"clicks": recorded([])})

    def test_a_field_that_the_stream_does_not_have(self) -> None:
        feature = Hash(name="x", field=of_clicks("colour"), buckets=3)
        with pytest.raises(FeatureError, match="colour"):
            FeatureEngine(a_click_plan(features=(feature,)), {}, {"clicks": recorded([])})

    @pytest.mark.parametrize("price", [float("nan"), float("inf")])
    def test_numbers_in_a_file_that_no_message_can_have(self, tmp_path: Path, price: float) -> None:
        path = write_table(
            tmp_path / "events.parquet",
            user_id=[1],
            ts=[NOW],
            item_id=[1],
            click=[1],
            price=[price],
            page=["a"],
        )
        with pytest.raises(FeatureError, match=r"'price'.*infinite"):
            read_events(path, clicks(), USER)

    @pytest.mark.parametrize("column", ["price", "colour"])
    def test_a_filter_by_what_has_no_exact_values(self, column: str) -> None:
        event_filter = EventFilter(column=column, values=("1",))
        feature = EventSequence(name="x", field=of_clicks("item_id"), last=3, filter=event_filter)
        with pytest.raises(FeatureError, match=f"'{column}'.*must be an int64 or a string"):
            FeatureEngine(a_click_plan(features=(feature,)), {}, {"clicks": recorded([])})

    def test_times_of_another_number(self) -> None:
        engine = FeatureEngine(a_click_plan(), {}, {"clicks": recorded([])})
        with pytest.raises(FeatureError, match="differ in length"):
            engine.compute_features(
                {"user_id": np.array([1, 2]), "position": np.array([1, 2]), AS_OF: np.array([NOW])}
            )


def test_a_padded_hash_is_the_bucket_of_the_same_value_in_a_sequence() -> None:
    plan = a_click_plan().model_copy(
        update={
            "request": (
                RequestField(name="item", type=RequestFieldType.INT64),
                RequestField(name="page", type=RequestFieldType.STRING),
            ),
            "features": (
                EventSequence(name="items", field=of_clicks("item_id"), last=2, buckets=7),
                EventSequence(name="pages", field=of_clicks("page"), last=2, buckets=7),
                Hash(name="item_id", field=of_request("item"), buckets=7, padded=True),
                Hash(name="page_id", field=of_request("page"), buckets=7, padded=True),
                Hash(name="unpadded", field=of_request("item"), buckets=6),
            ),
        }
    )
    items, pages = list(range(40)), [f"page {number}" for number in range(40)]
    events = [
        Click(number, NOW - 1, item, 1, 0.0, page)
        for number, (item, page) in enumerate(zip(items, pages, strict=True))
    ]
    found = FeatureEngine(plan, {}, {"clicks": recorded(events, clicks())}).compute_features(
        {
            "user_id": np.arange(40, dtype=np.int64),
            "item": np.array(items, dtype=np.int64)[:, None],
            "page": np.array([page.encode() for page in pages], dtype=object)[:, None],
            AS_OF: np.full((40, 1), NOW, dtype=np.int64),
        }
    )
    assert found["items"][:, 0].tolist() == found["item_id"][:, 0].tolist()
    assert found["pages"][:, 0].tolist() == found["page_id"][:, 0].tolist()
    assert found["item_id"].tolist() == (1 + found["unpadded"]).tolist()
    assert set(found["items"][:, 1].tolist()) == {0}
    assert set(found["item_id"][:, 0].tolist()) == {1, 2, 3, 4, 5, 6}
