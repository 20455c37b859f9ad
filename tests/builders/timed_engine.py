"""A model and an engine that take the time which a test sets, and requests of one integer input for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate_dataplane.batching.arrays import Answer, Inputs
from tidegate_dataplane.engines.bucket_shapes import BucketShape
from tidegate_dataplane.engines.engine_router import EngineChoice, EngineRouter, LoadedBucket
from tidegate_dataplane.engines.split_engine import UnfitRequestError
from tidegate_dataplane.runner_interface import BUCKETED, HIT, MISS, ORIGINAL

Array = NDArray[Any]
FREE = {"x": (True, True)}


def row_sums(x: Array) -> Array:
    return x.astype(np.float32).sum(axis=1)


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
