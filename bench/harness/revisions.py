"""Other versions of the code that is measured."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]


def unpack_code(revision: str, folder: Path) -> Path:
    """Return a folder with the data plane's code of a commit."""
    archive = subprocess.run(
        ["git", "archive", revision, "dataplane"], cwd=SOURCE_ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder / "dataplane"
