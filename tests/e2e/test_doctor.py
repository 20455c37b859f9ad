"""`tidegate doctor` on a whole installation: nothing where all is well, and each thing that is taken away by its code."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from builders.waiting import wait_until
from fixtures.installed import Installed
from tidegate_localcluster.demo import helm


def examined(installed: Installed) -> Sequence[tuple[str, str]]:
    """Codes and objects."""
    said = json.loads(installed.tidegate("doctor", "-o", "json", "--fail-on", "Never"))
    assert said["skipped"] == []
    return [(each["code"], each["object"]) for each in said["findings"]]


@pytest.mark.alone("takes parts of the installation away")
def test_what_is_missing_of_an_installation_is_found_and_nothing_once_it_is_back(
    installed: Installed,
) -> None:
    wait_until(lambda: examined(installed) == [], "all is well", evidence=lambda: examined(installed))
    kubectl = installed.kubectl
    kubectl.run("delete", "deployment", "tidegate-web", "-n", helm.NAMESPACE)
    kubectl.run("delete", "validatingadmissionpolicybinding", "tidegate-epoch")
    kubectl.run("scale", "deployment", "tidegate-controllers", "-n", helm.NAMESPACE, "--replicas=0")
    missing = [
        ("TG9003", f"{helm.NAMESPACE}/tidegate-web"),
        ("TG9005", f"{helm.NAMESPACE}/tidegate-controllers"),
        ("TG9008", "tidegate-epoch"),
    ]
    try:
        wait_until(
            lambda: sorted(examined(installed)) == missing, "all three", evidence=lambda: examined(installed)
        )
    finally:
        installed.upgrade()
        kubectl.run("scale", "deployment", "tidegate-controllers", "-n", helm.NAMESPACE, "--replicas=2")
    wait_until(lambda: examined(installed) == [], "all is well again", evidence=lambda: examined(installed))
