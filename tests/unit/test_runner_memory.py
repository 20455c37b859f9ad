"""A version may take what the others of its container leave, and says what it would need else."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from tidegate_dataplane.sampling.memory import VersionTooLargeError, limit_memory, read_free_memory

LIMIT, USED, FILES = 1 << 30, 700 << 20, 100 << 20
FREE = LIMIT - USED + FILES
STAT = f"anon 1\nactive_file {FILES // 2}\ninactive_file {FILES // 2}\n"
NAMES = {
    1: ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def write_cgroup(root: Path, version: int, limit: str = str(LIMIT)) -> Path:
    for name, content in zip(NAMES[version], (limit, str(USED)), strict=True):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        path.with_name("memory.stat").write_text(STAT)
    return root


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_the_kernel_are_free_memory(tmp_path: Path, version: int) -> None:
    assert read_free_memory(write_cgroup(tmp_path, version)) == (FREE, LIMIT)


@pytest.mark.parametrize(("version", "limit"), [(1, str((1 << 63) - 4096)), (2, "max")])
def test_a_container_without_a_limit_has_none(tmp_path: Path, version: int, limit: str) -> None:
    assert read_free_memory(write_cgroup(tmp_path, version, limit)) is None


def test_a_version_that_needs_more_than_is_left_is_refused_with_the_numbers_and_the_way_out(
    tmp_path: Path,
) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    cgroup = write_cgroup(tmp_path, 2)
    with pytest.raises(VersionTooLargeError) as refused, limit_memory(2, has_engines=True, cgroup=cgroup):
        np.empty(FREE, np.int8)  # each of two processes has half of it
    assert str(refused.value) == (
        f"out of memory: with 2 processes the version needs more than the {FREE >> 20} MiB that the other versions leave of the limit "
        "of 1024 MiB; raise spec.resources.memory, or keep fewer with spec.rollout.keepVersions, or remove spec.compile.engine"
    )
    with limit_memory(1, has_engines=False, cgroup=cgroup):
        np.empty(FREE // 2, np.int8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_other_errors_of_a_model_are_its_own(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="no graph"),
        limit_memory(1, has_engines=False, cgroup=write_cgroup(tmp_path, 2)),
    ):
        raise ValueError("no graph")
