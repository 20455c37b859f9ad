"""The demo's load: every request is counted, and an answer that is no model's is told apart from none."""

from collections.abc import Callable
from itertools import count
from threading import Event
from time import monotonic
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tidegate_localcluster.demo import load as demo_load
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.load import (
    TEXTS_KEPT,
    CheckedLoad,
    LatencyHistogram,
    LoadReport,
    ScoringBatch,
    Tensors,
)
from tidegate_localcluster.demo.scoring import ScoredAnswer

TIMEOUT_S = 10.0
RIGHT = {"1": np.array([0.1, 0.2], dtype=np.float32), "2": np.array([0.3, 0.4], dtype=np.float32)}


class FakeScorer:
    """Answers the n-th request by `answer(n)`."""

    def __init__(self, answer: Callable[[int], ScoredAnswer]) -> None:
        self._answer = answer
        self._number = count()
        self.closed = False

    def score(self, inputs: Tensors) -> ScoredAnswer:
        return self._answer(next(self._number))

    def close(self) -> None:
        self.closed = True


def a_load(
    answer: Callable[[int], ScoredAnswer], *, threads: int = 2, max_seconds: float = TIMEOUT_S
) -> CheckedLoad:
    batches = [ScoringBatch(inputs={}, expected=RIGHT)] * 8
    return CheckedLoad(lambda: FakeScorer(answer), batches, threads=threads, max_seconds=max_seconds)


def test_answers_are_counted_by_the_version_that_gave_them() -> None:
    def answer(number: int) -> ScoredAnswer:
        version = "1" if number < 50 else "2"
        return ScoredAnswer(RIGHT[version], version)

    with a_load(answer, threads=1) as load:
        load.wait_for("2", 1, TIMEOUT_S)
        report = load.finish()
    assert report.problems == ()
    assert report.versions["1"] == 50
    assert sum(report.versions.values()) == report.sent


def scores(*values: float, dtype: type = np.float32) -> Any:
    return np.array(values, dtype=dtype)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(
            ScoredAnswer(RIGHT["2"], "1"),
            "an answer of version 1 that is not that version's: [0.30000001192092896, 0.4000000059604645] "
            "instead of [0.10000000149011612, 0.20000000298023224]",
            id="another version's",
        ),
        pytest.param(ScoredAnswer(scores(0.1, 0.2001), "1"), "not that version's", id="a wrong value"),
        pytest.param(ScoredAnswer(scores(0.1, np.nan), "1"), "not that version's: [0.1", id="NaN"),
        pytest.param(ScoredAnswer(scores(0.1, np.inf), "1"), "not that version's: [0.1", id="infinity"),
        pytest.param(ScoredAnswer(scores(0.1), "1"), "not that version's: [0.1", id="a row is missing"),
        pytest.param(ScoredAnswer(scores(0.1, 0.2, 0.3), "1"), "not that version's", id="a row too many"),
        pytest.param(ScoredAnswer(scores(), "1"), "not that version's: []", id="no rows"),
        pytest.param(ScoredAnswer(scores(0.1, 0.2)[:, None], "1"), "not that version's", id="another shape"),
        pytest.param(
            ScoredAnswer(scores(0.1, 0.2, dtype=np.float64), "1"), "not that version's", id="float64"
        ),
        pytest.param(
            ScoredAnswer(np.asarray(None).ravel(), "1"), "not that version's: [None]", id="no tensor"
        ),
        pytest.param(
            ScoredAnswer(RIGHT["1"], "7"), "version '7', which was never published", id="unpublished"
        ),
        pytest.param(ScoredAnswer(RIGHT["1"], ""), "version '', which was never published", id="no version"),
    ],
)
def test_an_answer_that_is_no_models_is_wrong_and_has_not_failed(answer: ScoredAnswer, text: str) -> None:
    with a_load(lambda number: ScoredAnswer(RIGHT["1"], "1") if number else answer, threads=1) as load:
        load.wait_for("1", 10, TIMEOUT_S)
        report = load.finish()
    assert (report.failed, report.wrong) == (0, 1)
    assert report.sent == report.versions["1"] + 1
    assert report.problems[0] == f"1 of {report.sent} wrong"
    assert report.problems[1].startswith("1 × ")
    assert text in report.problems[1]


@pytest.mark.parametrize(
    "error", [InferenceServerException("no healthy upstream"), ConnectionError("no healthy upstream")]
)
def test_an_error_has_failed_and_does_not_end_the_load(error: Exception) -> None:
    def answer(number: int) -> ScoredAnswer:
        if number == 3:
            raise error
        return ScoredAnswer(RIGHT["1"], "1")

    with a_load(answer, threads=1) as load:
        load.wait_for("1", 20, TIMEOUT_S)
        report = load.finish()
    assert (report.failed, report.wrong) == (1, 0)
    assert report.errors == ("1 × no healthy upstream",)
    assert report.problems == (f"1 of {report.sent} failed", *report.errors)
    assert report.versions.keys() == {"1"}


