"""Both sides of a release as the dashboard shows them, with the limits of the checks."""

from __future__ import annotations

from builders.release import ERRORS, LATENCY, a_release, released
from tidegate.reports.release_figures import ReleaseFigures

SAMPLE = {
    "windowBegan": "2026-01-01T00:00:00Z",
    "checked": "2026-01-01T00:01:40Z",
    "target": "1000 3 5:990,40:10",
    "stable": "9000 9 5:8990,30:10",
}


def figures_of(**fields: object) -> ReleaseFigures:
    access = released(a_release(checks=[ERRORS, LATENCY]), step=2, weight=5, **{**SAMPLE, **fields})
    figures = ReleaseFigures.from_access(access)
    assert figures is not None
    return figures


def test_both_sides_have_requests_errors_and_p99() -> None:
    figures = figures_of()

    target, stable = figures.target, figures.stable
    assert (target.requests, target.requests_per_second, target.failures) == (1000, 10.0, 3)
    assert (target.failed_share, target.latency_p99_ms) == (0.003, 5)
    assert (stable.requests, stable.failed_share, stable.latency_p99_ms) == (9000, 0.001, 5)
    assert figures.stable_inferences == ("v3",)


def test_limits_are_those_of_the_checks() -> None:
    latency = {"check": "LatencyP99", "verdict": "Passing", "message": "", "boundMs": 22}

    assert (figures_of().failed_share_limit, figures_of().latency_limit_ms) == (0.001, None)
    assert figures_of(checks=[latency]).latency_limit_ms == 22
    access = released(a_release(checks=[LATENCY]), **SAMPLE)
    without_errors = ReleaseFigures.from_access(access)
    assert without_errors is not None
    assert without_errors.failed_share_limit is None


def test_a_sample_without_requests_has_no_shares() -> None:
    figures = figures_of(target="", stable="odd text", checked=SAMPLE["windowBegan"])

    for side in (figures.target, figures.stable):
        assert (side.requests, side.requests_per_second) == (0, None)
        assert (side.failed_share, side.latency_p99_ms) == (None, None)


def test_before_it_has_begun_there_are_no_figures() -> None:
    assert ReleaseFigures.from_access(a_release()) is None
