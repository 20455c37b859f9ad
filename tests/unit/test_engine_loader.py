"""A runner loads the engines that the compiler writes, while it serves, and reports which it misses or cannot load."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from builders.timed_engine import TimedModel, ask, bucket_of, ways
from tidegate_dataplane.batching.join_check import TRIALS
from tidegate_dataplane.engines.bucket_shapes import BucketSizes
from tidegate_dataplane.engines.engine_folder import (
    MAX_NOTES_AGE_S,
    CompiledBucket,
    EngineFolder,
    RunnerNotes,
    describe_shape,
    find_engine_dir,
)
from tidegate_dataplane.engines.engine_loader import NO_OPENVINO, EngineLoader, ReadFile, RunnerFacts
from tidegate_dataplane.engines.engine_router import MIN_MISSES, EngineChoice, read_choice
from tidegate_dataplane.runner_interface import ENGINES_LOADED

NO_ROOM = "the engine may need 0 MiB, and 0 MiB are free beside what the next version needs: raise spec.resources.memory"


def make_loader(folder: EngineFolder, model: TimedModel, free_bytes: int | None = None) -> EngineLoader:
    def load_engine(bucket: CompiledBucket, read_file: ReadFile) -> TimedModel:
        if bucket.lookups:
            read_file(f"{bucket.lookups}.lookups", bucket.lookups)
        if read_file(bucket.file, bucket.sha256) == b"foreign":
            raise RuntimeError("another version")
        return model

    facts = RunnerFacts("m_0_0", ["y"], 1, lambda: free_bytes)
    return EngineLoader(folder, model.make_router(), load_engine, facts)


def write_engine(
    folder: EngineFolder, content: bytes, sha256: str | None = None, lookups: bytes | None = None
) -> None:
    folder.root.mkdir(parents=True, exist_ok=True)
    (folder.root / "a.blob").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest() if sha256 is None else sha256
    bucket = CompiledBucket(bucket_of(3, 4), "OpenVINO", "a.blob", digest)
    if lookups is not None:
        bucket = replace(bucket, lookups=hashlib.sha256(b"lookups").hexdigest())
        folder.lookups_path(bucket.lookups).write_bytes(lookups)
    folder.write_buckets([bucket])


def test_a_bucket_that_gets_no_engine_is_neither_counted_nor_written_again(tmp_path: Path) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    loader = make_loader(folder, model)
    ask(loader.router, model, 3, times=MIN_MISSES)
    loader.exchange_files()
    folder.write_buckets([CompiledBucket(bucket_of(3, 4), reason="OpenVINO is no faster")])
    loader.exchange_files()
    written = folder.read_notes()
    ask(loader.router, model, 3, times=MIN_MISSES)
    ask(loader.router, model, 5, times=MIN_MISSES)
    loader.exchange_files()
    assert dict(folder.read_notes().missed) == {**dict(written.missed), bucket_of(5, 4): MIN_MISSES}
    assert ways(loader.router) == (0, 3 * MIN_MISSES, 0)
    # The compiler tries it again once its list has lost it, as after a change of the order.
    folder.write_buckets([])
    loader.exchange_files()
    ask(loader.router, model, 3)
    assert dict(loader.router.read_notes().missed)[bucket_of(3, 4)] == MIN_MISSES + 1


def test_notes_of_a_runner_that_is_gone_count_no_more(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path / "engines")
    for runner in ("gone", "here"):
        folder.write_notes(runner, RunnerNotes(((bucket_of(3, 4), 9),), unpadded=(runner,)))
        path = folder.root / f"runner-{runner}.json"
        os.utime(path, (0, path.stat().st_mtime - 2 * MAX_NOTES_AGE_S))
    assert folder.read_notes() == RunnerNotes()
    folder.touch_notes("here")
    assert folder.read_notes() == RunnerNotes(((bucket_of(3, 4), 9),), unpadded=("here",))


def test_a_runner_touches_its_notes_while_they_stay_the_same(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path / "engines")
    loader = make_loader(folder, TimedModel())
    loader.exchange_files()
    path = folder.root / "runner-m_0_0.json"
    os.utime(path, (0, 0))
    loader.exchange_files()
    assert path.stat().st_mtime > 0
    # As when the agent empties the folder of a version that it orders again.
    path.unlink()
    loader.exchange_files()
    assert path.is_file()


@pytest.mark.parametrize(
    ("instances", "version_bytes", "loaded"), [(1, 0, 1), (3, 0, 0), (1, 15, 0), (2, 2, 1)]
)
def test_an_engine_leaves_room_for_the_next_version_and_the_other_processes(
    tmp_path: Path, instances: int, version_bytes: int, loaded: int
) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    facts = RunnerFacts("m_0_0", ["y"], 1, lambda: 26, instances, version_bytes)

    def load_engine(_: CompiledBucket, __: ReadFile) -> TimedModel:
        return model

    loader = EngineLoader(folder, model.make_router(), load_engine, facts)
    write_engine(folder, b"engine")
    loader.exchange_files()
    assert loader.read_counters()[ENGINES_LOADED, ""] == loaded
    assert folder.read_notes().refused == (() if loaded else ((bucket_of(3, 4), NO_ROOM),))


def test_orders_of_other_buckets_have_other_folders(tmp_path: Path) -> None:
    orders = [("OpenVINO", "FP32", (), ()), ("OpenVINO", "FP32", (8,), ()), ("OpenVINO", "FP32", (), (8,))]
    assert len({find_engine_dir(tmp_path, *order) for order in orders}) == len(orders)


def test_files_between_runner_and_compiler_survive_damage(tmp_path: Path) -> None:
    folder = EngineFolder(tmp_path / "engines")
    bucket = CompiledBucket(bucket_of(3, 4), "OpenVINO", "a.blob", "00", lookups="ab", checked=("x",))
    folder.write_buckets([bucket])
    assert folder.read_buckets() == (bucket,)
    folder.write_notes("a", RunnerNotes(((bucket_of(3, 4), 9),), ((bucket_of(1, 4), "wrong"),)))
    folder.write_notes("b", RunnerNotes(((bucket_of(3, 4), 2),), (), ("rows",), "none"))
    assert folder.read_notes() == RunnerNotes(
        ((bucket_of(3, 4), 11),), ((bucket_of(1, 4), "wrong"),), ("rows",), "none"
    )
    (folder.root / "runner-b.json").write_text('{"missed": [[1, 2]]}')
    (folder.root / "buckets.json").write_bytes(b'[{"shape": 1}]')
    assert folder.read_buckets() == ()
    assert folder.read_notes().missed == ((bucket_of(3, 4), 9),)
    assert describe_shape((("x", (3, 4)), ("c", ()))) == "x 3x4, c scalar"


def test_an_engine_is_loaded_once_and_serves(tmp_path: Path) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    loader = make_loader(folder, model)
    ask(loader.router, model, 3, times=MIN_MISSES)
    loader.exchange_files()
    assert folder.read_notes().missed == ((bucket_of(3, 4), MIN_MISSES),)
    write_engine(folder, b"engine")
    loader.exchange_files()
    loader.exchange_files()
    assert loader.read_counters()[ENGINES_LOADED, ""] == 1
    ask(loader.router, model, 3, times=TRIALS + 1)
    assert ways(loader.router)[0] == 1
    loader.exchange_files()
    assert folder.read_notes().missed == ()


@pytest.mark.parametrize(
    ("content", "sha256", "free_bytes", "reason"),
    [
        (b"engine", "00", None, "the engine cannot be loaded: its file is damaged"),
        (b"foreign", None, None, "the engine cannot be loaded: another version"),
        (b"engine", None, 2, NO_ROOM),
    ],
)
def test_an_engine_that_cannot_be_loaded_is_reported(
    tmp_path: Path, content: bytes, sha256: str | None, free_bytes: int | None, reason: str
) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    loader = make_loader(folder, model, free_bytes)
    write_engine(folder, content, sha256)
    loader.exchange_files()
    assert folder.read_notes().refused == ((bucket_of(3, 4), reason),)
    ask(loader.router, model, 3)
    assert model.engine_runs == []


@pytest.mark.parametrize(
    ("content", "free_bytes", "reason"),
    [
        (b"damaged", None, "the engine cannot be loaded: its file is damaged"),
        (b"lookups", 20, NO_ROOM),
        (b"lookups", 26, None),
    ],
)
def test_lookups_are_read_and_need_room_with_the_engine(
    tmp_path: Path, content: bytes, free_bytes: int | None, reason: str | None
) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    loader = make_loader(folder, model, free_bytes)
    write_engine(folder, b"engine", lookups=content)
    loader.exchange_files()
    assert dict(folder.read_notes().refused).get(bucket_of(3, 4)) == reason
    assert loader.read_counters()[ENGINES_LOADED, ""] == (reason is None)


def test_a_server_without_openvino_says_so(tmp_path: Path) -> None:
    folder, model = EngineFolder(tmp_path / "engines"), TimedModel()
    loader = EngineLoader(folder, model.make_router(), None, RunnerFacts("a", ["y"], 1, lambda: None))
    loader.exchange_files()
    assert folder.read_notes().problem == NO_OPENVINO


def test_the_choice_is_read_from_the_configuration() -> None:
    assert read_choice({"engine": "Auto", "precision": "FP32", "rows": [1], "lengths": []}) == EngineChoice(
        BucketSizes((1,)), measured=True
    )
    assert not read_choice({"engine": "OpenVINO", "precision": "BF16"}).measured
