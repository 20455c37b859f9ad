"""A shard of a backfill: the rows with the bytes of the online path, and no model."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from builders.feature_rows import FEATURES, ROWS, USERS, FeatureWorld, a_plan
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import FEATURE_COLUMNS, PLAN_HASH, FeatureColumns


@pytest.fixture
def backfill(tmp_path: Path) -> FeatureWorld:
    world = FeatureWorld(tmp_path)
    world.world.has_model = False
    return world


def _score(backfill: FeatureWorld, index: int = 0, **changes: object) -> None:
    backfill.score(index, **{"spec_path": "spec.backfill", **changes})


@pytest.mark.parametrize("shards", [1, 3])
def test_every_row_has_the_bytes_of_the_online_answer_at_its_time(
    backfill: FeatureWorld, tmp_path: Path, shards: int
) -> None:
    for index in range(shards):
        _score(backfill, index, shards=shards)

    rows = backfill.bytes_of_rows()
    assert [row["id"] for row in backfill.world.rows()] == list(range(ROWS))
    for row in range(ROWS):
        online = backfill.answer_online(row, tmp_path / f"store-{row}")
        assert rows[row] == {name: values.tobytes() for name, values in online.items()}, row
    assert len({features["items"] for features in rows}) > USERS
    assert backfill.world.model.requests == []


def test_files_have_the_copied_columns_and_all_features_of_the_plan(backfill: FeatureWorld) -> None:
    _score(backfill)

    schema = pq.read_schema(min(backfill.world.results.glob("part-*.parquet")))
    assert schema.names == ["id", *FEATURES, "age"]
    assert schema.metadata[PLAN_HASH.encode()].decode() == a_plan().hash
    described = FeatureColumns.model_validate_json(schema.metadata[FEATURE_COLUMNS.encode()])
    assert [column.name for column in described.columns] == [*FEATURES, "age"]


def test_a_shard_that_is_done_writes_the_same_files_again_and_no_others(backfill: FeatureWorld) -> None:
    _score(backfill)
    written = {path.name: path.read_bytes() for path in backfill.world.results.glob("part-*.parquet")}
    (backfill.world.results / "part-00000-00003.parquet").unlink()

    _score(backfill)

    again = {path.name: path.read_bytes() for path in backfill.world.results.glob("part-*.parquet")}
    assert again == written


def test_errors_name_the_fields_of_the_backfill(backfill: FeatureWorld) -> None:
    times: list[int | None] = [*backfill.times[:23]]
    times[4] = None
    backfill.write_rows(0, 23, shown_at=times)
    with pytest.raises(
        TableError, match=r"column 'shown_at' has a null.* spec\.backfill\.maxRefusedRows is 0"
    ):
        _score(backfill)
