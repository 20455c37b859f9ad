"""What `tidegate bench` makes of a run: figures, and whether they are good enough."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.main import app
from tidegate.planning.diagnosis.bench import LoadRun, LoadSpec, ServerCounters
from tidegate.reports.bench import BenchLimits, BenchTarget, report_bench

ASKED = BenchTarget("ctr", "ads/ctr", "port forward to pod ctr-1", 0.001)


def a_run(count: int = 100, *, rate: float | None = None, **more: Any) -> LoadRun:
    """Answered after 1, 2, … milliseconds."""
    times = tuple(number / 1_000 for number in range(1, count + 1))
    return LoadRun(LoadSpec(10.0, 8, rate), 10.0, more.pop("sent", count), times, **more)


def test_figures_are_those_of_the_answers() -> None:
    counted = ServerCounters(inferences=100, executions=50, queue_s=0.2, compute_s=1.0)
    report = report_bench(ASKED, a_run(), counted, BenchLimits())
    assert (report.latency_p50_ms, report.latency_p90_ms, report.latency_p99_ms) == (50.0, 90.0, 99.0)
    assert (report.requests_per_second, report.latency_max_ms, report.error_share) == (10.0, 100.0, 0.0)
    assert report.server is not None
    assert (report.server.rows_per_execution, report.server.queue_ms, report.server.compute_ms) == (
        2.0,
        2.0,
        10.0,
    )
    assert report.passed
    text = "\n".join(report.render_lines(wide=False))
    assert "8 at once for 10 s" in text
    assert "p50 50.00 p90 90.00 p99 99.00 max 100.00 ms" in text
    assert "100 inferences in 50 executions" in text


@pytest.mark.parametrize(
    ("run", "limits", "said"),
    [
        (a_run(), BenchLimits(p99_s=0.0989), "p99 is 99.00 ms, above 98.9 ms"),
        (
            a_run(sent=102, errors={"UNAVAILABLE": 2}),
            BenchLimits(error_share=0.01),
            "1.96% were not answered",
        ),
        (a_run(50, rate=10.0, not_sent=50), BenchLimits(error_share=0.1), "50.00% were not answered"),
        (a_run(0, sent=3, errors={"UNAVAILABLE": 3}), BenchLimits(), "no request was answered"),
    ],
)
def test_what_is_not_good_enough_is_said(run: LoadRun, limits: BenchLimits, said: str) -> None:
    report = report_bench(ASKED, run, None, limits)
    assert not report.passed
    assert said in report.failures[0]
    assert "does not say" in "\n".join(report.render_lines(wide=False))


def test_at_the_limit_is_good_enough() -> None:
    run = a_run(99, sent=100, errors={"INTERNAL": 1})
    assert report_bench(ASKED, run, None, BenchLimits(p99_s=0.099, error_share=0.01)).passed


def test_what_a_server_counted_before_it_restarted_says_nothing() -> None:
    assert ServerCounters(5, 5).subtract(ServerCounters(9, 9)) is None
    assert ServerCounters(9, 8, 1).subtract(ServerCounters(5, 5)) == ServerCounters(4, 3, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--for", "6m"), "must be between 1ms and 5m"),
        (("--for", "soon"), "soon"),
        (("--errors", "many"), "want a share"),
        (("--errors", "101%"), "want a share"),
        (("--p99", "fast"), "fast"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", "ctr", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in done.output


def test_an_address_alone_does_not_say_which_model() -> None:
    done = CliRunner().invoke(app, ["bench", "grpc://127.0.0.1:1"])
    assert (done.exit_code, "--model" in done.stderr) == (2, True)
