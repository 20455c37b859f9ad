"""Requests go to the engine of their bucket, and no answer is wrong or slower for it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tidegate_dataplane.batching.arrays import Answer, Inputs
from tidegate_dataplane.batching.join_check import CHECK_EVERY, TRIALS
from tidegate_dataplane.engines import engine_router
from tidegate_dataplane.engines.bucket_shapes import (
    MAX_MISSED,
    BucketShape,
    BucketSizes,
    MissedShapes,
    ShapeRounding,
    find_padding,
    pad_inputs,
    read_shape,
)
from tidegate_dataplane.engines.engine_folder import (
    MAX_NOTES_AGE_S,
    CompiledBucket,
    EngineFolder,
    RunnerNotes,
    describe_shape,
    find_engine_dir,
)
from tidegate_dataplane.engines.engine_loader import NO_OPENVINO, EngineLoader, ReadFile, RunnerFacts
from tidegate_dataplane.engines.engine_router import (
    MAX_REPORTED,
    MIN_MISSES,
    EngineChoice,
    EngineRouter,
    LoadedBucket,
    read_choice,
)
from tidegate_dataplane.engines.speed_trial import TIMED, TRIAL_EVERY, SpeedTrial
from tidegate_dataplane.engines.split_engine import UnfitRequestError
from tidegate_dataplane.runner_interface import BUCKETED, ENGINES_LOADED, HIT, MISS, ORIGINAL, PADDED_ROWS

Array = NDArray[Any]
FREE = {"x": (True, True)}
NO_ROOM = "the engine may need 0 MiB, and 0 MiB are free beside what the next version needs: raise spec.resources.memory"


def row_sums(x: Array) -> Array:
    return x.astype(np.float32).sum(axis=1)


def slightly_more(factor: float) -> Callable[[Array], Array]:
    return lambda x: row_sums(x) * factor


def row_means(x: Array) -> Array:
    return x.astype(np.float32).mean(axis=1)


def shares(x: Array) -> Array:
    return row_sums(x) / row_sums(x).sum()


@dataclass
class TimedModel:
    """A model of one input `x`, and an engine of it; each takes a time that the test sets."""

    score: Any = row_sums
    engine_score: Any = None
    per_element_s: float = 1.0
    engine_s: float = 1.0
    fit_below: float = 1e9
    now_s: float = 0.0
    executed: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    engine_runs: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def execute(self, inputs: Inputs) -> Answer:
        self.executed.append(inputs["x"].shape)
        self.now_s += self.per_element_s * inputs["x"].size
        return ValueError("below zero") if (inputs["x"] < 0).any() else [self.score(inputs["x"])]

    def run_request(self, inputs: Mapping[str, Array]) -> list[Array]:
        if (inputs["x"] > self.fit_below).any():
            raise UnfitRequestError
        self.engine_runs.append(inputs["x"].shape)
        self.now_s += self.engine_s
        return [(self.engine_score or self.score)(inputs["x"])]

    def make_router(self, choice: EngineChoice | None = None) -> EngineRouter:
        choice = EngineChoice(measured=False) if choice is None else choice
        return EngineRouter(self.execute, choice, FREE, clock=lambda: self.now_s)

    def load_bucket(self, *shape: int) -> LoadedBucket:
        return LoadedBucket(bucket_of(*shape), self)


def bucket_of(*shape: int) -> BucketShape:
    return (("x", shape),)


def some_request(rows: int, length: int = 4) -> dict[str, Array]:
    return {"x": np.arange(1, 1 + rows * length, dtype=np.int64).reshape(rows, length)}


def ask(router: EngineRouter, model: TimedModel, rows: int, length: int = 4, times: int = 1) -> None:
    """Send requests and check each answer."""
    for _ in range(times):
        answer = router.answer_request(some_request(rows, length))
        assert not isinstance(answer, Exception)
        np.testing.assert_allclose(answer[0], model.score(some_request(rows, length)["x"]), rtol=1e-6)


def ways(router: EngineRouter) -> tuple[int, int, int]:
    counts = router.read_counters()
    return counts[BUCKETED, HIT], counts[BUCKETED, MISS], counts[BUCKETED, ORIGINAL]


def test_a_request_without_a_bucket_is_answered_by_the_original_at_once_and_counted_as_missed() -> None:
    model = TimedModel()
    router = model.make_router()
    ask(router, model, 3, times=MIN_MISSES)
    ask(router, model, 5)
    assert ways(router) == (0, MIN_MISSES + 1, 0)
    assert router.read_notes().missed == ((bucket_of(3, 4), MIN_MISSES),)


def test_a_bucket_is_on_trial_and_then_answers_alone() -> None:
    model = TimedModel()
    router = model.make_router()
    router.add_bucket(model.load_bucket(3, 4))
    ask(router, model, 3, times=TRIALS + 5)
    assert ways(router) == (5, 0, TRIALS)
    assert len(model.executed) == TRIALS
    ask(router, model, 3, times=CHECK_EVERY)
    assert len(model.executed) == TRIALS + 1


def test_rows_are_padded_to_a_larger_bucket_and_cut_from_the_answer() -> None:
    model = TimedModel()
    router = model.make_router()
    router.add_bucket(model.load_bucket(8, 4))
    ask(router, model, 6, times=TRIALS + 2)
    assert set(model.engine_runs) == {(8, 4)}
    assert router.read_counters()[PADDED_ROWS, ""] == 2 * 2
    # It has none of its own yet.
    assert router.read_notes().missed == ((bucket_of(6, 4), TRIALS + 2),)
    ask(router, model, 3)
    assert ways(router)[1] == 1, "8 rows for 3 are too many"


def test_listed_sizes_are_the_buckets_and_what_is_beyond_them_has_none() -> None:
    model = TimedModel()
    router = model.make_router(EngineChoice(BucketSizes(rows=(1, 16), lengths=(10,)), measured=False))
    ask(router, model, 2, 7, times=MIN_MISSES)
    ask(router, model, 17, 7, times=MIN_MISSES)
    ask(router, model, 2, 11, times=MIN_MISSES)
    assert router.read_notes().missed == ((bucket_of(16, 10), MIN_MISSES),)
    router.add_bucket(model.load_bucket(16, 10))
    ask(router, model, 2, 7, times=TRIALS + 1)
    assert ways(router)[0] == 1


def test_a_length_whose_padding_changes_the_answer_is_not_padded_again() -> None:
    model = TimedModel(score=row_means)
    router = model.make_router(EngineChoice(BucketSizes(lengths=(10,)), measured=False))
    router.add_bucket(model.load_bucket(2, 10))
    ask(router, model, 2, 7, times=MIN_MISSES + 1)
    assert ways(router)[0] == 0
    notes = router.read_notes()
    assert notes.unpadded == ("length",)
    assert notes.refused == ()
    assert notes.missed == ((bucket_of(2, 7), MIN_MISSES),)
    ask(router, model, 2, 10, times=TRIALS + 1)
    assert ways(router)[0] == 1, "the engine itself is right"


def test_rows_that_depend_on_each_other_are_not_padded() -> None:
    model = TimedModel(score=shares)
    router = model.make_router()
    router.add_bucket(model.load_bucket(8, 4))
    ask(router, model, 6, times=2)
    assert router.read_notes().unpadded == ("rows",)
    assert len(model.engine_runs) == 1


def test_an_engine_that_answers_wrongly_is_found_out_and_used_no_more() -> None:
    model = TimedModel(engine_score=slightly_more(1.001))
    router = model.make_router()
    router.add_bucket(model.load_bucket(3, 4))
    ask(router, model, 3, times=3)
    assert len(model.engine_runs) == 1
    [(shape, reason)] = router.read_notes().refused
    assert (shape, "differ" in reason) == (bucket_of(3, 4), True)
    assert router.read_notes().missed == ()


def test_bf16_may_differ_by_its_own_tolerance() -> None:
    model = TimedModel(engine_score=slightly_more(1.005))
    router = model.make_router(EngineChoice(measured=False, precision="BF16"))
    router.add_bucket(model.load_bucket(3, 4))
    for _ in range(TRIALS + 1):
        router.answer_request(some_request(3))
    assert ways(router)[0] == 1
    assert router.read_notes().refused == ()


def test_an_engine_that_fails_or_answers_what_the_model_refuses_is_used_no_more() -> None:
    def fail(_: Array) -> Array:
        raise RuntimeError("no kernel")

    for engine_score, inputs, text in (
        (fail, some_request(3), "no kernel"),
        (None, {"x": -some_request(3)["x"]}, "refuses"),
    ):
        model = TimedModel(engine_score=engine_score)
        router = model.make_router()
        router.add_bucket(model.load_bucket(3, 4))
        answer = router.answer_request(inputs)
        assert isinstance(answer, Exception) == (engine_score is None)
        [(_, reason)] = router.read_notes().refused
        assert text in reason


def test_a_request_that_an_engine_does_not_take_goes_to_the_original_and_ends_nothing() -> None:
    model = TimedModel(fit_below=9)
    router = model.make_router()
    router.add_bucket(model.load_bucket(2, 4))
    ask(router, model, 2)
    answer = router.answer_request({"x": some_request(2)["x"] + 2})
    assert not isinstance(answer, Exception)
    assert len(model.engine_runs) == 1
    assert router.read_notes().refused == ()
    ask(router, model, 2, times=TRIALS)
    assert ways(router) == (1, 0, TRIALS + 1)


def test_a_measured_engine_that_is_faster_answers_and_is_tried_again_later() -> None:
    model = TimedModel(per_element_s=1.0, engine_s=14.0)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))
    ask(router, model, 4, times=TRIALS + 2 * TIMED)
    assert ways(router) == (TIMED, 0, TRIALS + TIMED), "they take turns"
    ask(router, model, 4, times=TRIAL_EVERY)
    checks = TRIAL_EVERY // CHECK_EVERY
    assert ways(router) == (TIMED + TRIAL_EVERY - checks, 0, TRIALS + TIMED + checks)
    model.engine_s = 40.0
    ask(router, model, 4, times=2 * TIMED + 2)
    assert (
        "no faster than ONNX Runtime where it is used: 0.40x"
        in dict(router.read_notes().refused)[bucket_of(4, 4)]
    )


@pytest.mark.parametrize(("engine_s", "is_used"), [(15.4, True), (15.7, False), (16.5, False)])
def test_a_measured_engine_that_gains_too_little_is_used_no_more(engine_s: float, is_used: bool) -> None:
    model = TimedModel(per_element_s=1.0, engine_s=engine_s)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))
    ask(router, model, 4, times=TRIALS + 2 * TIMED)
    runs = len(model.engine_runs)
    ask(router, model, 4, times=50)
    assert (len(model.engine_runs) - runs, not router.read_notes().refused) == (
        (50, True) if is_used else (0, False)
    )


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


def test_an_engine_pays_for_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routing takes time as well, which a request without an engine does not have."""
    model = TimedModel(per_element_s=1.0, engine_s=15.4)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))

    def read_slowly(inputs: Inputs) -> BucketShape:
        model.now_s += 0.4
        return read_shape(inputs)

    monkeypatch.setattr(engine_router, "read_shape", read_slowly)
    ask(router, model, 4, times=TRIALS + 2 * TIMED)
    [(_, reason)] = router.read_notes().refused
    assert "1.01x" in reason, "16 s alone over 15.4 s and 0.4 s"


