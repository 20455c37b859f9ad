"""`make docs`: the pages become a site without a warning, so that no link is broken and no page outside the navigation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow("Sphinx reads 400 pages; links and anchors are checked in unit/test_docs.py each time")
def test_the_pages_become_a_site_without_a_warning(tmp_path: Path) -> None:
    [flags] = re.findall(r"sphinx-build (.+) -d \S+ docs build/docs$", (ROOT / "Makefile").read_text(), re.M)
    command = [sys.executable, "-m", "sphinx", *flags.split(), "-b", "dummy", ROOT / "docs", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
