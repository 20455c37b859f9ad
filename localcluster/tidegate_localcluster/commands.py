"""Runs short commands that must succeed."""

import subprocess
from pathlib import Path

from tidegate_localcluster.errors import LocalClusterError

MAX_ERROR_CHARS = 2000


def run_checked(*command: str | Path, text: str | None = None) -> str:
    """Run `command` with `text` as its input; return its output. Raises LocalClusterError with its stderr."""
    arguments = list(map(str, command))
    result = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LocalClusterError(f"{' '.join(arguments)}: {result.stderr.strip()[-MAX_ERROR_CHARS:]}")
    return result.stdout
