"""A long command tells the person who waits how far it is."""

from __future__ import annotations

import re

import pytest

from tidegate_localcluster import progress
from tidegate_localcluster.progress import run_with_progress


@pytest.fixture(autouse=True)
def _reported_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_EVERY_S", 0.05)


def test_a_command_that_says_nothing_for_long_is_waited_for() -> None:
    said: list[str] = []
    lines = run_with_progress(
        ["/bin/sh", "-c", "sleep 2; echo step 1"],
        task="training",
        progress=said.append,
        describe=lambda lines: lines[-1].upper(),
    )

    assert lines == ("step 1",)
    assert re.fullmatch(r"training: \d+ s", said[1])


def test_what_it_says_is_described() -> None:
    said: list[str] = []
    run_with_progress(
        ["/bin/sh", "-c", "echo step 1; sleep 2"],
        task="training",
        progress=said.append,
        describe=lambda lines: lines[-1].upper(),
    )

    assert any(re.fullmatch(r"training: \d+ s STEP 1", each) for each in said)
