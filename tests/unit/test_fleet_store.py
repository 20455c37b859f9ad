"""A filled fleet is kept once, found again by the same plan and the same code, and by no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_localcluster.fleet_demo.store import MIN_INFERENCES, FilledFleet
from tidegate_localcluster.state import ClusterPlan, FleetSettings, StateDir


@pytest.fixture
def etcd() -> Iterator[int]:
    """The number of a process that can be stopped for a moment."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A source tree."""
    code = tmp_path / "source" / "controllers" / "reconcile.py"
    code.parent.mkdir(parents=True)
    code.write_text("pass")
    return tmp_path / "source"


def a_plan(*, inferences: int = MIN_INFERENCES, fresh: bool = False) -> ClusterPlan:
    return ClusterPlan(
        name="fleet", cgroup="none", fleet=FleetSettings(nodes=1, inferences=inferences, fresh=fresh)
    )


def filled(folder: Path, said: str = "filled") -> StateDir:
    files = StateDir(folder)
    for path in (files.control_plane / "etcd", files.data / "tls"):
        path.mkdir(parents=True)
        (path / "file").write_text(said)
    return files


def restored(fleet: FilledFleet, folder: Path) -> str:
    files = StateDir(folder)
    if not fleet.restore_data(files):
        return ""
    assert (files.data / "tls" / "file").exists()
    return (files.control_plane / "etcd" / "file").read_text()


def test_what_was_kept_is_found_again(tmp_path: Path, root: Path, etcd: int) -> None:
    assert restored(FilledFleet(tmp_path, root, a_plan()), tmp_path / "a") == ""
    FilledFleet(tmp_path, root, a_plan()).save_data(filled(tmp_path / "b"), etcd)
    assert restored(FilledFleet(tmp_path, root, a_plan()), tmp_path / "c") == "filled"
    assert Path(f"/proc/{etcd}/stat").read_text().split()[2] != "T", "etcd is still stopped"


def test_other_sizes_and_other_code_are_other_fleets(tmp_path: Path, root: Path, etcd: int) -> None:
    FilledFleet(tmp_path, root, a_plan()).save_data(filled(tmp_path / "a"), etcd)
    assert restored(FilledFleet(tmp_path, root, a_plan(inferences=MIN_INFERENCES + 1)), tmp_path / "b") == ""
    (root / "controllers" / "reconcile.py").write_text("raise")
    assert restored(FilledFleet(tmp_path, root, a_plan()), tmp_path / "c") == ""


def test_a_fresh_one_is_filled_and_takes_the_place_of_the_old_one(
    tmp_path: Path, root: Path, etcd: int
) -> None:
    FilledFleet(tmp_path, root, a_plan()).save_data(filled(tmp_path / "a"), etcd)
    fresh = FilledFleet(tmp_path, root, a_plan(fresh=True))
    assert restored(fresh, tmp_path / "b") == ""
    fresh.save_data(filled(tmp_path / "c", said="anew"), etcd)
    assert restored(FilledFleet(tmp_path, root, a_plan()), tmp_path / "d") == "anew"


def test_one_fleet_is_kept_at_most(tmp_path: Path, root: Path, etcd: int) -> None:
    for number in range(2):
        plan = a_plan(inferences=MIN_INFERENCES + number)
        FilledFleet(tmp_path, root, plan).save_data(filled(tmp_path / str(number)), etcd)
    assert len(list((tmp_path / "fleets").iterdir())) == 1


def test_a_small_one_is_not_worth_it(tmp_path: Path, root: Path, etcd: int) -> None:
    plan = a_plan(inferences=MIN_INFERENCES - 1)
    FilledFleet(tmp_path, root, plan).save_data(filled(tmp_path / "a"), etcd)
    assert not (tmp_path / "fleets").exists()
