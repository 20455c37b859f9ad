"""Where the control plane's programs cannot be had: a skip that says why, and a failure under CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST = Path(__file__).parents[1] / "integration" / "test_control_plane.py"


@pytest.mark.parametrize(
    ("variables", "status", "word"),
    [
        pytest.param(
            *({}, 0, "1 skipped"),
            marks=pytest.mark.slow("the case beside it gets as far; a skip shows itself"),
        ),
        ({"CI": "true"}, 1, "1 error"),
    ],
)
def test_says_why_there_is_no_control_plane(
    tmp_path: Path, variables: dict[str, str], status: int, word: str
) -> None:
    installer = tmp_path / "uv"
    installer.write_text("#!/bin/sh\nexit 1\n")
    installer.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "CI" and "TIDEGATE" not in name}
    nothing = {"PATH": str(tmp_path), "TIDEGATE_HOME": str(tmp_path / "home"), "KUBEBUILDER_ASSETS": ""}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"{TEST}::test_listens_on_loopback_only", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **nothing, **variables},
        cwd=TEST.parents[2],
    )

    assert done.returncode == status, done.stdout
    assert word in done.stdout
    assert "no way to get etcd" in done.stdout
    assert "apt-get is not on PATH" not in done.stdout  # Debian has none of them.
