"""Send each request to the engine of its bucket, or at once to the original graph."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate_dataplane.batching.arrays import Answer, Array, Inputs, OutputScales
from tidegate_dataplane.batching.join_check import JoinCheck
from tidegate_dataplane.engines.bucket_shapes import (
    LENGTH,
    MAX_GROWTH,
    MAX_MISSED,
    BucketShape,
    BucketSizes,
    MissedShapes,
    ShapeRounding,
    count_elements,
    count_rows,
    cut_rows,
    find_padding,
    pad_inputs,
    read_shape,
)
from tidegate_dataplane.engines.engine_folder import RunnerNotes
from tidegate_dataplane.engines.speed_trial import SpeedTrial
from tidegate_dataplane.engines.split_engine import UnfitRequestError
from tidegate_dataplane.runner_interface import BUCKETED, HIT, MISS, ORIGINAL, PADDED_ROWS

MIN_MISSES = 8
"""A bucket is compiled once this many requests have missed it: a shape that came once rarely comes back."""
MAX_REPORTED = 80
"""Missed buckets that the compiler gets to see: as many as it tries, and some more."""
MAX_REMEMBERED = 1024
TOO_MANY_SHAPES = f"requests have more than {MAX_MISSED} shapes without an engine: set spec.compile.buckets"
BF16_TOLERANCES = {"float16": 2e-2, "float32": 2e-2, "float64": 2e-2}


class Engine(Protocol):
    """A graph compiled for one shape."""

    def run_request(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in the model's order; raise UnfitRequestError for a request that the model must answer."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedBucket:
    """An engine and the shape that it takes."""

    shape: BucketShape
    engine: Engine


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the order asks for: `measured` uses an engine only where it is faster than the original graph."""

    sizes: BucketSizes = field(default_factory=BucketSizes)
    measured: bool = True
    precision: str = "FP32"


@dataclass(frozen=True, slots=True)
class _Route:
    bucket: LoadedBucket
    padded: frozenset[str]


