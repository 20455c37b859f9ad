"""Reports that are shown again and again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from builders.allocator import NOW
from tidegate.cli.following import print_document, repeat_reports
from tidegate.cli.options import OutputFormat
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.main import app
from tidegate.reports.listing import ListReport
from tidegate.reports.report import Report

END = PermanentError("the end")


def a_report(kind: str, second: int = 0) -> Report:
    return ListReport(kind=kind, namespace=None, at=NOW.replace(second=second), items=(), skipped=())


async def shown(answers: Sequence[Report | Exception], *, unchanged: bool = False) -> list[str]:
    """The kinds of the reports that are shown until the answers end."""
    remaining, kinds = [*answers, END], list[str]()

    async def read() -> Report:
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(PermanentError, match="the end"):
        await repeat_reports(
            read, lambda report: kinds.append(report.to_json()["kind"]), unchanged=unchanged, interval_s=0.0
        )
    return kinds


async def test_a_report_is_shown_when_more_than_its_time_has_changed() -> None:
    answers = [a_report("A"), a_report("A", second=2), a_report("B", second=4), a_report("A", second=6)]
    assert await shown(answers) == ["A", "B", "A"]
    assert await shown(answers, unchanged=True) == ["A", "A", "B", "A"]


async def test_an_outage_is_told_once_and_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    away = ApiUnavailableError("away")
    assert await shown([a_report("A"), away, away, a_report("A"), a_report("B")]) == ["A", "B"]
    assert capsys.readouterr().err == "tidegate: away\n"


async def test_an_outage_at_the_start_ends_it() -> None:
    async def read() -> Report:
        raise ApiUnavailableError("away")

    with pytest.raises(ApiUnavailableError, match="away"):
        await repeat_reports(read, lambda _: None, interval_s=0.0)


def test_documents_of_a_stream_can_be_told_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_document({"a": 1}, OutputFormat.JSON)
    print_document({"a": 1}, OutputFormat.YAML)
    assert capsys.readouterr().out == '{"a": 1}\n---\na: 1\n'


def test_waiting_and_watching_exclude_each_other() -> None:
    done = CliRunner().invoke(app, ["status", "ctr", "--wait", "-w"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert (done.exit_code, "leave one of them out" in done.output) == (2, True)
