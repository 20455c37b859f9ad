"""A table scored on a real Triton: every row once, whatever is killed in the middle, and nothing lost in silence."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper

from builders.onnx_models import a_model, a_tensor, write_artefact
from builders.probe_model import publish, publish_slow
from builders.waiting import wait_until
from fixtures.agent import ModelPod
from fixtures.batch import RUN, BatchPod, write_table, write_users

pytestmark = [pytest.mark.triton]

NEVER = 3
_numbers = itertools.count(1)


@pytest.fixture
def batch_pod(shared_pod: ModelPod, tmp_path: Path) -> BatchPod:
    """A model, a table and a folder of results of the test's own; publish the one and write the other first."""
    shared_pod.model = f"ctr-{next(_numbers)}"
    pod = BatchPod(shared_pod, tmp_path)
    pod.claim.mkdir(parents=True)
    return pod


def _gathering() -> list[onnx.NodeProto]:
    """y = the vector whose number the first value of x is, without any check of its own."""
    return [
        helper.make_node("Cast", ["x"], ["numbers"], to=TensorProto.INT64),
        helper.make_node("Gather", ["numbers", "zero"], ["first"], axis=1),
        helper.make_node("Gather", ["vectors", "first"], ["y"], axis=0),
    ]


def _expected(rows: int) -> list[dict[str, float]]:
    return [{"user_id": row, "score": row / 2 + 1000.0} for row in range(rows)]


@pytest.mark.no_rerun("a lost or doubled row")
def test_every_row_of_several_files_is_scored_once_and_in_order(batch_pod: BatchPod) -> None:
    publish(batch_pod.pod.artefact, 1)
    write_users(batch_pod.table, 5_003, files=3)
    (batch_pod.table / "_SUCCESS").write_text("")
    batch_pod.serve(shards=3)

    assert [batch_pod.score(index) for index in (2, 0)] == [0, 0], batch_pod.log.read_text()
    assert batch_pod.success() is None
    assert batch_pod.score(1) == 0

    assert batch_pod.rows() == _expected(5_003)
    batch_pod.asked_to(5_003)
    assert batch_pod.success() == {"run": RUN, "shards": 3, "rows": 5_003, "refused": 0, "files": 12}
    assert batch_pod.refused() == []


def test_a_pod_that_is_killed_is_gone_on_with_and_what_it_wrote_is_not_asked_again(
    batch_pod: BatchPod,
) -> None:
    publish_slow(batch_pod.pod.artefact, 1, rounds=60_000)
    ids = pa.array(range(4_000), type=pa.int64())
    write_table(batch_pod.table / "a.parquet", {"user_id": ids, "x": pa.array([1.0] * 4_000, pa.float32())})
    batch_pod.serve(shards=1)

    batch_pod.killed(0, files=2)
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in batch_pod.files(0)}
    asked = batch_pod.asked_at_rest()
    assert 2 <= len(before) < 8
    assert batch_pod.success() is None
    assert batch_pod.score(0) == 0

    after = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in batch_pod.files(0)}
    assert {name: after[name] for name in before} == before
    assert len(after) == 8
    # What was in files is not asked again: the rest, and what was in flight when it was killed.
    assert batch_pod.asked_at_rest() - asked <= 4_000 - 500 * len(before) + 4 * 64
    assert [row["user_id"] for row in batch_pod.rows()] == list(range(4_000))
    assert batch_pod.events("shard_begins")[-1]["found"] == 500 * len(before)

    # A third pod of a shard that is done asks nothing, and a file that is lost is made again, byte for byte.
    asked = batch_pod.asked_at_rest()
    assert batch_pod.score(0) == 0
    assert batch_pod.asked_at_rest() == asked
    batch_pod.files(0)[-1].unlink()
    assert batch_pod.score(0) == 0
    batch_pod.asked_to(asked + 500)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in batch_pod.files(0)} == after


def test_files_that_come_later_are_not_of_the_run_and_one_that_changed_ends_it(batch_pod: BatchPod) -> None:
    publish(batch_pod.pod.artefact, 1)
    write_users(batch_pod.table, 1_000, files=2)
    batch_pod.serve(shards=2)
    assert batch_pod.score(0) == 0

    write_users(batch_pod.table / "later", 100, files=1)
    write_table(
        batch_pod.table / "part-1.parquet",
        {"user_id": pa.array([1], pa.int64()), "x": pa.array([1.0], pa.float32())},
    )
    assert batch_pod.score(1) == NEVER
    assert (
        f"file://{batch_pod.table}/part-1.parquet changed since the run began (it had 500 rows"
        in batch_pod.last_words
    )
    assert batch_pod.success() is None


