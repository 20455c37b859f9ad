"""The demo's load: every request is counted, and only right answers are good ones."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.load import Batch, Load, LoadReport, Sample, Tensors
from tidegate_localcluster.demo.scoring import Answer

TIMEOUT_S = 10.0
RIGHT = {"1": np.array([0.1, 0.2], dtype=np.float32), "2": np.array([0.3, 0.4], dtype=np.float32)}


class FakeScorer:
    """Answers the n-th request by `answer(n)`."""

    def __init__(self, answer: Callable[[int], Answer]) -> None:
        self._answer = answer
        self._number = count()
        self.closed = False

    def score(self, inputs: Tensors) -> Answer:
        return self._answer(next(self._number))

    def close(self) -> None:
        self.closed = True


def a_load(answer: Callable[[int], Answer], *, threads: int = 2, max_seconds: float = TIMEOUT_S) -> Load:
    batches = [Batch(inputs={}, expected=RIGHT)] * 8
    return Load(lambda: FakeScorer(answer), batches, threads=threads, max_seconds=max_seconds)


def test_answers_are_counted_by_the_version_that_gave_them() -> None:
    def answer(number: int) -> Answer:
        version = "1" if number < 50 else "2"
        return Answer(RIGHT[version], version)

    with a_load(answer, threads=1) as load:
        load.wait_for("2", 1, TIMEOUT_S)
        report = load.finish()
    assert report.failed == 0
    assert report.versions["1"] == 50
    assert sum(report.versions.values()) == report.sent


def test_scores_of_another_version_than_named_are_failures() -> None:
    with a_load(lambda number: Answer(RIGHT["1" if number else "2"], "1")) as load:
        load.wait_for("1", 10, TIMEOUT_S)
        report = load.finish()
    assert report.failed == 2
    assert report.errors == ("2 × an answer of version 1 that is not that version's",)


def test_a_version_that_was_never_published_is_a_failure() -> None:
    with a_load(lambda number: Answer(RIGHT["1"], "1" if number else "7")) as load:
        load.wait_for("1", 10, TIMEOUT_S)
        report = load.finish()
    assert report.failed == 2
    assert "version '7', which was never published" in report.errors[0]


def test_an_error_is_counted_and_does_not_end_the_load() -> None:
    def answer(number: int) -> Answer:
        if number == 3:
            raise InferenceServerException("no healthy upstream")
        return Answer(RIGHT["1"], "1")

    with a_load(answer) as load:
        load.wait_for("1", 20, TIMEOUT_S)
        report = load.finish()
    assert report.failed == 2
    assert "no healthy upstream" in report.errors[0]
    assert "1" in report.versions
    assert None not in report.versions


def test_waiting_for_a_version_that_never_comes_says_who_answers() -> None:
    expected = pytest.raises(DemoError, match=r"version 2 gave 0 of 1 answers.*\{'1': \d+\}, failed: 0")
    with a_load(lambda _: Answer(RIGHT["1"], "1"), max_seconds=0.2) as load, expected:
        load.wait_for("2", 1, TIMEOUT_S)


def test_the_load_ends_by_itself() -> None:
    with a_load(lambda _: Answer(RIGHT["1"], "1"), max_seconds=0.05) as load:
        for thread in load._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def test_connections_are_closed_when_the_load_ends() -> None:
    scorers: list[FakeScorer] = []

    def a_scorer() -> FakeScorer:
        scorers.append(FakeScorer(lambda _: Answer(RIGHT["1"], "1")))
        return scorers[-1]

    with Load(a_scorer, [Batch({}, RIGHT)] * 4, threads=3):
        pass
    assert [scorer.closed for scorer in scorers] == [True] * 3


def test_quantiles_are_of_right_answers_alone() -> None:
    samples = [Sample(seconds / 1000, "1") for seconds in range(1, 101)] + [Sample(9.0, error="late")]
    report = LoadReport(samples, 1.0)
    assert report.quantile_ms(0.5) == pytest.approx(50.5)
    assert report.quantile_ms(0.99) == pytest.approx(99.01)
    assert LoadReport([], 1.0).quantile_ms(0.5) == 0.0
