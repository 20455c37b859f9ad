"""Requests go to the engine of their bucket, and no answer is wrong or slower for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from builders.timed_engine import TimedModel, ask, bucket_of, row_sums, some_request, ways
from tidegate_dataplane.batching.arrays import Inputs
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
from tidegate_dataplane.engines.engine_router import MAX_REPORTED, MIN_MISSES, EngineChoice
from tidegate_dataplane.engines.speed_trial import TIMED, TRIAL_EVERY, SpeedTrial
from tidegate_dataplane.runner_interface import PADDED_ROWS

Array = NDArray[Any]


def slightly_more(factor: float) -> Callable[[Array], Array]:
    return lambda x: row_sums(x) * factor


def row_means(x: Array) -> Array:
    return x.astype(np.float32).mean(axis=1)


def shares(x: Array) -> Array:
    return row_sums(x) / row_sums(x).sum()


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


@pytest.mark.parametrize(("unfit_of_4", "is_used"), [(0, True), (1, True), (3, False), (4, False)])
def test_an_engine_whose_requests_are_mostly_unfit_is_used_no_more(unfit_of_4: int, is_used: bool) -> None:
    """An unfit request takes the time of the engine's check and that of the original."""
    model = TimedModel(per_element_s=1.0, engine_s=8.0)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))
    for number in range(4 * TRIALS + 4 * TIMED):
        # Requests that take turns would otherwise be the fit ones alone.
        model.fit_below = 0.0 if number // 2 % 4 < unfit_of_4 else 1e9
        ask(router, model, 4)
    refused = dict(router.read_notes().refused)
    assert (bucket_of(4, 4) not in refused) is is_used
    assert is_used or "no faster than ONNX Runtime where it is used: 1.00x" in refused[bucket_of(4, 4)]


def test_requests_that_the_model_refuses_too_are_not_timed() -> None:
    model = TimedModel(per_element_s=1.0, engine_s=8.0, fit_below=-10.0)
    router = model.make_router(EngineChoice(measured=True))
    router.add_bucket(model.load_bucket(4, 4))
    for _ in range(TRIALS + 4 * TIMED):
        assert isinstance(router.answer_request({"x": np.full((4, 4), -1)}), ValueError)
    assert router.read_notes().refused == ()


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
