"""`tidegate release` against the real API server and controllers."""

from __future__ import annotations

import pytest

from builders.model_access import model_access_body
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl


@pytest.fixture
def access(kubectl: Kubectl, namespace: str) -> str:
    """A release that waits for its target, which nobody has made."""
    targets = [{"inference": "v3", "weight": 100}, {"inference": "v4", "weight": 0}]
    check = {"metric": "ErrorRate", "max": "0.01"}
    release = {"route": "default", "target": "v4", "steps": [10, 100], "interval": "1s", "checks": [check]}
    body = model_access_body(routes=[{"name": "default", "targets": targets}], release=release)
    kubectl.apply({**body, "metadata": {"name": "ctr"}}, namespace=namespace)
    return f"{namespace}/ctr"


@pytest.mark.usefixtures("controllers")
def test_each_command_is_acted_on_before_it_returns(access: str, command_line: CommandLine) -> None:
    def told(command: str) -> tuple[str, str, int]:
        said = command_line("release", command, access)
        return said["acted"], said["phase"], said["weight"]

    def tried(command: str) -> tuple[str, str, bool]:
        said = command_line("release", command, access, "--dry-run")
        return said["acted"], said["phase"], said["dryRun"]

    assert told("pause") == ("Done", "Paused", 10)
    assert told("pause") == ("Already", "Paused", 10)
    # Nothing is written: what is next to be acted on is what was acted on last.
    assert tried("pause") == ("Already", "Paused", True)
    assert tried("abort") == ("Done", "Paused", True)
    assert tried("resume") == ("Done", "Paused", True)
    assert told("pause") == ("Already", "Paused", 10)
    assert told("resume") == ("Done", "Progressing", 10)
    assert told("promote") == ("Done", "Promoted", 100)
    assert told("abort") == ("Done", "RolledBack", 0)
    assert told("abort") == ("Already", "RolledBack", 0)
    done = command_line.run("release", "resume", access)
    assert (done.exit_code, "resume changes nothing of a release that is RolledBack" in done.stdout) == (
        1,
        True,
    )
    without = command_line.run("release", "resume", access, "--dry-run")
    assert (without.exit_code, "resume changes nothing" in without.stdout) == (1, True)
    assert told("restart")[0] == "Done"
    # Said twice, it begins twice: the value was taken away between the two.
    first = command_line("release", "status", access)["since"]
    assert told("restart")[0] == "Done"
    assert command_line("release", "status", access)["since"] >= first
    assert 'ModelAccess "gone" not found' in command_line.refused("release", "status", f"{access[:-3]}gone")


@pytest.mark.usefixtures("controllers")
def test_releases_are_listed_by_label(
    access: str, command_line: CommandLine, kubectl: Kubectl, namespace: str
) -> None:
    kubectl("label", "modelaccess", "ctr", "team=ads", "-n", namespace)
    (listed,) = command_line("release", "list", "-n", namespace, "-l", "team=ads")["releases"]
    assert (listed["access"], listed["target"], listed["steps"]) == (access, "v4", [10, 100])
    assert command_line("release", "list", "-n", namespace, "-l", "team=search")["releases"] == []
    assert access in {each["access"] for each in command_line("release", "list", "-A")["releases"]}