def test_a_row_that_has_no_tensor_fails_its_shard_by_name_or_is_set_aside(batch_pod: BatchPod) -> None:
    publish(batch_pod.pod.artefact, 1)
    values = [float(row) for row in range(900)]
    holes = pa.array([None if row in (17, 700) else value for row, value in enumerate(values)], pa.float32())
    write_table(batch_pod.table / "a.parquet", {"user_id": pa.array(range(900), pa.int64()), "x": holes})
    batch_pod.serve(shards=1)
    assert batch_pod.score(0) == NEVER
    assert (
        f"row 17 of file://{batch_pod.table}/a.parquet is refused: column 'x' has a null; shard 0 has 1 such rows, and "
        "spec.batch.maxRefusedRows is 0" in batch_pod.last_words
    )
    assert batch_pod.files(0) == []

    batch_pod.serve(shards=1, max_refused_rows=2)
    assert batch_pod.score(0) == 0
    scored = batch_pod.rows()
    assert [row["user_id"] for row in scored] == [row for row in range(900) if row not in (17, 700)]
    assert all(row["score"] == row["user_id"] + 1000.0 for row in scored)
    assert batch_pod.refused() == [
        {
            "user_id": row,
            "tidegate_file": "a.parquet",
            "tidegate_row": row,
            "tidegate_reason": "column 'x' has a null",
        }
        for row in (17, 700)
    ]
    assert batch_pod.success() == {"run": RUN, "shards": 1, "rows": 898, "refused": 2, "files": 2}


def test_what_the_model_itself_refuses_is_narrowed_down_to_its_rows(batch_pod: BatchPod) -> None:
    model = a_model(
        [a_tensor("x", ["n", 2])],
        [a_tensor("y", ["n", 3])],
        nodes=_gathering(),
        weights=[
            numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "vectors"),
            numpy_helper.from_array(np.array(0, dtype=np.int64), "zero"),
        ],
    )
    write_artefact(batch_pod.pod.artefact, 1, model)
    pairs = [[row % 4, 0] for row in range(300)]
    pairs[123] = [9, 0]  # no such vector: the whole request fails
    columns = {"user_id": pa.array(range(300), pa.int64()), "ids": pa.array(pairs, pa.list_(pa.float32()))}
    write_table(batch_pod.table / "a.parquet", columns)
    batch_pod.serve(shards=1, max_refused_rows=1, columns=[{"input": "x", "column": "ids"}])

    assert batch_pod.score(0) == 0, batch_pod.last_words
    (refused,) = batch_pod.refused()
    assert refused["user_id"] == 123
    assert "indices element out of data bounds, idx=9" in refused["tidegate_reason"]
    scored = batch_pod.rows()
    assert len(scored) == 299
    assert scored[2] == {"user_id": 2, "y": [6.0, 7.0, 8.0]}
    assert scored[123]["user_id"] == 124


@pytest.mark.parametrize(
    ("columns", "changes", "words"),
    [
        (
            {"user_id": [1], "x": ["one"]},
            {},
            "a.parquet, row 0: column 'x' holds string, and input 'x' of the model takes",
        ),
        ({"user_id": [1]}, {}, "a.parquet has no column 'x'; it has user_id"),
        (
            {"user_id": [1], "x": [1.0]},
            {"keep": ["user"]},
            "a.parquet has no column 'user'; it has user_id, x",
        ),
        (
            {"user_id": [1], "x": [1.0]},
            {"columns": [{"input": "z", "column": "x"}]},
            "spec.batch.input.columns names input 'z', and the model takes x",
        ),
        (
            {"user_id": [1], "x": [1.0], "score": [1.0]},
            {"keep": ["score"]},
            "has the name of an output of the model",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_model_is_refused_by_name(
    batch_pod: BatchPod, columns: dict[str, list[object]], changes: dict[str, object], words: str
) -> None:
    publish(batch_pod.pod.artefact, 1)
    write_table(batch_pod.table / "a.parquet", columns)
    batch_pod.serve(shards=1, **changes)
    assert batch_pod.score(0) == NEVER
    assert words in batch_pod.last_words
    assert batch_pod.files(0) == []


def test_a_file_that_is_no_parquet_and_a_folder_without_one_are_named(batch_pod: BatchPod) -> None:
    publish(batch_pod.pod.artefact, 1)
    batch_pod.table.mkdir(parents=True)
    batch_pod.serve(shards=1)
    assert batch_pod.score(0) == NEVER
    assert batch_pod.last_words == f"there is no .parquet file below file://{batch_pod.table}"

    write_users(batch_pod.table, 10, files=1)
    (batch_pod.table / "b.parquet").write_bytes(b"PAR1 and then nothing")
    assert batch_pod.score(0) == NEVER
    assert f"file://{batch_pod.table}/b.parquet cannot be read as Parquet: " in batch_pod.last_words


def test_a_server_that_ends_in_the_middle_costs_no_row(batch_pod: BatchPod) -> None:
    publish_slow(batch_pod.pod.artefact, 1, rounds=20_000)
    ids = pa.array(range(3_000), type=pa.int64())
    write_table(batch_pod.table / "a.parquet", {"user_id": ids, "x": pa.array([1.0] * 3_000, pa.float32())})
    batch_pod.serve(shards=1)
    process = batch_pod.start(0)
    wait_until(lambda: len(batch_pod.files(0)) >= 1, what="the work has begun", timeout_s=60)
    batch_pod.pod.triton.kill()
    batch_pod.pod.triton.start()
    assert process.wait(60) == 0, batch_pod.last_words
    assert [row["user_id"] for row in batch_pod.rows()] == list(range(3_000))
    assert batch_pod.refused() == []
