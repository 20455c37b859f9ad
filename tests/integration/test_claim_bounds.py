"""What the controllers may do to pods and ResourceClaims where GPUs are shared by claims: the chart's role and policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.waiting import wait_until
from faults.installation import policies
from fixtures.control_plane import Kubectl
from tidegate_localcluster.supplies import source_root

CONTROLLERS = "system:serviceaccount:tidegate-system:tidegate-controllers"
RULES: Path = source_root() / "charts" / "tidegate" / "files" / "rbac" / "controllers-claims.yaml"
OURS = {"app.kubernetes.io/managed-by": "tidegate"}
GATES = [{"name": "tidegate.io/slice"}, {"name": "somebodys/gate"}]


@pytest.fixture(scope="module")
def bounded(kubectl: Kubectl, file_namespace: str) -> Iterator[Kubectl]:
    """kubectl, once role and policies are in force; a pod of ours and one of somebody else wait at two gates."""
    name = f"{file_namespace}-claims"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    # kubectl reads before it writes; the controllers may do so by another role.
    reads = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    kubectl.apply(*policies("claim-bounds"), {**role, "rules": [*yaml.safe_load(RULES.read_text()), reads]})
    kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={CONTROLLERS}")
    spec = {"schedulingGates": GATES, "containers": [{"name": "c", "image": "c"}]}
    for pod, labels in (("ours", OURS), ("theirs", {})):
        metadata = {"name": pod, "labels": labels}
        kubectl.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace=file_namespace
        )
    tries = count()
    wait_until(
        lambda: (
            "change nothing else"
            in patched(
                kubectl, file_namespace, "ours", {"metadata": {"annotations": {"try": str(next(tries))}}}
            )
        ),
        what="an annotation by the controllers is refused",
        timeout_s=30.0,
    )
    yield kubectl
    for kind in ("clusterrole", "clusterrolebinding"):
        kubectl.run("delete", kind, name, "--wait=false")


def patched(kubectl: Kubectl, namespace: str, pod: str, patch: object) -> str:
    """What the API server says to a patch by the controllers; empty when it takes it."""
    return kubectl.run(
        *(
            "patch",
            "pod",
            pod,
            "-n",
            namespace,
            f"--as={CONTROLLERS}",
            "--type=merge",
            "-p",
            json.dumps(patch),
        )
    ).stderr


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"schedulingGates": []}},
        {"spec": {"schedulingGates": GATES[1:], "nodeSelector": {"a": "b"}}},
        {"metadata": {"labels": {"a": "b"}}, "spec": {"schedulingGates": GATES[1:]}},
        {"metadata": {"finalizers": ["tidegate.io/forever"]}, "spec": {"schedulingGates": GATES[1:]}},
    ],
    ids=["somebody's gate", "node selector", "label", "finalizer"],
)
def test_nothing_else_of_a_pod_may_be_changed(bounded: Kubectl, file_namespace: str, patch: object) -> None:
    assert "change nothing else" in patched(bounded, file_namespace, "ours", patch)


def test_no_other_image_may_be_run(bounded: Kubectl, file_namespace: str) -> None:
    """Of all fields of a pod's containers, it is the one that the API server lets change."""
    asked = ("set", "image", "pod/ours", "c=other", "-n", file_namespace)
    assert "change nothing else" in bounded.run(*asked, f"--as={CONTROLLERS}").stderr
    assert bounded.run(*asked).returncode == 0


def test_claims_of_others_are_left_alone(bounded: Kubectl, file_namespace: str) -> None:
    def applied(name: str, labels: dict[str, str], *, by: str = CONTROLLERS) -> str:
        body: dict[str, Any] = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "labels": labels},
            "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "none"}}]}},
        }
        as_whom = (f"--as={by}",) if by else ()
        asked = ("apply", "--server-side", "-n", file_namespace, "-f", "-", *as_whom)
        return bounded.run(*asked, stdin=yaml.safe_dump(body)).stderr

    def deleted(name: str) -> str:
        return bounded.run(
            "delete", "resourceclaim", name, "-n", file_namespace, f"--as={CONTROLLERS}"
        ).stderr

    refusal = "ResourceClaims of theirs, and no others"
    wait_until(
        lambda: refusal in applied("theirs", {}), what="the policy of claims is in force", timeout_s=30.0
    )
    assert applied("ours", OURS) == ""
    assert applied("theirs", {}, by="") == ""
    assert refusal in applied("theirs", OURS)
    assert refusal in deleted("theirs")
    assert deleted("ours") == ""


def test_our_gate_of_our_pods_may_be_opened(bounded: Kubectl, file_namespace: str) -> None:
    opened = {"spec": {"schedulingGates": GATES[1:]}}
    assert "from pods of theirs" in patched(bounded, file_namespace, "theirs", opened)
    assert patched(bounded, file_namespace, "ours", opened) == ""
    assert bounded.json("get", "pod", "ours", "-n", file_namespace)["spec"]["schedulingGates"] == GATES[1:]
