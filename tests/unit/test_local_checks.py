"""What the machine lacks is said all at once, each with its cure."""

from pathlib import Path

import pytest

from tidegate_localcluster.cgroups import CgroupTree, CgroupVersion
from tidegate_localcluster.checks import (
    CAPABILITIES,
    MachineProblem,
    MachineUnfitError,
    check_cgroups,
    check_sizes,
    check_tools,
    check_user,
    find_existing_ancestor,
)

ALL = "CapEff:\t000001ffffffffff\n"
GIB = 1024**3


def test_root_with_all_capabilities_is_fit() -> None:
    assert check_user(0, ALL) == ()


def test_others_than_root_are_told_to_use_sudo() -> None:
    assert [str(problem) for problem in check_user(1000, ALL)] == ["not root: run it with sudo"]


@pytest.mark.parametrize(("name", "bit"), CAPABILITIES.items())
def test_a_missing_capability_is_named(name: str, bit: int) -> None:
    effective = 0x1FFFFFFFFFF & ~(1 << bit)
    (problem,) = check_user(0, f"Name:\tpython\nCapEff:\t{effective:016x}\n")
    assert problem.missing == f"capabilities missing: {name}"
    assert f"--cap-add {name}" in problem.remedy


def test_missing_tools_are_named_with_their_packages() -> None:
    present = {"sh": "/bin/sh", "mount": "/bin/mount"}
    (problem,) = check_tools(present.get)
    assert "unshare" in problem.missing
    assert "mount," not in problem.missing.split(": ")[1].split()[0]
    assert problem.remedy == "apt-get install coreutils iproute2 util-linux"


def test_all_tools_are_enough() -> None:
    assert check_tools(lambda tool: f"/bin/{tool}") == ()


@pytest.mark.parametrize(
    ("tree", "lack"),
    [
        (None, "no cgroups"),
        (
            CgroupTree(Path("/x"), CgroupVersion.V2, ("cpu", "pids")),
            "cgroup v2 controllers missing: cpuset, memory",
        ),
        (
            CgroupTree(Path("/x"), CgroupVersion.V1, ("cpu", "cpuset", "pids")),
            "cgroup v1 controllers missing: memory",
        ),
    ],
)
def test_missing_controllers_are_named(tree: CgroupTree | None, lack: str) -> None:
    (problem,) = check_cgroups(tree)
    assert problem.missing == lack
    assert problem.remedy


def test_enough_controllers_are_enough() -> None:
    assert check_cgroups(CgroupTree(Path("/x"), CgroupVersion.V2, ("cpu", "cpuset", "memory", "pids"))) == ()


def test_too_little_disk_and_memory_are_both_named_with_numbers() -> None:
    disk, memory = check_sizes(3 * GIB, Path("/somewhere"), GIB)
    assert disk.missing == "3.0 GiB free in /somewhere, 5 GiB are needed"
    assert memory.missing == "1.0 GiB of memory, 2 GiB are needed"


def test_enough_disk_and_memory_are_enough() -> None:
    assert check_sizes(50 * GIB, Path("/"), 8 * GIB) == ()


def test_one_message_holds_all_problems() -> None:
    error = MachineUnfitError(
        [MachineProblem("no nose", "see a doctor"), MachineProblem("no ears", "see another")]
    )
    assert "- no nose: see a doctor\n  - no ears: see another" in str(error)
    assert "--control-plane-only" in str(error)


def test_a_state_folder_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    assert find_existing_ancestor(tmp_path / "not" / "yet") == tmp_path


def test_who_cannot_run_containers_is_shown_what_runs_without() -> None:
    assert "make demo-fleet" in str(MachineUnfitError([MachineProblem("not root", "run it with sudo")]))