def test_trials_that_the_original_wins_again_and_again_come_less_often() -> None:
    trial = SpeedTrial()
    gaps: list[int] = []

    def run_trial() -> None:
        for _ in range(2 * TIMED):
            (trial.record_engine if trial.picks_engine() else trial.record_original)(1.0)

    def count_until_next() -> int:
        count = 1
        while not trial.picks_engine():
            trial.record_original(1.0)
            count += 1
        trial.record_engine(1.0)
        return count

    run_trial()
    for _ in range(6):
        gaps.append(count_until_next() // TRIAL_EVERY)
        run_trial()
    assert gaps == [1, 2, 4, 8, 16, 16]


def test_fewer_rows_than_those_of_a_measured_engine_have_their_own_trial() -> None:
    model = TimedModel(per_element_s=1.0, engine_s=14.0)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))
    ask(router, model, 3, times=TRIALS + 2 * TIMED)
    runs = len(model.engine_runs)
    ask(router, model, 3, times=50)
    assert len(model.engine_runs) == runs, "12 elements are cheaper in the original"
    ask(router, model, 4, times=TRIALS + 2 * TIMED + 50)
    assert len(model.engine_runs) == runs + TRIALS + TIMED + 50
    assert router.read_notes().refused == ()


def test_one_off_shapes_take_bounded_memory_and_displace_no_frequent_one() -> None:
    missed = MissedShapes()
    for number in range(10_000):
        missed.count_miss(bucket_of(number + 10, 4))
        missed.count_miss(bucket_of(3, 4))
    frequent = missed.list_frequent(MIN_MISSES)
    assert [shape for shape, _ in frequent] == [bucket_of(3, 4)]
    assert len(missed.list_frequent(0)) <= MAX_MISSED


