"""What the controllers may change of pods: the chart's role and policy on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builders.waiting import wait_until
from faults.installation import policies
from fixtures.control_plane import Kubectl
from tidegate_localcluster.supplies import find_source_root

CONTROLLERS: Final = "system:serviceaccount:tidegate-system:tidegate-controllers"
RULES: Path = find_source_root() / "charts" / "tidegate" / "files" / "rbac" / "controllers-cluster.yaml"
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
SERVED: Final = "tidegate.io/shared-models"
NOTHING_ELSE: Final = "of pods of theirs, and nothing else"


def a_pod(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": {"kept": "yes"}},
        "spec": {
            "containers": [{"name": "c", "image": "registry.invalid/none"}],
            "automountServiceAccountToken": False,
        },
    }


@pytest.fixture(scope="module")
def pods(kubectl: Kubectl, file_namespace: str) -> Iterator[str]:
    """The namespace of a pod of ours and of another, once role and policy are in force."""
    name = f"{file_namespace}-pods"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    kubectl.apply(*policies("child-bounds"), {**role, "rules": yaml.safe_load(RULES.read_text())})
    kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={CONTROLLERS}")
    ours = {"app.kubernetes.io/managed-by": "tidegate"}
    spare = a_pod("spare", **ours, **{"tidegate.io/shared-spare": "0"})
    kubectl.apply(account, a_pod("ours", **ours), spare, a_pod("theirs"), namespace=file_namespace)
    wait_until(
        lambda: NOTHING_ELSE in patched(kubectl, file_namespace, "theirs", annotations={COST: "-1"}),
        what="the policy is in force",
    )
    yield file_namespace
    for kind in ("clusterrole", "clusterrolebinding"):
        kubectl.run("delete", kind, name, "--wait=false")


def patched(
    kubectl: Kubectl, namespace: str, pod: str, spec: Mapping[str, Any] | None = None, **metadata: Any
) -> str:
    """What the API server says to a patch by the controllers; empty when it takes it."""
    patch = {"metadata": metadata, **({"spec": spec} if spec else {})}
    asked = ("patch", "pod", pod, "-n", namespace, f"--as={CONTROLLERS}", "--type=merge")
    return kubectl.run(*asked, "-p", json.dumps(patch)).stderr


def test_the_order_of_ends_may_be_written_and_removed(kubectl: Kubectl, pods: str) -> None:
    for cost, left in (("-1", {"kept": "yes", COST: "-1"}), (None, {"kept": "yes"})):
        assert patched(kubectl, pods, "ours", annotations={COST: cost}) == ""
        assert kubectl.json("get", "pod", "ours", "-n", pods)["metadata"]["annotations"] == left


def test_what_a_pod_serves_may_be_written_to_shared_spares_alone(kubectl: Kubectl, pods: str) -> None:
    assert patched(kubectl, pods, "spare", annotations={SERVED: "ctr=3"}) == ""
    assert patched(kubectl, pods, "spare", annotations={SERVED: "ctr=4,cvr=1"}) == ""
    assert NOTHING_ELSE in patched(kubectl, pods, "spare", annotations={SERVED: "ctr=4", "kept": "no"})
    assert NOTHING_ELSE in patched(kubectl, pods, "ours", annotations={SERVED: "ctr=3"})


@pytest.mark.parametrize(
    "patch",
    [
        {"annotations": {"other": "x"}},
        {"annotations": {COST: "-1", "kept": "no"}},
        {"annotations": {COST: "-1", "kept": None}},
        {"labels": {"tidegate.io/pool": "mine"}},
        {"finalizers": ["tidegate.io/forever"]},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]},
        {
            "annotations": {COST: "-1"},
            "spec": {"containers": [{"name": "c", "image": "registry.invalid/mine"}]},
        },
        {"spec": {"activeDeadlineSeconds": 1}},
    ],
    ids=["annotation", "value", "removal", "label", "finalizer", "owner", "image", "deadline"],
)
def test_nothing_else_of_a_pod_may_be_changed(kubectl: Kubectl, pods: str, patch: dict[str, Any]) -> None:
    assert NOTHING_ELSE in patched(kubectl, pods, "ours", **patch)


def test_pods_of_others_keep_their_order(kubectl: Kubectl, pods: str) -> None:
    assert NOTHING_ELSE in patched(kubectl, pods, "theirs", annotations={COST: "-1"})


def test_pods_are_neither_created_nor_deleted(kubectl: Kubectl, pods: str) -> None:
    deleted = kubectl.run("delete", "pod", "ours", "-n", pods, f"--as={CONTROLLERS}")
    assert "forbidden" in deleted.stderr
    made = kubectl.run(
        *("create", "-n", pods, f"--as={CONTROLLERS}", "-f", "-"), stdin=yaml.safe_dump(a_pod("made"))
    )
    assert "forbidden" in made.stderr
