"""The example of the documentation prints what the documentation shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs/explanation/allocation.md").read_text()
    shown = page.split("```text\n", 1)[1].split("```", 1)[0]
    printed = subprocess.run(
        [sys.executable, "examples/allocation/evening.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown == printed.stdout
