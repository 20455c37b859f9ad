"""The example's ratings in a real NATS server: published once, again when they are others or old, and found by the demo."""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest

from builders.movielens import EXAMPLE
from fixtures.nats import RunningNats, a_nats
from movielens_din.data import ratings_of
from movielens_din.events import write_events
from movielens_din.stream import (
    EVENTS_DIGEST,
    MADE_BY,
    MAX_AGE_MS,
    SHIFT_MS,
    STREAM,
    SUBJECT,
    PublishedEvents,
    StreamError,
    publish_events,
)
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.rating_stream import RatingStream
from tidegate_localcluster.demo.recipe import PublishedRatings, TrainingRecipe

NOW_MS = 1_800_000_000_000
NEWEST_MS = 30_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningNats]:
    with a_nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.parquet"
    write_events(path, ratings_of([(1, 10, 5, 10), (2, 11, 2, 20), (1, 12, 4, 30)]))
    return path


def publish(server: RunningNats, events: Path, now_ms: int = NOW_MS) -> PublishedEvents:
    return asyncio.run(publish_events(server.url, events, now_ms))


def read_messages(server: RunningNats) -> list[dict[str, Any]]:
    async def read(stream: Any) -> list[dict[str, Any]]:
        state = (await stream.stream_info(STREAM)).state
        numbers = range(state.first_seq, state.last_seq + 1)
        return [json.loads((await stream.get_msg(STREAM, number)).data) for number in numbers]

    return server.ask(read)


def test_ratings_are_events_of_the_last_months_in_order(server: RunningNats, events: Path) -> None:
    published = publish(server, events)
    assert published == PublishedEvents(count=3, shift_ms=NOW_MS - NEWEST_MS, is_new=True)
    assert read_messages(server) == [
        {"user_id": 1, "ts": NOW_MS - 20_000, "item_row": 10, "stars": 5},
        {"user_id": 2, "ts": NOW_MS - 10_000, "item_row": 11, "stars": 2},
        {"user_id": 1, "ts": NOW_MS, "item_row": 12, "stars": 4},
    ]


def test_what_the_stream_has_is_not_published_again(server: RunningNats, events: Path) -> None:
    first = publish(server, events)
    second = publish(server, events, NOW_MS + MAX_AGE_MS)
    assert (second.is_new, second.shift_ms) == (False, first.shift_ms)
    assert len(read_messages(server)) == 3


def test_ratings_that_have_become_old_are_published_again(server: RunningNats, events: Path) -> None:
    publish(server, events)
    later_ms = NOW_MS + MAX_AGE_MS + 1
    assert publish(server, events, later_ms).is_new
    assert [message["ts"] for message in read_messages(server)][-1] == later_ms
    assert len(read_messages(server)) == 3


def test_other_ratings_replace_them(server: RunningNats, events: Path, tmp_path: Path) -> None:
    publish(server, events)
    others = tmp_path / "others.parquet"
    write_events(others, ratings_of([(3, 13, 1, 40)]))
    assert publish(server, others).is_new
    assert [message["user_id"] for message in read_messages(server)] == [3]


def test_a_publication_that_was_interrupted_is_made_again(server: RunningNats, events: Path) -> None:
    publish(server, events)
    server.ask(lambda stream: stream.delete_msg(STREAM, 2))
    assert publish(server, events).is_new
    assert len(read_messages(server)) == 3


def test_the_demo_publishes_by_the_example_and_rates_in_the_same_form(
    server: RunningNats, events: Path, tmp_path: Path
) -> None:
    address = server.url.removeprefix("nats://")
    recipe = TrainingRecipe(EXAMPLE.parents[1], tmp_path / "home")
    recipe.output_folder.mkdir(parents=True)
    shutil.copy(events, recipe.output_folder)
    published = recipe.publish_events(address, lambda _: None)
    shift_ms = read_messages(server)[-1]["ts"] - NEWEST_MS
    assert published == PublishedRatings(STREAM, SUBJECT, count=3, shift_ms=shift_ms, is_new=True)
    assert recipe.publish_events(address, lambda _: None) == replace(published, is_new=False)
    stream = RatingStream(address, published.subject)
    before_ms = time.time_ns() // 1_000_000
    stream.publish_rating(7, 14, 5)
    *earlier, rating = read_messages(server)
    assert rating.keys() == earlier[0].keys()
    assert (rating["user_id"], rating["item_row"], rating["stars"]) == (7, 14, 5)
    assert before_ms <= rating["ts"] <= time.time_ns() // 1_000_000
    assert not recipe.publish_events(address, lambda _: None).is_new


def test_a_server_that_refuses_connections_at_first_is_tried_again(
    tmp_path: Path, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = RunningNats(tmp_path)
    connect = nats.connect
    refusals: list[Exception] = []

    async def connect_to_late_server(url: str, **options: Any) -> Any:
        async def start_server(error: Exception) -> None:
            refusals.append(error)
            await asyncio.to_thread(server.start)

        return await connect(url, **options | ({"error_cb": start_server} if "error_cb" in options else {}))

    monkeypatch.setattr(nats, "connect", connect_to_late_server)
    try:
        assert publish(server, events).is_new
        assert [type(error) for error in refusals] == [ConnectionRefusedError]
    finally:
        server.clean_up()


def test_the_script_ends_with_one_line_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    events = tmp_path / "events.parquet"
    script = EXAMPLE / "publish_events.py"
    ended = subprocess.run(
        [sys.executable, script, "--events", events], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    expected = f"publish_events.py: {events} is not a file; train.py writes it as DIR/events.parquet\n"
    assert (ended.stdout, ended.stderr) == ("", expected)


def test_a_server_that_is_not_there_is_named(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("movielens_din.stream.RETRIES", 1)
    with pytest.raises(
        StreamError, match=r"nats://127\.0\.0\.1:1, stream MOVIELENS_RATINGS: .*Connect call failed"
    ):
        asyncio.run(publish_events("nats://127.0.0.1:1", events, NOW_MS))
    with pytest.raises(DemoError, match=r"subject s at nats://127\.0\.0\.1:1: nats: no servers available"):
        RatingStream("127.0.0.1:1", "s").publish_rating(7, 14, 5)


def test_a_rating_that_no_stream_takes_is_an_error(server: RunningNats) -> None:
    with pytest.raises(DemoError, match=rf"subject s at {server.url}: nats: no response from stream"):
        RatingStream(server.url.removeprefix("nats://"), "s").publish_rating(7, 14, 5)


@pytest.mark.parametrize("metadata", [{}, {EVENTS_DIGEST: "ab", SHIFT_MS: "0"}, {MADE_BY: "a shop"}])
def test_a_stream_that_the_example_did_not_make_is_not_changed(
    server: RunningNats, events: Path, metadata: dict[str, str]
) -> None:
    server.make_stream(STREAM, "shop.ratings.>", metadata=metadata)
    server.ask(lambda stream: stream.publish("shop.ratings.1", b'{"user_id": 9}'))
    with pytest.raises(
        StreamError, match=rf"stream {STREAM} was not made by this example.*delete or rename it"
    ):
        publish(server, events)
    assert read_messages(server) == [{"user_id": 9}]


def test_a_stream_that_has_the_subject_is_not_changed(server: RunningNats, events: Path) -> None:
    server.make_stream("SHOP", SUBJECT)
    with pytest.raises(StreamError, match=rf"{server.url}, stream {STREAM}: .*subjects overlap"):
        publish(server, events)