class EngineRouter:
    """Routes the requests of one model version; `execute` runs the original graph.

    The answers of each bucket, and of each kind of padding in it, are compared with those of the original: at first all,
    which are answered by the original, and later samples. What differs is used no more.
    """

    def __init__(
        self,
        execute: Callable[[Inputs], Answer],
        choice: EngineChoice,
        free: Mapping[str, Sequence[bool]],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._execute, self._choice, self._clock = execute, choice, clock
        self._rounding = ShapeRounding(choice.sizes, free)
        self._buckets: dict[BucketShape, LoadedBucket] = {}
        self._added: list[LoadedBucket] = []
        self._decided: frozenset[BucketShape] = frozenset()
        self._has_news = False
        self._routes: dict[BucketShape, tuple[_Route | None, BucketShape | None]] = {}
        """By shape, where it goes, and the bucket that it misses unless it is clear what runs that."""
        self._checks: dict[tuple[BucketShape, frozenset[str]], JoinCheck] = {}
        self._unpadded: frozenset[str] = frozenset()
        self._refused: dict[BucketShape, str] = {}
        self._missed = MissedShapes()
        self._trials: dict[tuple[BucketShape, BucketShape], SpeedTrial] = {}
        self._counts = dict.fromkeys((HIT, MISS, ORIGINAL), 0)
        self._padded_rows = 0

    def add_bucket(self, bucket: LoadedBucket) -> None:
        """Use an engine from the next request on; may be called on another thread."""
        self._added.append(bucket)
        self._has_news = True

    def leave_to_original(self, shapes: frozenset[BucketShape]) -> None:
        """Count no more misses of these buckets, which get no engine; may be called on another thread."""
        if shapes != self._decided:
            self._decided = shapes
            self._has_news = True

    def answer_request(self, inputs: Inputs) -> Answer:
        """Return the answer of the engine of the request's bucket, or of the original graph."""
        started = self._clock()
        if self._has_news:
            self._take_news()
        shape = read_shape(inputs)
        route = self._find_route(shape)
        if route is None:
            self._counts[MISS] += 1
            return self._execute(inputs)
        trial = self._find_trial(shape, route.bucket) if self._choice.measured else None
        if trial is not None and not trial.picks_engine():
            self._counts[ORIGINAL] += 1
            # Without an engine, a request would not be routed either.
            started = self._clock()
            answer = self._execute(inputs)
            if not isinstance(answer, Exception):
                trial.record_original(self._clock() - started)
        else:
            answer, is_timed = self._answer_checked(inputs, shape, route)
            if trial is not None and is_timed:
                trial.record_engine(self._clock() - started)
        if trial is not None and trial.is_slower and shape == route.bucket.shape in self._buckets:
            self.refuse_bucket(
                shape, f"OpenVINO is no faster than ONNX Runtime where it is used: {trial.ratio:.2f}x"
            )
        return answer

    def read_notes(self) -> RunnerNotes:
        """Return the buckets to compile and those that were refused; may be called on another thread."""
        missed = [entry for entry in self._missed.list_frequent(MIN_MISSES) if entry[0] not in self._buckets]
        return RunnerNotes(
            tuple(missed[:MAX_REPORTED]),
            tuple(dict(self._refused).items()),
            tuple(sorted(self._unpadded)),
            TOO_MANY_SHAPES if self._missed.is_full else "",
        )

    def report_refusal(self, shape: BucketShape, reason: str) -> None:
        """Tell the compiler that an engine was not loaded; may be called on another thread."""
        self._refused[shape] = reason
        self._has_news = True

    def refuse_bucket(self, shape: BucketShape, reason: str) -> None:
        """Use the engine of a bucket no more, and tell the compiler why."""
        self._refused[shape] = reason
        self._buckets.pop(shape, None)
        self._routes.clear()

    def read_counters(self) -> dict[tuple[str, str], int]:
        """Return the counts since the start, by name and way."""
        ways = {(BUCKETED, way): count for way, count in self._counts.items()}
        return {**ways, (PADDED_ROWS, ""): self._padded_rows}

    def _take_news(self) -> None:
        self._has_news = False
        while self._added:
            bucket = self._added.pop()
            self._buckets[bucket.shape] = bucket
        self._routes.clear()

    def _find_route(self, shape: BucketShape) -> _Route | None:
        """Return the bucket of a shape, and count a miss if it should have another one."""
        entry = self._routes.get(shape)
        if entry is None:
            if len(self._routes) >= MAX_REMEMBERED:
                self._routes.clear()
            target = self._rounding.round_shape(shape, self._unpadded) if count_rows(shape) else None
            is_clear = target in self._buckets or target in self._refused or target in self._decided
            entry = self._search_route(shape, target), None if is_clear else target
            self._routes[shape] = entry
        route, missed = entry
        if missed is not None:
            self._missed.count_miss(missed)
        return route

    def _search_route(self, shape: BucketShape, target: BucketShape | None) -> _Route | None:
        """Return the smallest bucket that covers the shape."""
        routes: list[_Route] = []
        for bucket in self._buckets.values():
            padded = find_padding(shape, bucket.shape)
            if padded is None or padded & self._unpadded:
                continue
            grows = count_elements(bucket.shape) > MAX_GROWTH * count_elements(shape)
            if bucket.shape == target or not grows:
                routes.append(_Route(bucket, padded))
        return min(routes, key=lambda route: count_elements(route.bucket.shape), default=None)

    def _find_trial(self, shape: BucketShape, bucket: LoadedBucket) -> SpeedTrial:
        key = shape, bucket.shape
        if key not in self._trials:
            if len(self._trials) >= MAX_REMEMBERED:
                self._trials.clear()
            self._trials[key] = SpeedTrial()
        return self._trials[key]

    def _answer_checked(self, inputs: Inputs, shape: BucketShape, route: _Route) -> tuple[Answer, bool]:
        """Return the answer, and whether it took what requests take with the engine: no comparison, no failure."""
        check = self._find_check(route)
        answer = _execute_engine(inputs, shape, route)
        is_trusted = not isinstance(answer, Exception) and not check.pick_requests(1)
        if is_trusted:
            self._counts[HIT] += 1
            if route.padded:
                self._padded_rows += count_rows(route.bucket.shape) - count_rows(shape)
            return answer, True
        self._counts[ORIGINAL] += 1
        original = self._execute(inputs)
        if isinstance(answer, UnfitRequestError):
            # Such requests pay for both, so a bucket that often gets them must end with the original.
            return original, not isinstance(original, Exception)
        if isinstance(answer, Exception):
            if not isinstance(original, Exception):
                self.refuse_bucket(route.bucket.shape, f"the engine fails: {answer}")
        elif not check.compare_answers([(original, answer)]):
            self._refuse_route(route, inputs, original)
        return original, False

    def _find_check(self, route: _Route) -> JoinCheck:
        key = route.bucket.shape, route.padded
        if key not in self._checks:
            is_bf16 = self._choice.precision == "BF16"
            self._checks[key] = JoinCheck(OutputScales(BF16_TOLERANCES) if is_bf16 else OutputScales())
        return self._checks[key]

    def _refuse_route(self, route: _Route, inputs: Inputs, original: Answer) -> None:
        """Find out whether the padding or the engine makes the answer differ, and use it no more."""
        if isinstance(original, Exception):
            self.refuse_bucket(
                route.bucket.shape, f"the engine answers a request that the model refuses: {original}"
            )
            return
        if route.padded:
            padded = self._execute(pad_inputs(inputs, route.bucket.shape))
            rows = count_rows(read_shape(inputs)), count_rows(route.bucket.shape)
            if isinstance(padded, Exception) or not OutputScales().is_same_answer(
                original, cut_rows(padded, *rows)
            ):
                # With both kinds, the rows get another trial.
                self._unpadded |= route.padded & {LENGTH} or route.padded
                self._routes.clear()
                return
        self.refuse_bucket(route.bucket.shape, "the answers of the engine differ from those of the model")


def _execute_engine(inputs: Inputs, shape: BucketShape, route: _Route) -> Answer:
    bucket = route.bucket
    try:
        if not route.padded:
            return bucket.engine.run_request(inputs)
        outputs = bucket.engine.run_request(pad_inputs(inputs, bucket.shape))
    except Exception as error:  # noqa: BLE001 - whatever an engine raises, the original graph answers
        return error
    return cut_rows(outputs, count_rows(shape), count_rows(bucket.shape))


def read_choice(content: Mapping[str, Any]) -> EngineChoice:
    """Return the choice of a model's configuration."""
    sizes = BucketSizes(tuple(content.get("rows", ())), tuple(content.get("lengths", ())))
    return EngineChoice(sizes, content["engine"] == "Auto", str(content["precision"]))
