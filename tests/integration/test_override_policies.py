"""The chart's policies about ComputeOverrides on a real API server: who wrote one, and how long it lasts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from builders.compute_override import compute_override_body
from builders.waiting import wait_until
from faults.installation import policies
from fixtures.control_plane import Kubectl
from tidegate.api.compute_override import AUTHOR_ANNOTATION

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def name(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """The name of an override, once the policies are in force."""
    kubectl.apply(*policies("overrides"))
    kubectl(
        *("create", "clusterrole", namespace, "--verb=get,create,patch,update,delete"),
        "--resource=computeoverrides.tidegate.io",
    )
    for user in ("alice", "bob"):
        kubectl(
            *("create", "clusterrolebinding", f"{namespace}-{user}"),
            *(f"--clusterrole={namespace}", f"--user={user}"),
        )

    def in_force() -> bool:
        return "at most 7 days" in applied(kubectl, namespace, "alice", days=8)

    wait_until(in_force, what="the policies are in force")
    wait_until(
        lambda: (applied(kubectl, namespace, "alice"), author(kubectl, namespace))[1] == "alice",
        what="the author is written down",
    )
    yield namespace
    for what in ("computeoverride", "clusterrole"):
        kubectl.run("delete", what, namespace, "--wait=false")
    for user in ("alice", "bob"):
        kubectl.run("delete", "clusterrolebinding", f"{namespace}-{user}", "--wait=false")


def applied(kubectl: Kubectl, name: str, user: str, *, days: int = 6, said: str = "", pods: int = 2) -> str:
    """What the API server says to an override that this user applies; empty when it takes it."""
    ends = (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = compute_override_body(name, expiresAt=ends, floor={"replicas": pods})
    annotations = {AUTHOR_ANNOTATION: said} if said else {}
    manifest = {**body, "metadata": {"name": name, "annotations": annotations}}
    return kubectl.run("apply", f"--as={user}", "--filename=-", stdin=json.dumps(manifest)).stderr

    return json.dumps(manifest)


def author(kubectl: Kubectl, name: str) -> str:
    metadata = kubectl.json("get", "computeoverride", name)["metadata"]
    return str(metadata.get("annotations", {}).get(AUTHOR_ANNOTATION, ""))


def test_the_author_is_who_wrote_the_spec_and_never_what_was_typed(kubectl: Kubectl, name: str) -> None:
    assert applied(kubectl, name, "bob", said="alice", pods=3) == ""
    assert author(kubectl, name) == "bob"
    kubectl("label", "computeoverride", name, "team=ads", "--as=alice")
    assert author(kubectl, name) == "bob"
    kubectl("annotate", "computeoverride", name, "--overwrite", f"{AUTHOR_ANNOTATION}=carol", "--as=alice")
    assert author(kubectl, name) == "bob"
    assert applied(kubectl, name, "alice", pods=4) == ""
    assert author(kubectl, name) == "alice"


def test_no_override_is_made_for_more_than_a_week_nor_prolonged_beyond_it(
    kubectl: Kubectl, name: str
) -> None:
    assert "spec.expiresAt must be at most 7 days" in applied(kubectl, name, "alice", days=8)
    assert applied(kubectl, name, "alice", days=5) == ""
