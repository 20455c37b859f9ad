"""The example of the documentation prints what the documentation shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/explanation/allocation.md").read_text()
    shown = page.split("```text\n", 1)[1].split("```", 1)[0]
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / "examples/allocation/evening.py"), run_name="__main__")
    assert shown == capsys.readouterr().out
