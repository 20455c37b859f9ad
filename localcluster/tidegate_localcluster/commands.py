"""Short commands that must succeed."""

import subprocess
from pathlib import Path

from tidegate_localcluster.errors import LocalClusterError

LONGEST_COMPLAINT = 2000


def run_checked(*command: str | Path, text: str | None = None) -> str:
    """What `command` prints, given `text` as its input; raises LocalClusterError with what it complains of."""
    words = list(map(str, command))
    result = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise LocalClusterError(f"{' '.join(words)}: {result.stderr.strip()[-LONGEST_COMPLAINT:]}")
    return result.stdout