def test_a_request_that_is_never_answered_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Event()

    def answer(number: int) -> ScoredAnswer:
        if number:
            over.wait(TIMEOUT_S)
        return ScoredAnswer(RIGHT["1"], "1")

    with a_load(answer, threads=1) as load:
        load.wait_for("1", 1, TIMEOUT_S)
        monkeypatch.setattr(demo_load, "JOIN_TIMEOUT_S", 0.01)
        report = load.finish()
        over.set()
        monkeypatch.undo()
    assert (report.sent, report.failed) == (2, 1)
    assert "no answer" in report.errors[0]


def test_errors_that_all_differ_are_counted_and_only_some_of_them_kept() -> None:
    def answer(number: int) -> ScoredAnswer:
        raise InferenceServerException(f"connection {number} is closed")

    with a_load(answer, threads=1) as load:
        load.wait_failed(500, TIMEOUT_S)
        report = load.finish()
    assert report.failed >= 500
    assert len(report.failures) == TEXTS_KEPT + 1
    assert report.errors[0] == f"{report.failed - TEXTS_KEPT} × others"


def test_waiting_for_a_version_that_never_comes_says_who_answers() -> None:
    expected = pytest.raises(
        DemoError, match=r"version 2 gave 0 of 1 answers.*\{'1': \d+\}, failed: 0, wrong: 0"
    )
    with a_load(lambda _: ScoredAnswer(RIGHT["1"], "1"), max_seconds=0.2) as load, expected:
        load.wait_for("2", 1, TIMEOUT_S)


def test_the_load_ends_by_itself() -> None:
    with a_load(lambda _: ScoredAnswer(RIGHT["1"], "1"), max_seconds=0.05) as load:
        for thread in load._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def test_connections_are_closed_when_the_load_ends() -> None:
    scorers: list[FakeScorer] = []

    def a_scorer() -> FakeScorer:
        scorers.append(FakeScorer(lambda _: ScoredAnswer(RIGHT["1"], "1")))
        return scorers[-1]

    with CheckedLoad(a_scorer, [ScoringBatch({}, RIGHT)] * 4, threads=3):
        pass
    assert [scorer.closed for scorer in scorers] == [True] * 3


def test_quantiles_are_of_right_answers_and_take_no_memory_for_each() -> None:
    latencies = LatencyHistogram()
    for seconds in range(1, 100_001):
        latencies.count_answer(seconds / 1_000_000)
    report = LoadReport({"1": 100_000}, {"late": 1}, {}, latencies, 1.0)
    assert report.quantile_ms(0.5) == pytest.approx(50, rel=0.005)
    assert report.quantile_ms(0.99) == pytest.approx(99, rel=0.005)
    assert report.quantile_ms(1.0) == pytest.approx(100, rel=0.005)
    assert len(latencies.copy_counts()) < 1_200
    assert LatencyHistogram().quantile_s(0.5) == 0.0


def test_a_window_of_a_load_is_the_difference_of_two_reports() -> None:
    earlier = LoadReport({"1": 10}, {"away": 1}, {}, LatencyHistogram({0: 10}), 1.0)
    later = LoadReport(
        {"1": 10, "2": 5}, {"away": 1, "late": 2}, {"odd": 1}, LatencyHistogram({0: 10, 7: 5}), 3.5
    )
    window = later.since_report(earlier)
    assert (window.versions, window.failures, window.wrong_answers) == ({"2": 5}, {"late": 2}, {"odd": 1})
    assert (window.sent, window.seconds) == (8, 2.5)
    assert window.latencies.copy_counts() == {7: 5}


def test_a_version_has_answered_only_what_was_sent_since_and_each_loss_is_said() -> None:
    said: list[str] = []

    def answer(number: int) -> ScoredAnswer:
        if number == 1:
            raise ConnectionError("no healthy upstream")
        return ScoredAnswer(RIGHT["2" if number == 2 else "1"], "1")

    batches = [ScoringBatch({}, RIGHT)]
    with CheckedLoad(lambda: FakeScorer(answer), batches, threads=1, say=said.append) as load:
        load.wait_for("1", 3, TIMEOUT_S)
        assert 0.0 < load.last_sent_at("1") <= monotonic()
        assert load.last_sent_at("2") == 0.0
    failed, wrong = said
    assert failed.startswith("failed after ")
    assert failed.endswith(" s: no healthy upstream")
    assert wrong.startswith("wrong: an answer of version 1 that is not that version's")
