"""The process of a shard: what it tries again, when it gives up, and what it says last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.desired import a_desired_state
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch import __main__ as process
from tidegate_dataplane.batch.errors import ServerFaultError, TableError
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.contract import FailureReason

ORDER = {"run": "v1-a", "source": "s3://lake/users", "sink": "s3://lake/out", "shards": 1, "rows_per_file": 1}


class Attempts:
    """What each attempt comes to: an error, or as many rows that are left."""

    def __init__(self, *what: Exception | float) -> None:
        self._what: Iterator[Exception | float] = iter(what)
        self.count = 0

    def __call__(self, *arguments: object) -> None:
        self.count += 1
        metrics = arguments[-1]
        assert isinstance(metrics, BatchMetrics)
        each = next(self._what)
        if isinstance(each, Exception):
            raise each
        metrics.rows_left.set(each)
        if each:
            raise _away()


def _away() -> ArtefactError:
    return ArtefactError(FailureReason.FETCH_FAILED, "s3://lake/out cannot be written: no answer in time")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentSettings:
    (tmp_path / "desired.json").write_text(a_desired_state(batch=ORDER).to_json())
    monkeypatch.setattr(process, "FIRST_PAUSE_S", 0.0)
    return AgentSettings(config_dir=tmp_path)


def _scored(settings: AgentSettings, attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(process, "_run_shard", attempts)
    return process._score_shard(settings, {process.INDEX_VARIABLE: "0"}, BatchMetrics())


def test_a_store_that_comes_back_is_waited_for(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(_away(), _away(), 0)
    assert _scored(settings, attempts, monkeypatch) == (process.DONE, "")
    assert attempts.count == 3


def test_without_progress_the_pod_ends_and_says_why(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "NO_PROGRESS_LIMIT_S", -1.0)
    code, said = _scored(settings, Attempts(_away()), monkeypatch)
    assert (code, said) == (process.RETRYABLE, "s3://lake/out cannot be written: no answer in time")


def test_what_is_wrong_with_table_or_uri_is_not_tried_again(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        TableError("no"),
        ArtefactError(FailureReason.URI_NOT_ALLOWED, "no"),
        ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, "no"),
    ):
        attempts = Attempts(error)
        assert _scored(settings, attempts, monkeypatch) == (process.PERMANENT, "no")
        assert attempts.count == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ServerFaultError("row 3 is refused: CUDA error"), "row 3 is refused: CUDA error"),
        (
            IndexError("list index out of range"),
            "IndexError: list index out of range; the log of this pod has more",
        ),
        (
            ExceptionGroup("unhandled errors", [OverflowError("too large")]),
            "OverflowError: too large; the log of this pod has more",
        ),
    ],
)
def test_another_pod_tries_what_may_be_this_pods_fault_and_what_nobody_expected(
    settings: AgentSettings, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    attempts = Attempts(error)
    assert _scored(settings, attempts, monkeypatch) == (process.RETRYABLE, words)
    assert attempts.count == 1


def test_a_pod_that_is_none_of_a_job_says_so(settings: AgentSettings, tmp_path: Path) -> None:
    code, said = process._score_shard(settings, {}, BatchMetrics())
    assert code == process.PERMANENT
    assert "no JOB_COMPLETION_INDEX" in said
    (tmp_path / "desired.json").write_text(a_desired_state().to_json())
    code, said = process._score_shard(settings, {process.INDEX_VARIABLE: "0"}, BatchMetrics())
    assert code == process.PERMANENT
    assert "no order for a batch" in said
