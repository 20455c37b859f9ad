"""The controllers as a real process against a real API server: children, ownership, drift."""

from __future__ import annotations

from typing import Any

import pytest

from builders.inference import inference_body
from builders.metrics_page import listed, metric, shown
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from fixtures.processes import Running
from tidegate.api.reasons import Reason

CHILDREN = "configmaps,deployments,poddisruptionbudgets"


def children(kubectl: Kubectl, namespace: str, name: str = "ctr") -> dict[str, Any]:
    """Our objects of one Inference, by kind."""
    found = kubectl.json("get", CHILDREN, "-n", namespace, "-l", f"tidegate.io/inference={name}")
    return {one["kind"]: one for one in found["items"]}


def ready(kubectl: Kubectl, namespace: str, kind: str = "inference", name: str = "ctr") -> dict[str, Any]:
    """The Ready condition, empty while there is none."""
    found = kubectl.json("get", kind, name, "-n", namespace)
    conditions = found.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "Ready"), {})


def test_the_page_of_metrics_shows_what_the_reference_lists_and_that_they_lead_and_write(
    controllers: Running,
) -> None:
    page = controllers.metrics()
    assert shown(page) == listed("Controllers")
    assert metric(page, "tidegate_leader") == 1
    assert metric(page, "tidegate_api_writes_total", resource="leases", result="ok") >= 1
    assert metric(page, "tidegate_build_info", process="controllers") == 1
    assert metric(page, "process_resident_memory_bytes") > 1e6


@pytest.mark.produces(Reason.UNSCHEDULABLE)
def test_inference_gets_its_children_and_they_are_its_own(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl.apply(_fresh(inference_body(namespace=namespace, replicas=2)), namespace=namespace)
    wait_until(lambda: len(children(kubectl, namespace)) == 3, "all children exist")

    found = children(kubectl, namespace)
    uid = kubectl.json("get", "inference", "ctr", "-n", namespace)["metadata"]["uid"]
    for child in found.values():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
        assert child["metadata"]["annotations"]["tidegate.io/epoch"]
    assert found["Deployment"]["spec"]["replicas"] == 2
    # No node exists, so no pod can run: the status says so in the scheduler's words.
    wait_until(lambda: ready(kubectl, namespace).get("reason") == "Unschedulable", "Ready says Unschedulable")


def test_drift_is_repaired_and_what_others_add_is_left(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    wait_until(lambda: len(children(kubectl, namespace)) == 2, "both children exist")

    kubectl("label", "deployment", "inf-ctr", "-n", namespace, "team=ads")
    kubectl("scale", "deployment", "inf-ctr", "-n", namespace, "--replicas=7")
    wait_until(
        lambda: children(kubectl, namespace)["Deployment"]["spec"]["replicas"] == 1, "the scale is repaired"
    )
    assert children(kubectl, namespace)["Deployment"]["metadata"]["labels"]["team"] == "ads"

    config_map = children(kubectl, namespace)["ConfigMap"]["metadata"]["name"]
    kubectl("delete", "configmap", config_map, "-n", namespace)
    wait_until(lambda: "ConfigMap" in children(kubectl, namespace), "the ConfigMap is back")


def test_a_budget_comes_with_the_second_replica_and_is_repaired(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    wait_until(lambda: len(children(kubectl, namespace)) == 2, "both children exist")
    kubectl("scale", "inference", "ctr", "-n", namespace, "--replicas=2")
    wait_until(lambda: "PodDisruptionBudget" in children(kubectl, namespace), "there is a budget")
    assert children(kubectl, namespace)["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1

    loose = '{"spec": {"maxUnavailable": 2}}'
    kubectl("patch", "poddisruptionbudget", "inf-ctr", "-n", namespace, "--type=merge", "-p", loose)
    wait_until(
        lambda: children(kubectl, namespace)["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1,
        "the budget is repaired",
    )


@pytest.mark.produces(Reason.NAME_CONFLICT)
def test_name_of_somebody_elses_object_is_never_taken(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl("create", "deployment", "inf-ctr", "-n", namespace, "--image=theirs", "--replicas=0")
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    wait_until(lambda: ready(kubectl, namespace).get("reason") == "NameConflict", "Ready says NameConflict")

    assert "Deployment" in ready(kubectl, namespace)["message"]
    untouched = kubectl.json("get", "deployment", "inf-ctr", "-n", namespace)
    assert "ownerReferences" not in untouched["metadata"]

    kubectl("delete", "deployment", "inf-ctr", "-n", namespace)
    kubectl("annotate", "inference", "ctr", "-n", namespace, "look=again")
    wait_until(lambda: len(children(kubectl, namespace)) == 2, "both children exist")


def test_scale_subresource_reaches_the_deployment(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    kubectl("scale", "inference", "ctr", "-n", namespace, "--replicas=3")
    wait_until(
        lambda: children(kubectl, namespace).get("Deployment", {}).get("spec", {}).get("replicas") == 3,
        "three replicas",
    )


def test_autoscaler_moves_replicas_through_scale_and_stays_within_what_the_crd_allows(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    """A real HPA without any metrics: its bounds alone make it scale."""
    del controllers
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    wait_until(lambda: "Deployment" in children(kubectl, namespace), "there is a Deployment")
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "ctr"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": "ctr"},
            "minReplicas": 3,
            "maxReplicas": 5,
        },
    }
    kubectl.apply(autoscaler, namespace=namespace)
    wait_until(
        lambda: children(kubectl, namespace)["Deployment"]["spec"]["replicas"] == 3,
        "the HPA has scaled to its minimum",
    )
    assert kubectl.json("get", "inference", "ctr", "-n", namespace)["spec"]["replicas"] == 3
    kubectl("delete", "horizontalpodautoscaler", "ctr", "-n", namespace)

    refused = kubectl.refusal("scale", "inference", "ctr", "-n", namespace, "--replicas=0")
    assert "only for tier nearline and offline" in refused
    assert children(kubectl, namespace)["Deployment"]["spec"]["replicas"] == 3


@pytest.mark.produces(Reason.TARGET_NOT_FOUND, Reason.TARGET_NOT_READY)
def test_access_names_the_missing_target_and_its_absence_ends_with_it(
    controllers: Running, kubectl: Kubectl, namespace: str
) -> None:
    del controllers
    kubectl.apply(_fresh(model_access_body(namespace=namespace)), namespace=namespace)
    wait_until(
        lambda: ready(kubectl, namespace, "modelaccess").get("reason") == "TargetNotFound",
        "Ready says TargetNotFound",
    )
    kubectl.apply(_fresh(inference_body(namespace=namespace)), namespace=namespace)
    wait_until(
        lambda: ready(kubectl, namespace, "modelaccess").get("reason") == "TargetNotReady",
        "Ready says TargetNotReady",
    )


def _fresh(body: dict[str, Any]) -> dict[str, Any]:
    """The object as a user writes it: without what the API server sets."""
    metadata = {"name": body["metadata"]["name"], "namespace": body["metadata"]["namespace"]}
    return {**body, "metadata": metadata}
