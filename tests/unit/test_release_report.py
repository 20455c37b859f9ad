"""What `tidegate release` says."""

from __future__ import annotations

import pytest

from builders.model_access import a_model_access
from builders.release import a_release, released
from tidegate.api.release_commands import ReleaseCommand
from tidegate.reports.release import ReleaseCommandResult, ReleaseListReport, ReleaseReport

CHECKS = [
    {"check": "ErrorRate", "verdict": "Passing", "message": "0.02 % of 12,000"},
    {"check": "LatencyP99", "verdict": "Undecided", "message": "61 ms of 60 ms"},
]


def lines(report: ReleaseReport, *, wide: bool = False) -> list[str]:
    return list(report.render_lines(wide=wide))


def test_a_release_on_its_way_says_how_far_it_is_and_which_checks_do_not_pass() -> None:
    access = released(
        a_release(steps=[10, 50, 100]),
        step=2,
        weight=50,
        reason="Undecided",
        message="2 of 10 looks",
        checks=CHECKS,
    )
    report = ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)
    assert lines(report) == [
        "ModelAccess ads/ctr, route default: Inference v4 has 50 %, Progressing at step 2 of 3 since 2026-01-01T00:00:00Z",
        "  Undecided   2 of 10 looks",
        "  Undecided   LatencyP99: 61 ms of 60 ms",
    ]
    assert "  Passing     ErrorRate: 0.02 % of 12,000" in lines(report, wide=True)


def test_what_nobody_has_begun_or_acted_on_is_said() -> None:
    report = ReleaseReport.from_access(a_release(), ReleaseCommandResult.ASKED, ReleaseCommand.PAUSE)
    assert lines(report) == [
        "ModelAccess ads/ctr, route default: Inference v4 is not begun yet",
        "  asked       pause is written, and the controllers have not acted on it yet",
    ]
    again = ReleaseReport.from_access(
        released(a_release(), phase="Paused"), ReleaseCommandResult.ALREADY, ReleaseCommand.PAUSE
    )
    assert lines(again)[-1] == "  already     it was so before: nothing was written"
    promoted = ReleaseReport.from_access(
        released(a_release(), phase="Paused"),
        ReleaseCommandResult.DONE,
        ReleaseCommand.PROMOTE,
        dry_run=True,
    )
    assert lines(promoted)[-1] == (
        "  dry run     promote would be written. Give a release's target all traffic now."
    )


def test_without_a_release_there_is_nothing_to_say() -> None:
    with pytest.raises(ValueError, match=r"ModelAccess ads/ctr has no spec\.release"):
        ReleaseReport.from_access(a_model_access(), ReleaseCommandResult.NOTHING_ASKED)


def test_a_list_of_releases_has_a_row_for_each_and_its_reason_when_wide() -> None:
    begun = released(a_release(steps=[10, 50, 100]), step=2, weight=50, reason="Undecided", message="2 of 10")
    reports = tuple(
        ReleaseReport.from_access(access, ReleaseCommandResult.NOTHING_ASKED)
        for access in (begun, a_release())
    )
    listed = ReleaseListReport(releases=reports, skipped=("ads/odd",))
    assert [line.split() for line in listed.render_lines(wide=False)] == [
        ["MODELACCESS", "TARGET", "STEP", "WEIGHT", "PHASE", "SINCE"],
        ["ads/ctr", "v4", "2/3", "50", "Progressing", "2026-01-01T00:00:00Z"],
        ["ads/ctr", "v4", f"-/{len(a_release().spec.release.steps)}", "-", "-", "-"],  # type: ignore[union-attr]
        ["skipped:", "ads/odd"],
    ]
    assert list(listed.render_lines(wide=True))[1].endswith("Undecided   2 of 10")
    empty = ReleaseListReport(releases=(), skipped=())
    assert (list(empty.render_lines(wide=False)), empty.empty_message()) == (
        [],
        "no ModelAccess with a release found",
    )
