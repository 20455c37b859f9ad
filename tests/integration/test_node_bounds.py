"""What the controllers may do to nodes and pods where node agents run: the chart's role and policies on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import yaml

from builders.waiting import wait_until
from faults.installation import PLUGIN, policies
from fixtures.control_plane import Kubectl, wait_for_account
from tidegate_localcluster.supplies import find_source_root

CONTROLLERS = "system:serviceaccount:tidegate-system:tidegate-controllers"
RULES: Path = find_source_root() / "charts" / "tidegate" / "files" / "rbac" / "controllers-sharing.yaml"
TAINT = [{"key": "tidegate.io/sharing", "value": "Quarantined", "effect": "NoSchedule"}]
FOREIGN = [{"key": "dedicated", "value": "ads", "effect": "NoSchedule"}]


@pytest.fixture(scope="module")
def node(kubectl: Kubectl, file_namespace: str) -> Iterator[str]:
    """A node with somebody's taint, once role and policies are in force."""
    name = f"{file_namespace}-0"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    kubectl.apply(*policies("node-bounds"), {**role, "rules": yaml.safe_load(RULES.read_text())})
    kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--user={CONTROLLERS}")
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": FOREIGN}}
    )
    tries = count()
    wait_until(
        lambda: (
            "and nothing else"
            in patched(kubectl, name, {"metadata": {"annotations": {"try": str(next(tries))}}})
        ),
        what="an annotation by the controllers is refused",
    )
    yield name
    for kind in ("node", "clusterrole", "clusterrolebinding"):
        kubectl.run("delete", kind, name, "--wait=false")


def patched(kubectl: Kubectl, node: str, patch: object) -> str:
    """What the API server says to a patch by the controllers; empty when it takes it."""
    done = kubectl.run(
        *("patch", "node", node, f"--as={CONTROLLERS}", "--type=merge", "-p", json.dumps(patch))
    )
    return done.stderr


def test_one_taint_of_a_node_may_be_changed(kubectl: Kubectl, node: str) -> None:
    def others() -> list[dict[str, str]]:
        """Kubernetes adds some of its own to a node without a kubelet, and does so when it likes."""
        taints = kubectl.json("get", "node", node)["spec"]["taints"]
        return [each for each in taints if each["key"] != "tidegate.io/sharing"]

    for ours in (TAINT, []):
        wait_until(
            lambda ours=ours: patched(kubectl, node, {"spec": {"taints": [*others(), *ours]}}) == "",
            what=f"our taint becomes {ours}",
        )
        taints = kubectl.json("get", "node", node)["spec"]["taints"]
        assert [each for each in taints if each["key"] == "tidegate.io/sharing"] == ours


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"taints": TAINT}},
        {"spec": {"taints": [*FOREIGN, {"key": "other", "effect": "NoExecute"}]}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["tidegate.io/forever"]}},
        {"spec": {"unschedulable": True}},
    ],
    ids=["somebody's taint", "another taint", "label", "annotation", "finalizer", "cordon"],
)
def test_nothing_else_of_a_node_may_be_changed(kubectl: Kubectl, node: str, patch: object) -> None:
    assert "may change the taint tidegate.io/sharing of a node, and nothing else" in patched(
        kubectl, node, patch
    )


@pytest.mark.parametrize(
    "taint", [{"effect": "NoExecute"}, {"value": "Reserved"}, {"value": ""}], ids=["effect", "value", "none"]
)
def test_our_taint_has_no_other_value_and_keeps_no_running_pod(
    kubectl: Kubectl, node: str, taint: dict[str, str]
) -> None:
    def said() -> str:
        """Kubernetes adds taints of its own meanwhile, which then count as changed by us."""
        taints = kubectl.json("get", "node", node)["spec"]["taints"]
        return patched(kubectl, node, {"spec": {"taints": [*taints, {**TAINT[0], **taint}]}})

    refusal = "has the value Quarantined and the effect NoSchedule"
    wait_until(lambda: refusal in said(), what=f"the taint with {taint} is refused")
    taints = kubectl.json("get", "node", node)["spec"]["taints"]
    assert [each for each in taints if each["key"] == "tidegate.io/sharing"] == []


@pytest.mark.usefixtures("node")
def test_only_pods_of_the_mps_daemon_may_be_deleted(kubectl: Kubectl, file_namespace: str) -> None:
    kubectl.run("create", "namespace", PLUGIN)
    wait_for_account(kubectl, PLUGIN)

    def deleted(name: str, where: str, labels: dict[str, str], owner: dict[str, object] | None = None) -> str:
        metadata = {"name": name, "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
        spec = {"containers": [{"name": "c", "image": "c"}]}
        kubectl.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace=where
        )
        done = kubectl.run("delete", "pod", name, "-n", where, f"--as={CONTROLLERS}", "--wait=false")
        return done.stderr

    def owner(name: str) -> dict[str, object]:
        """One that exists: pods of one that does not are collected. It is for no node."""
        labels = {"app": name}
        spec = {"nodeSelector": {"none": "none"}, "containers": [{"name": "c", "image": "c"}]}
        template = {"metadata": {"labels": labels}, "spec": spec}
        whole = {"selector": {"matchLabels": labels}, "template": template}
        head = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
        kubectl.apply({**head, "metadata": {"name": name}, "spec": whole}, namespace=PLUGIN)
        uid = kubectl.json("get", "daemonset", name, "-n", PLUGIN)["metadata"]["uid"]
        return {**head, "name": name, "uid": uid}

    refusal = "may delete pods of the MPS control daemon, and no others"
    wait_until(
        lambda: refusal in deleted("stranger", file_namespace, {}),
        what="the policy of pods is in force",
    )
    assert refusal in deleted("stranger", PLUGIN, {})
    assert refusal in deleted("ours", file_namespace, {"app.kubernetes.io/managed-by": "tidegate"})
    assert refusal in deleted("plugin", PLUGIN, {}, owner(PLUGIN))
    assert refusal not in deleted("daemon", PLUGIN, {}, owner(f"{PLUGIN}-mps-control-daemon"))
    kubectl.run("delete", "namespace", PLUGIN, "--wait=false")
