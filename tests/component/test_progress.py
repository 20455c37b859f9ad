"""A long command tells the person who waits how far it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate_localcluster import progress
from tidegate_localcluster.progress import run_with_progress

WAITS = 'for _ in $(seq 1200); do [ -e "$0" ] && break; sleep 0.05; done'
"""Waits for the file $0, about a minute at most."""


@pytest.fixture(autouse=True)
def _reported_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_EVERY_S", 0.05)


def test_a_command_that_says_nothing_for_long_is_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    heard = tmp_path / "heard"

    def hear(text: str) -> None:
        said.append(text)
        if len(said) > 1:
            heard.touch()

    lines = run_with_progress(
        ["/bin/sh", "-c", f"{WAITS}; echo step 1", heard],
        task="training",
        progress=hear,
        describe=lambda lines: lines[-1].upper(),
    )

    assert lines == ("step 1",)
    assert re.fullmatch(r"training: \d+ s", said[1])


def test_what_it_says_is_described(tmp_path: Path) -> None:
    heard = tmp_path / "heard"

    def hear(text: str) -> None:
        if re.fullmatch(r"training: \d+ s STEP 1", text):
            heard.touch()

    run_with_progress(
        ["/bin/sh", "-c", f"echo step 1; {WAITS}", heard],
        task="training",
        progress=hear,
        describe=lambda lines: lines[-1].upper(),
    )

    assert heard.exists()
