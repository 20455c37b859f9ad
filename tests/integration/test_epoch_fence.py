"""The chart's admission policy on a real API server: an old leader's write is refused, a mended one is not."""

from __future__ import annotations

import json

import pytest

from builders.waiting import wait_until
from faults.installation import policies
from fixtures.control_plane import Kubectl
from tidegate.resources.names import MANAGED_BY, MANAGER

CONTROLLERS = "system:serviceaccount:tidegate-system:tidegate-controllers"
LABEL = "app.kubernetes.io/managed-by=tidegate"
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "suspend": True,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}},
    },
}


@pytest.fixture(scope="module")
def fenced(kubectl: Kubectl, file_namespace: str) -> str:
    """A namespace in which the policy is in force, with a child of term 7."""
    kubectl.apply(*policies("fence"))
    kubectl(
        "create", "rolebinding", "c", "--clusterrole=admin", f"--user={CONTROLLERS}", "-n", file_namespace
    )
    kubectl("create", "configmap", "child", "-n", file_namespace)
    kubectl("label", "configmap", "child", "-n", file_namespace, LABEL)

    def refused() -> bool:
        kubectl("annotate", "configmap", "child", "-n", file_namespace, "--overwrite", "tidegate.io/epoch=7")
        return "no longer the leader" in written(kubectl, file_namespace, "6")

    wait_until(refused, what="a write of term 6 is refused")
    return file_namespace


def written(kubectl: Kubectl, namespace: str, epoch: str) -> str:
    """What the API server says to a write by the controllers in that term; empty when it takes it."""
    return kubectl.run(
        *("annotate", "configmap", "child", "-n", namespace, f"--as={CONTROLLERS}"),
        *("--overwrite", f"tidegate.io/epoch={epoch}"),
    ).stderr


@pytest.mark.no_rerun("a refused right")
def test_old_leader_is_refused_and_its_successor_is_not(kubectl: Kubectl, fenced: str) -> None:
    assert written(kubectl, fenced, "8") == ""
    assert "no longer the leader" in written(kubectl, fenced, "7")


@pytest.mark.parametrize("forged", ["banana", "", "-1", "7.5", "99999999999999999999"])
def test_child_whose_epoch_somebody_spoiled_is_repaired(kubectl: Kubectl, fenced: str, forged: str) -> None:
    kubectl("annotate", "configmap", "child", "-n", fenced, "--overwrite", f"tidegate.io/epoch={forged}")

    assert written(kubectl, fenced, "8") == ""
    assert "no longer the leader" in written(kubectl, fenced, "7"), "and the fence stands again"


@pytest.mark.no_rerun("a refused right")
def test_what_an_old_leader_changes_of_batches_is_refused(kubectl: Kubectl, fenced: str) -> None:
    kubectl(
        *("create", "rolebinding", "all-jobs", "--clusterrole=cluster-admin"),
        *(f"--user={CONTROLLERS}", "-n", fenced),
    )

    def applied(epoch: int) -> str:
        annotations = {"tidegate.io/epoch": str(epoch)}
        metadata = {"name": "child", "labels": {MANAGED_BY: MANAGER}, "annotations": annotations}
        asked = ("apply", "--server-side", "-n", fenced, f"--as={CONTROLLERS}", "-f", "-")
        return kubectl.run(*asked, stdin=json.dumps({**JOB, "metadata": metadata})).stderr

    assert applied(7) == ""
    assert "no longer the leader" in applied(6)
    assert applied(8) == ""
