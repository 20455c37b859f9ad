"""A shard over a folder, with a model of ours: which rows, in which batches, and what becomes of rows that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders.batch_world import FakeModel, World, pairs
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor
from tidegate_dataplane.agent.nearline.model import NoAnswerError
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.batch import scorer
from tidegate_dataplane.batch.errors import ServerFaultError, TableError
from tidegate_dataplane.batch.plan import InputFile, RowSpan, TablePlan
from tidegate_dataplane.contract import TensorSpec


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(scorer, "RETRY_PAUSE_S", 0.0)
    return World(tmp_path)


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 30])
def test_shards_have_every_row_of_every_file_once(world: World, shards: int) -> None:
    world.write("a.parquet", pairs(11))
    world.write("b/c.parquet", pairs(8, start=11))
    world.write("d.parquet", pairs(0), row_group=1)
    for index in range(shards):
        world.score(index, shards=shards)
    assert world.rows() == [{"id": one, "sum": one + 1.0} for one in range(19)]
    assert sum(map(len, world.model.requests)) == 19
    assert (world.results / "_SUCCESS").exists()


def test_the_end_is_said_by_the_last_shard_alone(world: World) -> None:
    world.write("a.parquet", pairs(9))
    for index in (2, 0):
        world.score(index, shards=3)
        assert not (world.results / "_SUCCESS").exists()
    world.score(1, shards=3)
    assert (world.results / "_SUCCESS").exists()


def test_what_is_there_is_not_done_again_and_what_is_broken_is(world: World) -> None:
    world.write("a.parquet", pairs(20))
    world.score()
    files = sorted(world.results.glob("part-*.parquet"))
    whole = {path.name: path.read_bytes() for path in files}
    assert len(files) == 4
    files[1].write_bytes(whole[files[1].name][:-7])
    files[3].unlink()
    world.model.requests.clear()

    world.score()

    # From the first file that is not whole: those after it are made again, and are what they were.
    assert [one for request in world.model.requests for one in request] == list(range(5, 20))
    assert {path.name: path.read_bytes() for path in files} == whole
    assert not list(world.results.glob(".*"))


def test_batches_are_the_same_whoever_scores_a_file(world: World) -> None:
    world.write("a.parquet", pairs(12))
    world.score()
    before = list(world.model.requests)
    sorted(world.results.glob("part-*.parquet"))[2].unlink()
    world.model.requests.clear()
    world.score()
    assert world.model.requests == [request for request in before if request[0] >= 10]


def test_rows_that_the_model_refuses_are_found_and_the_others_scored(world: World) -> None:
    world.write("a.parquet", pairs(12))
    bad = {3.0, 9.0}
    world.model.fails = lambda rows: (
        NoAnswerError(FaultOrigin.MESSAGE, f"no {min(bad & set(rows)):g}") if bad & set(rows) else None
    )
    with pytest.raises(
        TableError, match=r"row 3 of file://.*/a.parquet is refused: no 3; shard 0 has 1 such"
    ):
        world.score(max_refused_rows=0)
    report = world.score(max_refused_rows=2)
    assert (report.rows, report.refused) == (10, 2)
    assert [row["id"] for row in world.rows()] == [one for one in range(12) if one not in (3, 9)]
    refused = [
        row
        for path in sorted((world.results / "_refused").glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert [(row["id"], row["tidegate_row"], row["tidegate_reason"]) for row in refused] == [
        (3, 3, "no 3"),
        (9, 9, "no 9"),
    ]


def test_refused_rows_of_files_that_an_earlier_pod_wrote_count_too(world: World) -> None:
    world.write("a.parquet", pairs(12))
    world.model.fails = lambda rows: (
        NoAnswerError(FaultOrigin.MESSAGE, "no") if {1.0, 11.0} & set(rows) else None
    )
    with pytest.raises(TableError, match=r"shard 0 has 2 such rows, and spec.batch.maxRefusedRows is 1"):
        world.score(max_refused_rows=1)
    assert len(list(world.results.glob("part-*.parquet"))) == 2
    with pytest.raises(TableError, match="shard 0 has 2 such rows"):
        world.score(max_refused_rows=1)


def test_a_failure_that_passes_refuses_nothing(world: World) -> None:
    world.write("a.parquet", pairs(8))
    failures = [NoAnswerError(FaultOrigin.SERVER, "gone"), NoAnswerError(FaultOrigin.UNCLEAR, "CUDA error")]
    world.model.fails = lambda _: failures.pop() if failures else None
    assert world.score().refused == 0
    assert world.rows() == [{"id": one, "sum": one + 1.0} for one in range(8)]


def test_a_row_that_ends_the_server_each_time_it_is_asked_is_refused(world: World) -> None:
    world.write("a.parquet", pairs(6))
    world.model.fails = lambda rows: NoAnswerError(FaultOrigin.SERVER, "gone") if 5.0 in rows else None
    with pytest.raises(
        ServerFaultError, match=r"row 5 .* the server was gone each of 4 times it was asked, last alone"
    ):
        world.score()
    assert world.score(max_refused_rows=1).refused == 1


@pytest.mark.parametrize("most", [0, 2])
def test_a_broken_gpu_makes_no_refused_rows_and_ends_the_pod_soon(world: World, most: int) -> None:
    world.write("a.parquet", pairs(100))
    world.model.fails = lambda _: NoAnswerError(FaultOrigin.UNCLEAR, "CUDA error: unspecified launch failure")
    with pytest.raises(
        ServerFaultError, match=rf"CUDA error.*another pod tries.*maxRefusedRows, which is {most}"
    ):
        world.score(rows_per_file=100, max_refused_rows=most)
    assert not list(world.results.glob("**/*.parquet"))
    # Not each of the hundred rows alone, four times.
    assert len(world.model.requests) < 60
    world.model.fails = lambda _: None
    assert world.score(rows_per_file=100, max_refused_rows=most).refused == 0


def test_rows_that_are_wrong_for_certain_fail_the_shard_whatever_else_the_server_does(world: World) -> None:
    world.write("a.parquet", {"id": [0, 1, 2], "x": [[0.0, 1.0], [1.0], [2.0, 1.0]]})
    world.model.fails = lambda rows: NoAnswerError(FaultOrigin.UNCLEAR, "CUDA error") if 2.0 in rows else None
    with pytest.raises(TableError, match="column 'x' has 1 values"):
        world.score()
    with pytest.raises(ServerFaultError, match=r"row 2 .* CUDA error"):
        world.score(max_refused_rows=1)


def test_a_limit_that_is_lowered_below_what_is_refused_already_says_so(world: World) -> None:
    world.write("a.parquet", pairs(12))
    world.model.fails = lambda rows: (
        NoAnswerError(FaultOrigin.MESSAGE, "no") if {1.0, 2.0} & set(rows) else None
    )
    assert world.score(max_refused_rows=2).refused == 2
    files = sorted(world.results.glob("part-*.parquet"))
    files[1].unlink()
    for _ in range(2):
        with pytest.raises(
            TableError, match=r"shard 0 has 2 refused rows already, and spec.batch.maxRefusedRows is 1: raise"
        ):
            world.score(max_refused_rows=1)
        world.score(max_refused_rows=2)


def test_a_row_has_a_result_or_a_reason_and_never_both(world: World) -> None:
    world.write("a.parquet", pairs(5))
    world.model.fails = lambda rows: NoAnswerError(FaultOrigin.UNCLEAR, "CUDA error") if 3.0 in rows else None
    assert world.score(max_refused_rows=1).refused == 1
    (path,) = (world.results / "_refused").glob("*.parquet")
    assert pq.read_metadata(path).num_rows == 1
    # As after a pod that was ended between the two files.
    (written,) = world.results.glob("part-*.parquet")
    written.unlink()
    world.model.fails = lambda _: None
    assert world.score(max_refused_rows=1).refused == 0
    assert len(world.rows()) == 5
    assert pq.read_metadata(path).num_rows == 0


@pytest.mark.parametrize(("shape", "lists"), [((-1, -1), [[[1, 2], [3]]] * 2), ((-1, 2), [[[1], [2]]] * 2)])
def test_lists_of_lists_are_refused_by_the_columns_name(
    world: World, shape: tuple[int, ...], lists: list[Any]
) -> None:
    world.model.specs = (TensorSpec(name="x", dtype="INT64", shape=shape),)
    world.write("a.parquet", {"id": [0, 1], "x": lists})
    with pytest.raises(TableError, match=r"column 'x' holds list<.*lists of lists are not read.*as one list"):
        world.score(max_refused_rows=9)
    assert world.model.requests == []


@pytest.mark.parametrize(
    ("columns", "changes", "words"),
    [
        (
            {"id": [1], "x": ["one"]},
            {},
            "a.parquet, row 0: column 'x' holds string, and input 'x' of the model",
        ),
        ({"id": [1]}, {}, "a.parquet has no column 'x'; it has id"),
        (pairs(1), {"keep": ["user"]}, "a.parquet has no column 'user'; it has id, x"),
        (
            pairs(1),
            {"columns": [{"input": "z", "column": "x"}]},
            "columns names input 'z', and the model takes x",
        ),
        ({**pairs(1), "sum": [1.0]}, {"keep": ["sum"]}, "has the name of an output of the model"),
    ],
)
def test_a_table_that_does_not_fit_the_model_is_refused_by_name(
    world: World, columns: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    world.write("a.parquet", columns)
    with pytest.raises(TableError, match=words):
        world.score(**changes)
    assert not list(world.results.glob("part-*.parquet"))


def test_a_file_that_is_no_parquet_and_a_folder_without_one_are_named(world: World) -> None:
    table = world.folder / "models" / "table"
    table.mkdir(parents=True)
    with pytest.raises(TableError, match=f"^there is no .parquet file below file://{table}$"):
        world.score()
    (table / "b.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TableError, match=f"file://{table}/b.parquet cannot be read as Parquet: "):
        world.score()


def test_files_that_come_later_are_not_of_the_run_and_one_that_changed_ends_it(world: World) -> None:
    world.write("a.parquet", pairs(6))
    world.write("b.parquet", pairs(6, start=6))
    world.score(0, shards=2)
    world.write("later/c.parquet", pairs(6, start=12))
    world.score(1, shards=2)
    assert [row["id"] for row in world.rows()] == list(range(12))
    world.write("b.parquet", pairs(1))
    next(iter(sorted(world.results.glob("part-00001-*.parquet")))).unlink()
    with pytest.raises(TableError, match=r"b.parquet changed since the run began \(it had 6 rows"):
        world.score(1, shards=2)


def test_lists_of_any_length_are_asked_with_their_like(world: World) -> None:
    world.model.specs = (TensorSpec(name="x", dtype="INT64", shape=(-1, -1)),)
    lists = [[1, 2], [3, 4], [5], [6, 7, 8], [9, 9, 9]]
    world.write("a.parquet", {"id": list(range(5)), "x": lists}, row_group=9)
    world.score()
    assert [row["sum"] for row in world.rows()] == [3.0, 7.0, 5.0, 21.0, 27.0]
    assert world.model.requests == [[1.0, 3.0], [5.0], [6.0, 9.0]]


def test_a_list_of_another_length_than_the_models_is_a_refused_row(world: World) -> None:
    world.write("a.parquet", {"id": [0, 1, 2], "x": [[1.0, 2.0], [3.0], [4.0, None]]})
    report = world.score(max_refused_rows=2)
    assert report.refused == 2
    (path,) = (world.results / "_refused").glob("*.parquet")
    assert [row["tidegate_reason"] for row in pq.read_table(path).to_pylist()] == [
        "column 'x' has 1 values, and input 'x' takes 2",
        "column 'x' has a null",
    ]


def test_texts_numbers_of_other_types_and_dictionaries_become_tensors(world: World) -> None:
    seen: list[Any] = []

    class Seeing(FakeModel):
        async def infer_outputs(
            self, request_id: str, inputs: Sequence[InferenceTensor]
        ) -> tuple[str, tuple[InferenceTensor, ...]]:
            seen.append([(one.name, one.array.tolist()) for one in inputs])
            return "1", (
                InferenceTensor(
                    "tags", "BYTES", np.array([[b"a", b"b"]] * len(inputs[0].array), dtype=np.object_)
                ),
                InferenceTensor("sum", "FP32", np.zeros((len(inputs[0].array), 1), dtype=np.float32)),
            )

    world.model = Seeing(
        specs=(
            TensorSpec(name="city", dtype="BYTES", shape=(-1, 1)),
            TensorSpec(name="n", dtype="FP64", shape=(-1,)),
        ),
        outputs=(
            TensorSpec(name="tags", dtype="BYTES", shape=(-1, 2)),
            TensorSpec(name="sum", dtype="FP32", shape=(-1, 1)),
        ),
    )
    city = pa.array(["Ulm", "Köln"]).dictionary_encode()
    world.write("a.parquet", {"id": [7, 8], "city": city, "n": pa.array([1, 2], pa.int8())})
    world.score(keep=("city", "id"))
    assert seen == [[("city", [[b"Ulm"], ["Köln".encode()]]), ("n", [1.0, 2.0])]]
    assert world.rows()[1] == {"city": "Köln", "id": 8, "tags": [b"a", b"b"], "sum": 0.0}


def test_a_model_without_a_batch_dimension_and_a_sink_of_another_run_are_refused(world: World) -> None:
    world.write("a.parquet", pairs(2))
    world.model.rows = 0
    with pytest.raises(TableError, match="its artefact has no batch dimension"):
        world.score()
    world.model.rows = 4
    with pytest.raises(TableError, match="the folder of run v1-abc is another run's"):
        world.score(shards=2)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_makes_no_plan_without_its_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    world.write("a.parquet", pairs(3))
    world.write("b/c.parquet", pairs(3, start=3))
    _unlisted(monkeypatch, "b", code)
    with pytest.raises(ArtefactError, match=r"/table/b (may not|cannot) be listed") as raised:
        world.score()
    assert raised.value.refusal.is_transient
    assert not world.results.exists()
    monkeypatch.undo()
    world.score()
    assert len(world.rows()) == 6


def test_what_the_file_system_keeps_at_the_top_of_a_claim_is_no_part_of_a_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = world.folder / "lake"
    for name in ("lost+found", "users"):
        (claim / name).mkdir(parents=True)
    (claim / "users" / "a.parquet").touch()
    _unlisted(monkeypatch, "lost+found", errno.EACCES)
    source = folder_source(parse_uri("pvc://lake/"), file_root=world.folder, pvc_root=world.folder)
    assert asyncio.run(source.list("")) == ("users/a.parquet",)
    (claim / "users" / "lost+found").mkdir()
    with pytest.raises(ArtefactError, match=r"users/lost\+found may not be listed"):
        asyncio.run(source.list(""))


def _unlisted(monkeypatch: pytest.MonkeyPatch, folder: str, code: int) -> None:
    real = os.scandir

    def scandir(path: str | os.PathLike[str]) -> Any:
        if Path(path).name == folder:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_shards_and_files_are_cut_evenly() -> None:
    files = (InputFile(path="a", size=1, rows=10), InputFile(path="b", size=1, rows=0))
    plan = TablePlan(run="r", source="s", shards=4, files=(*files, InputFile(path="c", size=1, rows=7)))
    assert [plan.shard_span(index) for index in range(4)] == [(0, 4), (4, 8), (8, 12), (12, 17)]
    assert [(one.file.path, one.start, one.end) for one in plan.split_by_file(RowSpan(8, 12))] == [
        ("a", 8, 10),
        ("c", 0, 2),
    ]
    assert list(RowSpan(4, 9).split_parts(2)) == [(4, 6), (6, 8), (8, 9)]
    assert plan.locate_row(12) == ("c", 2)
