"""Cgroup folders in fake trees of both versions."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tidegate_localcluster.cgroups import CgroupTree, CgroupVersion
from tidegate_localcluster.errors import LocalClusterError


def a_v1_tree(
    root: Path, hierarchies: Sequence[str] = ("cpu", "cpuset", "memory", "pids", "systemd")
) -> CgroupTree:
    for name in hierarchies:
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").touch()
    if "cpuset" in hierarchies:
        (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
        (root / "cpuset" / "cpuset.mems").write_text("0\n")
    tree = CgroupTree.detect(root)
    assert tree is not None
    return tree


def a_v2_tree(root: Path, controllers: str = "cpuset cpu io memory pids") -> CgroupTree:
    root.mkdir(exist_ok=True)
    (root / "cgroup.controllers").write_text(f"{controllers}\n")
    tree = CgroupTree.detect(root)
    assert tree is not None
    return tree


def test_nothing_mounted_is_no_tree(tmp_path: Path) -> None:
    assert CgroupTree.detect(tmp_path) is None


def test_v1_takes_every_hierarchy_there_is(tmp_path: Path) -> None:
    tree = a_v1_tree(tmp_path)
    assert tree.version is CgroupVersion.V1
    assert tree.list_folders("a") == tuple(
        tmp_path / name / "a" for name in ("cpu", "cpuset", "memory", "pids", "systemd")
    )


def test_v1_counts_one_hierarchy_under_two_names_once(tmp_path: Path) -> None:
    a_v1_tree(tmp_path, ["cpu,cpuacct", "cpuset", "memory", "pids"])
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "cpuacct").symlink_to("cpu,cpuacct")
    tree = CgroupTree.detect(tmp_path)
    assert tree is not None
    assert tree.missing_controllers == ()
    assert len(tree.list_folders("a")) == 4


def test_v1_fills_the_cpuset_of_every_level(tmp_path: Path) -> None:
    tree = a_v1_tree(tmp_path)
    for level in ("a", "a/node-0"):
        (tmp_path / "cpuset" / level).mkdir()
        for key in ("cpuset.cpus", "cpuset.mems"):
            (tmp_path / "cpuset" / level / key).touch()  # as the kernel would
    tree.create("a/node-0")
    assert (tmp_path / "cpuset/a/node-0/cpuset.cpus").read_text() == "0-1"
    assert (tmp_path / "cpuset/a/node-0/cpuset.mems").read_text() == "0"
    assert (tmp_path / "memory/a/node-0").is_dir()


def test_v2_hands_down_what_is_offered_to_every_level(tmp_path: Path) -> None:
    tree = a_v2_tree(tmp_path)
    tree.create("a/node-0")
    assert tree.version is CgroupVersion.V2
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a/node-0"):
        # A plain file keeps the last word written; the kernel adds each.
        assert (folder / "cgroup.subtree_control").read_text() == "+io"


def test_v2_does_not_ask_for_what_is_not_offered(tmp_path: Path) -> None:
    tree = a_v2_tree(tmp_path, "cpuset cpu memory pids")
    tree.create("a")
    assert (tmp_path / "a/cgroup.subtree_control").read_text() == "+pids"


def test_pods_compete_for_cores_like_ten_processes(tmp_path: Path) -> None:
    for make, written in ((a_v1_tree, "cpu/a/cpu.shares"), (a_v2_tree, "a/cpu.weight")):
        root = tmp_path / make.__name__
        tree = make(root)
        tree.create("a")
        tree.set_cpu_weight("a", 10)
        assert (root / written).read_text() == ("10240" if make is a_v1_tree else "1000")


@pytest.mark.parametrize("make", [a_v1_tree, a_v2_tree])
def test_missing_controllers_are_named(tmp_path: Path, make: object) -> None:
    tree = a_v2_tree(tmp_path, "cpu pids") if make is a_v2_tree else a_v1_tree(tmp_path, ["cpu", "pids"])
    assert tree.missing_controllers == ("cpuset", "memory")


def test_a_refused_controller_is_named(tmp_path: Path) -> None:
    tree = a_v2_tree(tmp_path)
    (tmp_path / "cgroup.subtree_control").mkdir()
    with pytest.raises(LocalClusterError, match=r"'\+cpu' to .*cgroup.subtree_control"):
        tree.create("a")


def test_what_was_created_is_removed(tmp_path: Path) -> None:
    tree = a_v1_tree(tmp_path)
    tree.create("a/node-0")
    assert len(tree.list_existing_folders("a")) == 5
    tree.remove("a")
    assert tree.list_existing_folders("a") == ()
    assert (tmp_path / "memory").is_dir()


def test_what_cannot_be_removed_is_named_with_its_processes(tmp_path: Path) -> None:
    tree = a_v1_tree(tmp_path, ["cpu", "cpuset", "memory", "pids"])
    tree.create("a/pod")
    (tmp_path / "memory/a/pod/cgroup.procs").write_text("41\n42\n")
    with pytest.raises(LocalClusterError, match=r"memory/a .processes: 41, 42"):
        tree.remove("a", timeout_s=0.0)
