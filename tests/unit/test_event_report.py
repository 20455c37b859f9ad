"""What the agent reads of the file in which the ingester reports: fresh, old, missing, damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_dataplane.contract import EventStreamReport, StreamProblem
from tidegate_dataplane.event_store.report import (
    REPORT_FILE,
    IngesterReport,
    read_boot_id,
    read_report,
    write_report,
)

CLICKS = EventStreamReport(source="clicks", caught_up=True, lag_s=0.5)
AT_S = 1_000.0


def read_later(folder: Path, age_s: float, stream: EventStreamReport = CLICKS) -> EventStreamReport:
    """Write a report about one stream, and read it when it has this age."""
    write_report(folder, IngesterReport(at_s=AT_S, boot_id=read_boot_id(), streams=(stream,)))
    (report,) = read_report(folder, AT_S + age_s)
    return report


@pytest.mark.parametrize("age_s", [-3, 0, 5])
def test_a_fresh_report_is_returned_as_it_is(tmp_path: Path, age_s: float) -> None:
    assert read_later(tmp_path, age_s) == CLICKS


@pytest.mark.parametrize(
    ("age_s", "silence"),
    [
        (6, "5 s"),
        (10, "10 s"),
        (19, "10 s"),
        (59.5, "50 s"),
        (60, "1 min"),
        (119, "1 min"),
        (7_200, "120 min"),
    ],
)
def test_an_old_report_adds_its_age_to_the_lag_and_says_so_in_steps(
    tmp_path: Path, age_s: float, silence: str
) -> None:
    report = read_later(tmp_path, age_s)

    assert report.lag_s == 0.5 + age_s
    assert report.message == f"the container ingester has reported nothing for {silence}: see its log"


def test_an_old_report_keeps_the_brokers_own_text(tmp_path: Path) -> None:
    problem = {"problem": StreamProblem.STREAM_UNREACHABLE, "message": "nats: no servers"}
    report = read_later(tmp_path, 100, CLICKS.model_copy(update=problem))

    assert (report.problem, report.message) == (StreamProblem.STREAM_UNREACHABLE, "nats: no servers")
    assert report.lag_s == 100.5


def test_a_report_from_before_the_nodes_start_is_none(tmp_path: Path) -> None:
    report = IngesterReport(at_s=AT_S, boot_id="another", streams=(CLICKS,))
    write_report(tmp_path, report)

    assert read_report(tmp_path, AT_S) == ()


def test_a_missing_report_names_no_stream(tmp_path: Path) -> None:
    assert read_report(tmp_path) == ()
    assert read_report(tmp_path / "missing") == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"at_s": "soon"}', b"\xff\x00"])
def test_a_damaged_report_names_no_stream(tmp_path: Path, content: bytes) -> None:
    (tmp_path / REPORT_FILE).write_bytes(content)

    assert read_report(tmp_path) == ()
