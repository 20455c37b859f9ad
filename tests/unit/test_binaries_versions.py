"""go.mod is the one file of versions, and everything we build is in it."""

import re

import pytest

from tidegate_localcluster.programs import PROGRAMS
from tidegate_localcluster.versions import (
    GO_MOD,
    GO_WHEEL,
    SOURCE,
    linker_flags,
    read_go_language,
    read_pinned_version,
)


def test_every_package_is_a_tool_of_go_mod_or_ours() -> None:
    block = re.search(r"^tool \((.*?)^\)", GO_MOD.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    packages = {
        program.go_package for program in PROGRAMS.values() if program.go_package and not program.go_module
    }
    ours = {f"./cmd/{path.name}" for path in (SOURCE / "cmd").iterdir()}
    assert packages == set(block[1].split()) | ours


def test_kubernetes_libraries_have_the_version_of_its_programs() -> None:
    libraries = set(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$", GO_MOD.read_text(), re.MULTILINE))
    assert libraries == {read_pinned_version("k8s.io/kubernetes").removeprefix("1.")}


def test_programs_carry_their_version() -> None:
    version = read_pinned_version("k8s.io/kubernetes")
    assert f"-X k8s.io/component-base/version.gitVersion=v{version}" in linker_flags()
    assert f"-X k8s.io/client-go/pkg/version.gitVersion=v{version}" in linker_flags()


def test_the_wheel_is_new_enough() -> None:
    assert tuple(map(int, GO_WHEEL.split("."))) >= read_go_language()


def test_a_module_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"example\.org/no is not in .*go\.mod"):
        read_pinned_version("example.org/no")
