"""The tutorial, which is the README's path, typed literally: it ends with a model of one's own that answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from documented.pages import ROOT, name
from documented.tutorial import PAGE, MismatchError, run, steps
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import LocalCluster, Supplies
from tidegate_localcluster.demo.recipe import FOLDER as MODELS

TIMEOUT_S = 800.0


@pytest.fixture
def home(cluster_supplies: Supplies) -> Iterator[Path]:
    """A cache folder with what the usual one has, and clusters of its own; their sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="tutorial-"))
    # The demo keeps there what it has trained; it is trained again when its code has changed.
    (default_home() / MODELS).mkdir(parents=True, exist_ok=True)
    for path in default_home().iterdir():
        if path.name not in ("clusters", "fleets"):
            (folder / path.name).symlink_to(path)
    yield folder
    down = [
        sys.executable,
        "-m",
        "tidegate_localcluster",
        "down",
        "--state-dir",
        folder / "clusters" / "default",
    ]
    subprocess.run(down, check=False, timeout=200)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that is this repository to whoever types in it, and keeps what they save."""
    # Where that were not done yet, `make demo` would do it for the folder below.
    subprocess.run(["make", "setup"], cwd=ROOT, check=True, timeout=600)
    for each in ROOT.iterdir():
        (tmp_path / each.name).symlink_to(each)
    return tmp_path


def test_who_types_the_tutorial_has_a_model_that_answers(home: Path, checkout: Path) -> None:
    environment = {"TIDEGATE_HOME": str(home), "KUBECONFIG": ""}
    of = steps(PAGE.read_text(), name(PAGE))

    printed = run(of, checkout, environment, timeout_s=TIMEOUT_S)

    assert any('"data":[42.0]' in output for output in printed)
    assert LocalCluster(home / "clusters" / "default").find_supervisor() is None
    # Now that it is taken away nothing answers: it was the cluster that did.
    asking = [block for block in of if "curl" in block.text]
    with pytest.raises(MismatchError, match=name(PAGE)):
        run(asking, checkout, environment, timeout_s=200)
