"""`make plugin`: the one file of the command runs where there is only a Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documented.pages import ROOT
from tidegate_localcluster.publish_plugin import PLUGIN, make_zipapp


@pytest.mark.slow(
    "uv fetches and packs 70 MB of packages; tests/unit/test_publish_plugin.py has its archive and manifest"
)
@pytest.mark.timeout(900)
def test_one_file_is_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{ROOT}/build/tools/bin{os.pathsep}{os.environ['PATH']}")
    program = tmp_path / PLUGIN
    make_zipapp(ROOT, program, lambda _: None)

    environment = {
        "PATH": f"{Path(sys.executable).resolve().parent}:/usr/bin:/bin",
        "PEX_ROOT": str(tmp_path / "pex"),
    }
    for arguments, expected in (
        (["--help"], "Usage: kubectl tidegate [OPTIONS]"),
        (["analyze", "--help"], "Usage: kubectl tidegate analyze"),
    ):
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
