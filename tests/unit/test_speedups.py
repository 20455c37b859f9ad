"""How long the speed-up of a graph is measured, by a clock that the graphs themselves advance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tidegate_dataplane.graph_passes.constants import Array
from tidegate_dataplane.graph_passes.proof import (
    MIN_PRECISE_RUNS,
    MIN_RUN_SECONDS,
    MIN_RUNS,
    RUN_SECONDS,
    measure_speedups,
)
from tidegate_dataplane.graph_passes.samples import Request

REQUEST: Request = {"ids": np.array([1])}


@dataclass
class FakeClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedGraph:
    """Takes each of `seconds` in turn."""

    clock: FakeClock
    seconds: Sequence[float]
    runs: int = 0
    _turns: itertools.cycle[float] = field(init=False)

    def __post_init__(self) -> None:
        self._turns = itertools.cycle(self.seconds)

    def run_request(self, request: Request) -> list[Array]:
        self.runs += 1
        self.clock.now += next(self._turns)
        return [request["ids"]]


def measure_graphs(original: Sequence[float], rewritten: Sequence[float]) -> tuple[float, int]:
    """Return the speed-up and the runs of each graph."""
    clock = FakeClock()
    graphs = TimedGraph(clock, original), TimedGraph(clock, rewritten)
    [ratio] = measure_speedups(*graphs, [(REQUEST, REQUEST)], clock)
    assert graphs[0].runs == graphs[1].runs
    return ratio, graphs[0].runs


def test_a_steady_graph_is_measured_for_a_tenth_of_the_time() -> None:
    ratio, runs = measure_graphs([0.002], [0.001])
    assert (ratio, runs) == (pytest.approx(2), MIN_PRECISE_RUNS)


def test_short_runs_are_not_judged_before_they_have_taken_long_enough() -> None:
    ratio, runs = measure_graphs([0.0001], [0.0001])
    assert ratio == pytest.approx(1)
    assert MIN_RUN_SECONDS / 0.0001 <= runs < 2 * MIN_RUN_SECONDS / 0.0001


def test_a_graph_whose_times_vary_is_measured_for_the_whole_time() -> None:
    varying = [0.001, 0.003, 0.001, 0.002]
    ratio, runs = measure_graphs(varying, varying)
    assert ratio == pytest.approx(1)
    assert runs == pytest.approx(RUN_SECONDS / 0.00175, abs=1)


def test_a_graph_that_takes_long_runs_a_few_times() -> None:
    assert measure_graphs([3.0], [1.0]) == (pytest.approx(3), MIN_RUNS)


def test_the_closer_two_graphs_are_the_longer_they_are_measured() -> None:
    varying = [0.00100, 0.00102, 0.00100, 0.00104]
    _, runs_of_equal = measure_graphs(varying, varying)
    _, runs_of_unequal = measure_graphs([2 * seconds for seconds in varying], varying)
    assert MIN_PRECISE_RUNS <= runs_of_unequal < runs_of_equal < RUN_SECONDS / 0.00104
