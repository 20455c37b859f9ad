"""What the build of the local cluster's programs reports."""

import pytest

from tidegate_localcluster import go_build
from tidegate_localcluster.go_build import CompilationEstimate, format_remaining


def test_a_build_reports_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_build.time, "monotonic", lambda: 160.0)
    estimate = CompilationEstimate(packages=3600, started=100.0)
    lines = ["go: downloading example.org/module v1.0.0", *["example.org/package"] * 900]
    assert estimate.describe_progress(lines) == "900 of 3,600 packages compiled, at most 3 minutes left"


def test_a_build_that_has_just_begun_estimates_nothing() -> None:
    estimate = CompilationEstimate(packages=3600, started=100.0)
    assert estimate.describe_progress(["example.org/package"] * 99) == "99 of 3,600 packages compiled"
    assert estimate.describe_progress([]) == "0 of 3,600 packages compiled"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "at most 0 seconds left"),
        (41.0, "at most 50 seconds left"),
        (90.0, "at most 90 seconds left"),
        (91.0, "at most 2 minutes left"),
        (600.0, "at most 10 minutes left"),
    ],
)
def test_remaining_time_is_rounded_up(seconds: float, text: str) -> None:
    assert format_remaining(seconds) == text
