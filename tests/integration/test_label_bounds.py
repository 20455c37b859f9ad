"""Who may give an object labels of ours: the chart's policy on a real API server, and Kubernetes' own controllers under it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from builders.waiting import wait_until
from fixtures.chart import rendered
from fixtures.control_plane import Kubectl

CONTROLLERS: Final = "system:serviceaccount:tidegate-system:tidegate-controllers"
RESTORER: Final = "system:serviceaccount:velero:velero"
TENANT: Final = "tenant"
REFUSAL: Final = "are Tidegate's own: leave them out"
MANAGED: Final = {"app.kubernetes.io/managed-by": "tidegate"}
CONTAINERS: Final = {"containers": [{"name": "c", "image": "c"}]}
BY_KIND: Final = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}


@pytest.fixture(scope="module")
def bounded(kubectl: Kubectl, helm: Path, file_namespace: str) -> Iterator[Kubectl]:
    """kubectl, once the policy is in force in this namespace, where a tenant may write all."""
    values = {"watchNamespaces": [file_namespace], "labelBounds.writers": [RESTORER]}
    name = "tidegate-label-bounds"
    objects = rendered(helm, values)
    policy = objects["ValidatingAdmissionPolicy", name]
    binding = objects["ValidatingAdmissionPolicyBinding", name]
    kubectl.apply(policy, binding)
    for number, user in enumerate((TENANT, CONTROLLERS, RESTORER)):
        kubectl(
            *("create", "rolebinding", f"all-{number}", "--clusterrole=cluster-admin", f"--user={user}"),
            *("-n", file_namespace),
        )
    tries = count()
    wait_until(
        lambda: REFUSAL in applied(kubectl, file_namespace, config_map(f"try-{next(tries)}", MANAGED)),
        what="a label of ours is refused",
    )
    yield kubectl
    for body in (binding, policy):
        kubectl.run("delete", body["kind"], name, "--wait=false")


def applied(kubectl: Kubectl, namespace: str, body: Mapping[str, Any], by: str = TENANT) -> str:
    """What the API server says to an object of somebody, or of the administrator; empty when it takes it."""
    as_whom = (f"--as={by}",) if by else ()
    asked = ("apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-", *as_whom)
    return kubectl.run(*asked, stdin=json.dumps(body)).stderr


def config_map(name: str, labels: Mapping[str, str]) -> Mapping[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}


def pod(name: str, labels: Mapping[str, str]) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": CONTAINERS,
    }


def workload(
    kind: str, name: str, template_labels: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """A workload of any kind, whose pods carry these labels beside one of their own."""
    once = {"restartPolicy": "Never"} if kind in ("Job", "CronJob") else {}
    template = {"metadata": {"labels": {"app": name, **template_labels}}, "spec": {**CONTAINERS, **once}}
    spec: dict[str, Any] = {"template": template}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    elif kind != "Job":
        spec |= {"selector": {"matchLabels": {"app": name}}}
    if kind == "StatefulSet":
        spec |= {"serviceName": name}
    return {
        "apiVersion": BY_KIND[kind],
        "kind": kind,
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
    }


@pytest.mark.parametrize(
    "labels",
    [MANAGED, {"tidegate.io/slices": "999"}, {"tidegate.io/anything": ""}],
    ids=["managed-by", "slices", "empty"],
)
def test_no_tenant_makes_a_pod_with_labels_of_ours(
    bounded: Kubectl, file_namespace: str, labels: dict[str, str]
) -> None:
    assert REFUSAL in applied(bounded, file_namespace, pod("hog", labels))
    assert REFUSAL in applied(bounded, file_namespace, config_map("hog", labels))


@pytest.mark.parametrize("kind", BY_KIND)
def test_no_tenant_has_kubernetes_make_pods_with_labels_of_ours(
    bounded: Kubectl, file_namespace: str, kind: str
) -> None:
    """Else its controllers, which may write these labels, would copy them from the template."""
    name = f"hog-{kind.lower()}"
    assert REFUSAL in applied(bounded, file_namespace, workload(kind, name, MANAGED))
    assert REFUSAL in applied(bounded, file_namespace, workload(kind, name, {}, MANAGED))
    assert applied(bounded, file_namespace, workload(kind, name, {"tier": "tidegate"})) == ""


def test_no_tenant_changes_a_label_of_ours_and_anyone_may_change_the_rest(
    bounded: Kubectl, file_namespace: str
) -> None:
    ours = {**MANAGED, "tidegate.io/slices": "1"}
    assert applied(bounded, file_namespace, pod("ours", ours), by=CONTROLLERS) == ""
    label = ("label", "pod", "ours", "-n", file_namespace, f"--as={TENANT}", "--overwrite")
    assert REFUSAL in bounded.refusal(*label, "tidegate.io/slices=2")
    bounded(*label, "team=ads")
    bounded(*label, "tidegate.io/slices-")
    assert REFUSAL in bounded.refusal(*label, "tidegate.io/slices=1")
    bounded(*label, "app.kubernetes.io/managed-by=Helm")


def test_deployments_of_ours_may_be_scaled_and_restarted_by_their_tenant(
    bounded: Kubectl, file_namespace: str
) -> None:
    """And have pods: Kubernetes' own controllers copy our labels."""
    ours = workload("Deployment", "inf-ctr", {"tidegate.io/inference": "ctr", **MANAGED}, MANAGED)
    assert applied(bounded, file_namespace, ours, by=CONTROLLERS) == ""
    job = workload("Job", "inf-ctr-1", {"tidegate.io/run": "one", **MANAGED}, MANAGED)
    assert applied(bounded, file_namespace, job, by=CONTROLLERS) == ""
    bounded("scale", "deployment/inf-ctr", "--replicas=2", "-n", file_namespace, f"--as={TENANT}")
    bounded("rollout", "restart", "deployment/inf-ctr", "-n", file_namespace, f"--as={TENANT}")

    def pods_of(label: str) -> int:
        listed = ("get", "pods", "-n", file_namespace, "-l", label)
        return len(bounded.json(*listed)["items"])

    wait_until(lambda: pods_of("tidegate.io/inference=ctr") >= 2, what="the Deployment has its pods")
    wait_until(lambda: pods_of("tidegate.io/run=one") == 1, what="the Job has its pod")


def test_who_restores_a_backup_may_where_the_chart_names_them(bounded: Kubectl, file_namespace: str) -> None:
    assert REFUSAL in applied(bounded, file_namespace, config_map("restored", MANAGED))
    assert applied(bounded, file_namespace, config_map("restored", MANAGED), by=RESTORER) == ""


def test_namespaces_that_the_release_does_not_serve_are_not_its_concern(
    bounded: Kubectl, namespace: str
) -> None:
    assert applied(bounded, namespace, config_map("others", MANAGED), by="") == ""
