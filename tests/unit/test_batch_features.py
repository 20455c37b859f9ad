"""A batch whose rows get their features first: the bytes of the online path, whatever is read and in whatever shards."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from builders.events import DAY, Click
from builders.feature_rows import ROWS, USERS, FeatureWorld, a_plan
from builders.features import write_table
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.batch import feature_sources
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import (
    FEATURE_COLUMNS,
    PLAN_HASH,
    FeatureColumns,
    TensorSpec,
)


@pytest.fixture
def world(tmp_path: Path) -> FeatureWorld:
    return FeatureWorld(tmp_path)


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_have_the_bytes_that_a_pod_would_have_answered_at_their_times(
    world: FeatureWorld, tmp_path: Path, shards: int
) -> None:
    for index in range(shards):
        world.score(index, shards=shards)

    found = world.bytes_of_rows()
    assert [row["id"] for row in world.world.rows()] == list(range(ROWS))
    for row in range(ROWS):
        online = world.answer_online(row, tmp_path / f"store-{row}")
        assert found[row] == {name: values.tobytes() for name, values in online.items()}, row
    # No row sees nothing, and they differ: equal defaults would prove little.
    assert len({features["items"] for features in found}) > USERS


def test_the_model_gets_its_features_and_its_own_columns(world: FeatureWorld) -> None:
    world.score()

    for row in world.world.rows():
        expected = np.float32(row["idle"]) + np.float32(sum(row["items"])) + np.float32(0.5)
        assert row["sum"] == pytest.approx(expected)


def test_results_name_the_plan_and_the_features_that_they_have(world: FeatureWorld) -> None:
    world.score(keep=("id", "items", "age"))

    (path, *_) = sorted(world.world.results.glob("part-*.parquet"))
    schema = pq.read_schema(path)
    assert schema.metadata[PLAN_HASH.encode()].decode() == a_plan().hash
    described = FeatureColumns.model_validate_json(schema.metadata[FEATURE_COLUMNS.encode()])
    assert [(column.name, column.default) for column in described.columns] == [("items", "-1"), ("age", "-1")]
    assert schema.names == ["id", "items", "age", "sum"]


def test_a_shard_goes_on_after_the_files_that_are_there(world: FeatureWorld) -> None:
    world.score()
    paths = sorted(world.world.results.glob("part-*.parquet"))
    written = {path.name: path.read_bytes() for path in paths}
    assert len(paths) == 8
    for path in paths[3:]:
        path.unlink()
    world.world.model.requests.clear()

    world.score()

    again = sorted(world.world.results.glob("part-*.parquet"))
    assert {path.name: path.read_bytes() for path in again} == written
    assert sum(map(len, world.world.model.requests)) == ROWS - 15


def test_a_row_without_a_key_or_a_time_is_refused_and_the_others_have_their_features(
    world: FeatureWorld, tmp_path: Path
) -> None:
    users: list[int | None] = [*world.users[:23]]
    times: list[int | None] = [*world.times[:23]]
    users[2], times[4] = None, None
    world.write_rows(0, 23, viewer=users, shown_at=times)
    with pytest.raises(TableError, match=r"row 4 of .*00.parquet is refused: column 'shown_at' has a null"):
        world.score(max_refused_rows=1)

    world.score(max_refused_rows=2)

    refused = [
        row
        for path in sorted((world.world.results / "_refused").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert [(row["id"], row["items"], row["tidegate_reason"]) for row in refused] == [
        (2, None, "column 'viewer' has a null"),
        (4, None, "column 'shown_at' has a null"),
    ]
    ids = [row["id"] for row in world.world.rows()]
    assert ids == [row for row in range(ROWS) if row not in (2, 4)]
    for row, features in zip(ids, world.bytes_of_rows(), strict=True):
        online = world.answer_online(row, tmp_path / f"store-{row}")
        assert features["items"] == online["items"].tobytes(), row


def test_events_that_are_written_during_a_run_are_not_part_of_it(world: FeatureWorld, tmp_path: Path) -> None:
    world.score(0, shards=2)
    late = [Click(user, at, 1, 1, 1.0, "home") for user, at in zip(world.users, world.times, strict=True)]
    world.write_events("events/9.parquet", late)
    world.score(1, shards=2)
    assert len(world.bytes_of_rows()) == ROWS
    for row in (ROWS - 1, ROWS - 2):
        online = world.answer_online(row, tmp_path / f"store-{row}")
        assert world.bytes_of_rows()[row]["shown_1h"] == online["shown_1h"].tobytes()

    world.write_events("events/1.parquet", world.events[1:90:3])
    (world.world.results / "part-00000-00000.parquet").unlink()
    with pytest.raises(TableError, match=r"events/1.parquet changed since the run began"):
        world.score(0, shards=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"keep": ("id", "nothing")},
            r"00.parquet has no column 'nothing'; .*'nothing' is no feature of FeatureCompute live either",
        ),
        ({"columns": ()}, r"has no column 'user_id'"),
        (
            {"columns": ({"input": "user_id", "column": "bid"},)},
            r"column 'bid' holds double, and input 'user_id'",
        ),
        (
            {
                "columns": (
                    {"input": "user_id", "column": "viewer"},
                    {"input": "useless", "column": "bid"},
                )
            },
            r"spec.batch.input.columns names input 'useless'",
        ),
    ],
)
def test_what_the_table_lacks_is_named(world: FeatureWorld, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=message):
        world.score(**changes)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            [TensorSpec(name="idle", dtype="INT64", shape=(-1, 1))],
            r"feature 'idle' of FeatureCompute live is FP32 of shape \[1\] a row, and the model takes INT64 of shape \[1\]",
        ),
        (
            [TensorSpec(name="items", dtype="INT64", shape=(-1, 4))],
            r"feature 'items' .* is INT64 of shape \[5\] a row, and the model takes INT64 of shape \[4\]",
        ),
        (
            [TensorSpec(name="bid", dtype="FP32", shape=(-1, 1))],
            r"no input of the model is a feature of FeatureCompute live \(age, .*\); the model takes bid",
        ),
        (
            [
                TensorSpec(name="idle", dtype="FP32", shape=(-1, 1)),
                TensorSpec(name="floor", dtype="FP32", shape=(-1, 1)),
            ],
            r"has no column 'floor'; .*; 'floor' is no feature of FeatureCompute live either",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_features_is_refused(
    world: FeatureWorld, specs: list[TensorSpec], message: str
) -> None:
    world.world.model.specs = specs
    with pytest.raises(TableError, match=message):
        world.score(keep=("id",))


def test_a_source_that_does_not_fit_is_named(world: FeatureWorld) -> None:
    write_table(world.models / "users.parquet", user_id=[1, 1], age=[2, 3])
    with pytest.raises(TableError, match=r"FeatureCompute live: table 'profiles'.* 1"):
        world.score()


def test_a_pinned_table_must_be_the_one_that_pods_read(world: FeatureWorld) -> None:
    digest = hashlib.sha256((world.models / "users.parquet").read_bytes()).hexdigest()
    world.score(**world.order(a_plan(sha256=digest)))
    assert len(world.world.rows()) == ROWS
    with pytest.raises(TableError, match=rf"users.parquet has sha256 {digest}, and the spec pins 0{{64}}"):
        world.score(0, **{**world.order(a_plan(sha256="0" * 64)), "run": "v1-another"})


def test_a_shard_stores_no_more_events_than_its_rows_see(
    world: FeatureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []

    class CountedEvents(feature_sources.RecordedEvents):
        def __init__(self, stream: Any, entity: Any, events: Any) -> None:
            stored.append(len(events.times))
            super().__init__(stream, entity, events)

    monkeypatch.setattr(feature_sources, "RecordedEvents", CountedEvents)
    world.score(0, shards=20)

    users, first, last = world.users[:2], min(world.times[:2]), max(world.times[:2])
    seen = [event for event in world.events if event.user in users and first - 2 * DAY < event.ts <= last]
    assert stored == [len(seen)]
    assert 0 < len(seen) < len(world.events) / 2


def test_events_may_be_in_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    spark, plain = FeatureWorld(tmp_path / "spark"), FeatureWorld(tmp_path / "plain")
    (spark.models / "events").rename(spark.models / "events.parquet")
    (spark.models / "events.parquet/_SUCCESS").touch()
    spark.score(**spark.order(clicks=f"file://{spark.models}/events.parquet"))
    plain.score()
    assert spark.world.rows() == plain.world.rows()
    # Neither a file nor a folder of files.
    for name, problem in (("lost.parquet", "there is no"), ("empty.parquet", "not a regular file")):
        broken = FeatureWorld(tmp_path / name)
        (broken.models / "empty.parquet").mkdir()
        with pytest.raises((TableError, ArtefactError), match=problem):
            broken.score(**broken.order(clicks=f"file://{broken.models}/{name}"))
