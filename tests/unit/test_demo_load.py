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
from tidegate_localcluster.demo.load import TEXTS_KEPT, Batch, Latencies, Load, LoadReport, Tensors
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
    assert report.problems == ()
    assert report.versions["1"] == 50
    assert sum(report.versions.values()) == report.sent


def scores(*values: float, dtype: type = np.float32) -> Any:
    return np.array(values, dtype=dtype)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(
            Answer(RIGHT["2"], "1"),
            "an answer of version 1 that is not that version's: [0.30000001192092896, 0.4000000059604645] "
            "instead of [0.10000000149011612, 0.20000000298023224]",
            id="another version's",
        ),
        pytest.param(Answer(scores(0.1, 0.2001), "1"), "not that version's", id="a wrong value"),
        pytest.param(Answer(scores(0.1, np.nan), "1"), "not that version's: [0.1", id="NaN"),
        pytest.param(Answer(scores(0.1, np.inf), "1"), "not that version's: [0.1", id="infinity"),
        pytest.param(Answer(scores(0.1), "1"), "not that version's: [0.1", id="a row is missing"),
        pytest.param(Answer(scores(0.1, 0.2, 0.3), "1"), "not that version's", id="a row too many"),
        pytest.param(Answer(scores(), "1"), "not that version's: []", id="no rows"),
        pytest.param(Answer(scores(0.1, 0.2)[:, None], "1"), "not that version's", id="another shape"),
        pytest.param(Answer(scores(0.1, 0.2, dtype=np.float64), "1"), "not that version's", id="float64"),
        pytest.param(Answer(np.asarray(None).ravel(), "1"), "not that version's: [None]", id="no tensor"),
        pytest.param(Answer(RIGHT["1"], "7"), "version '7', which was never published", id="unpublished"),
        pytest.param(Answer(RIGHT["1"], ""), "version '', which was never published", id="no version"),
    ],
)
def test_an_answer_that_is_no_models_is_wrong_and_has_not_failed(answer: Answer, text: str) -> None:
    with a_load(lambda number: Answer(RIGHT["1"], "1") if number else answer, threads=1) as load:
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
    def answer(number: int) -> Answer:
        if number == 3:
            raise error
        return Answer(RIGHT["1"], "1")

    with a_load(answer, threads=1) as load:
        load.wait_for("1", 20, TIMEOUT_S)
        report = load.finish()
    assert (report.failed, report.wrong) == (1, 0)
    assert report.errors == ("1 × no healthy upstream",)
    assert report.problems == (f"1 of {report.sent} failed", *report.errors)
    assert report.versions.keys() == {"1"}


def test_a_request_that_is_never_answered_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Event()

    def answer(number: int) -> Answer:
        if number:
            over.wait(TIMEOUT_S)
        return Answer(RIGHT["1"], "1")

    with a_load(answer, threads=1) as load:
        load.wait_for("1", 1, TIMEOUT_S)
        monkeypatch.setattr(demo_load, "JOIN_TIMEOUT_S", 0.01)
        report = load.finish()
        over.set()
        monkeypatch.undo()
    assert (report.sent, report.failed) == (2, 1)
    assert "no answer" in report.errors[0]


def test_errors_that_all_differ_are_counted_and_only_some_of_them_kept() -> None:
    def answer(number: int) -> Answer:
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


def test_quantiles_are_of_right_answers_and_take_no_memory_for_each() -> None:
    latencies = Latencies()
    for seconds in range(1, 100_001):
        latencies.add(seconds / 1_000_000)
    report = LoadReport({"1": 100_000}, {"late": 1}, {}, latencies, 1.0)
    assert report.quantile_ms(0.5) == pytest.approx(50, rel=0.005)
    assert report.quantile_ms(0.99) == pytest.approx(99, rel=0.005)
    assert report.quantile_ms(1.0) == pytest.approx(100, rel=0.005)
    assert len(latencies.copy()) < 1_200
    assert Latencies().quantile_s(0.5) == 0.0


def test_a_window_of_a_load_is_the_difference_of_two_reports() -> None:
    earlier = LoadReport({"1": 10}, {"away": 1}, {}, Latencies({0: 10}), 1.0)
    later = LoadReport({"1": 10, "2": 5}, {"away": 1, "late": 2}, {"odd": 1}, Latencies({0: 10, 7: 5}), 3.5)
    window = later.since(earlier)
    assert (window.versions, window.failures, window.wrong_answers) == ({"2": 5}, {"late": 2}, {"odd": 1})
    assert (window.sent, window.seconds) == (8, 2.5)
    assert window.latencies.copy() == {7: 5}


def test_a_version_has_answered_only_what_was_sent_since_and_each_loss_is_said() -> None:
    said: list[str] = []

    def answer(number: int) -> Answer:
        if number == 1:
            raise ConnectionError("no healthy upstream")
        return Answer(RIGHT["2" if number == 2 else "1"], "1")

    batches = [Batch({}, RIGHT)]
    with Load(lambda: FakeScorer(answer), batches, threads=1, say=said.append) as load:
        load.wait_for("1", 3, TIMEOUT_S)
        assert 0.0 < load.last_sent("1") <= monotonic()
        assert load.last_sent("2") == 0.0
    failed, wrong = said
    assert failed.startswith("failed after ")
    assert failed.endswith(" s: no healthy upstream")
    assert wrong.startswith("wrong: an answer of version 1 that is not that version's")
