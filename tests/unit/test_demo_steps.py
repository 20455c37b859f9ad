"""The steps of the demo as they are printed, with the time that is left by the last run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from tidegate_localcluster.demo.steps import StepPrinter, read_durations, write_durations

LAST_RUN = {"Start a cluster": 600.0, "Install the chart": 90.0, "Ask": 20.0}


def first_lines(last_run: Mapping[str, float], *titles: str) -> list[str]:
    """What is printed when each step begins."""
    output = io.StringIO()
    steps = StepPrinter(Console(file=output, width=160), last_run)
    for title in titles:
        with steps.print_step(title):
            pass
    assert [*steps.seconds] == [*titles]
    return [line.strip() for line in output.getvalue().splitlines()[::2]]


def test_each_step_begins_with_the_time_that_is_left_by_the_last_run() -> None:
    assert first_lines(LAST_RUN, *LAST_RUN) == [
        "1  Start a cluster  about 12 min left, if it takes as long as the last run",
        "2  Install the chart  about 2 min left, if it takes as long as the last run",
        "3  Ask  less than a minute left, if it takes as long as the last run",
    ]


def test_a_step_that_the_last_run_lacks_has_no_estimate() -> None:
    assert first_lines({}, "Ask") == ["1  Ask"]
    assert first_lines(LAST_RUN, "Create a kind cluster", "Ask")[0] == "1  Create a kind cluster"


def fail_progress(message: str) -> None:
    """Take messages where none is expected."""
    raise AssertionError(message)


def test_durations_are_kept_in_the_cache_folder_for_the_next_run(tmp_path: Path) -> None:
    home = tmp_path / "new"
    assert read_durations(home) == {}
    write_durations(home, LAST_RUN, fail_progress)
    kept = read_durations(home)
    assert (kept, [*kept]) == (LAST_RUN, [*LAST_RUN])


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"Ask": ',
        "[1]",
        '{"Ask": "soon"}',
        '{"Ask": null}',
        '{"Ask": ' + "9" * 400 + "}",
        "[" * 100_000,
    ],
)
def test_a_broken_file_of_durations_gives_no_estimate(tmp_path: Path, text: str) -> None:
    write_durations(tmp_path, LAST_RUN, fail_progress)
    (tmp_path / "demo-durations.json").write_text(text)
    assert read_durations(tmp_path) == {}


@pytest.mark.parametrize("value", ["Infinity", "1e999", "-Infinity", "NaN", "-1"])
def test_a_step_whose_kept_duration_is_none_has_no_estimate(tmp_path: Path, value: str) -> None:
    (tmp_path / "demo-durations.json").write_text(f'{{"Start a cluster": {value}, "Ask": 20, "Stop": 0}}')
    kept = read_durations(tmp_path)
    assert kept == {"Ask": 20.0, "Stop": 0.0}
    assert first_lines(kept, "Start a cluster", "Ask") == [
        "1  Start a cluster",
        "2  Ask  less than a minute left, if it takes as long as the last run",
    ]


def test_a_complete_demo_ends_well_although_its_durations_cannot_be_kept(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    messages: list[str] = []
    write_durations(home, LAST_RUN, messages.append)
    (message,) = messages
    assert message.startswith(f"{home}/demo-durations.json cannot be written")
    write_durations(tmp_path, LAST_RUN, fail_progress)
    assert read_durations(tmp_path) == LAST_RUN