def test_more_shapes_than_are_counted_still_come_often_and_are_reported() -> None:
    model = TimedModel()
    router = model.make_router()
    for _ in range(3 * MIN_MISSES):
        for rows in range(1, MAX_MISSED + 45):
            router.answer_request(some_request(rows, 1))
    notes = router.read_notes()
    assert len(notes.missed) == MAX_REPORTED
    assert notes.problem == "requests have more than 256 shapes without an engine: set spec.compile.buckets"
    assert model.make_router().read_notes().problem == ""


def test_padding_repeats_the_last_row_and_fills_with_zeros() -> None:
    request = {"x": np.array([[1, 2], [3, 4]]), "s": np.array([["a"]], dtype=object), "c": np.array(5)}
    padded = pad_inputs(request, (("x", (3, 3)), ("s", (1, 2)), ("c", ())))
    assert padded["x"].tolist() == [[1, 2, 0], [3, 4, 0], [3, 4, 0]]
    assert padded["s"].tolist() == [["a", ""]]
    assert padded["c"].tolist() == 5


@pytest.mark.parametrize(
    ("shape", "bucket", "kinds"),
    [
        ((3, 4), (3, 4), frozenset[str]()),
        ((3, 4), (4, 4), {"rows"}),
        ((3, 4), (3, 5), {"length"}),
        ((3, 4), (2, 4), None),
        ((3, 4), (3,), None),
        ((0, 4), (3, 4), None),
    ],
)
def test_which_dimensions_a_bucket_pads(
    shape: tuple[int, ...], bucket: tuple[int, ...], kinds: frozenset[str] | None
) -> None:
    assert find_padding(bucket_of(*shape), bucket_of(*bucket)) == kinds


def test_fixed_dimensions_and_rows_of_a_model_without_any_are_not_rounded() -> None:
    rounding = ShapeRounding(BucketSizes(rows=(8,), lengths=(16,)), {"x": (False, True), "y": (True, False)})
    shape = (("x", (3, 4)), ("y", (3, 4)))
    assert rounding.round_shape(shape, frozenset()) == (("x", (3, 16)), ("y", (8, 4)))
    assert rounding.round_shape(shape, frozenset({"rows", "length"})) == shape


def test_one_row_beside_more_rows_is_not_rounded() -> None:
    rounding = ShapeRounding(BucketSizes(rows=(8, 16)), {"user": (True, True), "item": (True,)})
    shared = (("user", (1, 4)), ("item", (3,)))
    assert rounding.round_shape(shared, frozenset()) == (("user", (1, 4)), ("item", (8,)))
    one = (("user", (1, 4)), ("item", (1,)))
    assert rounding.round_shape(one, frozenset()) == (("user", (8, 4)), ("item", (8,)))


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
