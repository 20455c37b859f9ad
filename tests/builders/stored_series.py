"""Puts samples of the past into the data of a Prometheus that does not run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path


def store_series(lines: Iterator[str], promtool: Path, folder: Path) -> None:
    """Store lines in the OpenMetrics format, each with its time."""
    source = folder / "past.txt"
    source.write_text("\n".join((*lines, "# EOF", "")))
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", source, folder / "data"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
