"""Reasons that need no data plane, on a real API server: each is said, and goes when its cause does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from tidegate.api.reasons import Reason

pytestmark = pytest.mark.usefixtures("controllers")

NODE = "room-0"


class Objects:
    """The objects of one test, as their user sees them."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def apply(self, body: Mapping[str, Any]) -> None:
        """Applies an object as a user writes it: without what the API server sets."""
        named = {"name": body["metadata"]["name"], "namespace": self.namespace}
        self.kubectl.apply({**body, "metadata": named}, namespace=self.namespace)

    def patch(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        """Changes fields of the spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", kind, name, "-n", self.namespace, "--type=merge", "-p", patch)

    def condition(self, kind: str, name: str, type_: str = "Ready") -> Mapping[str, Any]:
        """One condition; empty while there is none."""
        found = self.kubectl.json("get", kind, name, "-n", self.namespace)
        conditions = found.get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == type_), {})

    def says(self, kind: str, name: str, reason: Reason, type_: str = "Ready") -> str:
        """Waits until a condition has this reason; its message."""
        wait_until(
            lambda: self.condition(kind, name, type_).get("reason") == reason,
            what=f"{type_} of {kind} {name} says {reason}; it says {self.condition(kind, name, type_)}",
        )
        return str(self.condition(kind, name, type_)["message"])


@pytest.fixture
def objects(kubectl: Kubectl, namespace: str) -> Objects:
    return Objects(kubectl, namespace)


@pytest.mark.produces(Reason.INVALID_SPEC)
def test_spec_that_an_older_crd_let_in_is_refused_by_name_and_mended_by_itself(
    objects: Objects, crds: Path
) -> None:
    """The API server refuses it under our CRD; an object may have been stored under another one."""
    body = inference_body(batching={"mode": "Disabled", "maxQueueDelay": "1ms"})
    with _without_batching_rules(objects.kubectl, crds):
        wait_until(
            lambda: (
                objects.kubectl.run(
                    "apply", "-n", objects.namespace, "-f", "-", stdin=_fresh(body)
                ).returncode
                == 0
            ),
            what="the API server takes it",
        )
        said = objects.says("inference", "ctr", Reason.INVALID_SPEC)
    assert "spec.batching.maxQueueDelay" in said
    assert "set mode: Fixed or remove maxQueueDelay" in said
    assert objects.condition("inference", "ctr", "Stalled")["status"] == "True"

    objects.patch("inference", "ctr", {"batching": {"mode": "Fixed"}})
    objects.says("inference", "ctr", Reason.UNSCHEDULABLE)


@contextmanager
def _without_batching_rules(kubectl: Kubectl, crds: Path) -> Iterator[None]:
    crd = "inferences.tidegate.io"
    rules = (
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/batching/x-kubernetes-validations"
    )
    kubectl("patch", "crd", crd, "--type=json", "-p", json.dumps([{"op": "remove", "path": rules}]))
    try:
        yield
    finally:
        kubectl("apply", "--server-side", "--force-conflicts", f"--filename={crds}")


@pytest.mark.produces(Reason.CHILD_REFUSED)
def test_quota_is_told_in_the_api_servers_words_and_fewer_replicas_are_enough(objects: Objects) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    objects.kubectl.apply(quota, namespace=objects.namespace)
    wait_until(
        lambda: (
            objects.kubectl.json("get", "quota", "small", "-n", objects.namespace)
            .get("status", {})
            .get("used")
        ),
        what="the quota counts",
    )
    objects.apply(inference_body(replicas=2))
    assert "exceeded quota: small" in objects.says("inference", "ctr", Reason.CHILD_REFUSED)

    objects.patch("inference", "ctr", {"replicas": 1})
    objects.says("inference", "ctr", Reason.UNSCHEDULABLE)


@pytest.mark.produces(Reason.PREDECESSOR_DELETING)
def test_child_of_a_predecessor_is_waited_for_and_named(objects: Objects) -> None:
    objects.apply(inference_body())
    objects.says("inference", "ctr", Reason.UNSCHEDULABLE)
    held = ("deployment", "inf-ctr", "-n", objects.namespace)
    objects.kubectl("patch", *held, "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/held"]}}')
    objects.kubectl("delete", "inference", "ctr", "-n", objects.namespace, "--wait=true")
    objects.apply(inference_body())
    assert "Deployment" in objects.says("inference", "ctr", Reason.PREDECESSOR_DELETING)

    objects.kubectl("patch", *held, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    objects.says("inference", "ctr", Reason.UNSCHEDULABLE)


@pytest.mark.produces(Reason.NO_CAPACITY, Reason.AGENT_UNREACHABLE)
def test_pod_that_fits_nowhere_names_the_figures_and_an_agent_that_is_not_there_its_port(
    objects: Objects,
) -> None:
    """A node that is only said to be there; the scheduler is real, and so is the refused connection."""
    with _node(objects.kubectl):
        objects.apply(inference_body(resources={"cpu": "1", "memory": "64Gi"}))
        said = objects.says("inference", "ctr", Reason.NO_CAPACITY)
        for words in (
            "1 Insufficient memory",
            "it asks for memory 65664Mi, the most free is 8Gi of 8Gi on node room-0",
            "lower spec.resources or spec.replicas, or add nodes",
        ):
            assert words in said

        objects.patch("inference", "ctr", {"resources": {"memory": "1Gi"}})
        wait_until(lambda: bool(_placed(objects)), what="the smaller pod has a node")
        # At this address nobody listens.
        objects.kubectl.report_pod(_placed(objects)[0], objects.namespace, address="127.0.0.3")
        assert "port 8443" in objects.says("inference", "ctr", Reason.AGENT_UNREACHABLE)


@contextmanager
def _node(kubectl: Kubectl) -> Iterator[None]:
    def waiting() -> list[str]:
        pods = kubectl.json("get", "pods", "--all-namespaces", "--field-selector=spec.nodeName=")["items"]
        known = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [each["name"] for each in known if each["namespace"].startswith("test-")]

    # Pods of the tests before go seconds after their namespaces were deleted: until then the node would be theirs.
    wait_until(lambda: not waiting(), what="no pod of another test wants the node")
    room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {
        "capacity": room,
        "allocatable": room,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "said by a test"}
        ],
    }
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    kubectl(
        "patch", "node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )
    try:
        yield
    finally:
        kubectl("delete", "node", NODE)


def _placed(objects: Objects) -> list[str]:
    """Names of the pods that the scheduler has given a node."""
    pods = objects.kubectl.json("get", "pods", "-n", objects.namespace)["items"]
    return [
        pod["metadata"]["name"]
        for pod in pods
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    ]


@pytest.mark.produces(Reason.HOST_CONFLICT, Reason.SERVED_NAME_MISMATCH, Reason.XDS_UNREACHABLE)
def test_conflicts_of_an_access_are_named_and_end_with_the_spec_that_makes_them(objects: Objects) -> None:
    host = f"{objects.namespace}.example.com"

    def access(name: str, **spec: Any) -> dict[str, Any]:
        return model_access_body(name, **spec)

    for name in ("ctr", "cvr"):
        objects.apply(inference_body(name))
    targets = [{"inference": "ctr"}, {"inference": "cvr"}]
    # Made within one second they are as old as each other, and then the name decides.
    objects.apply(access("first", hosts=[host], routes=[{"name": "d", "targets": [{"inference": "ctr"}]}]))
    objects.says("modelaccess", "first", Reason.TARGET_NOT_READY)
    objects.apply(access("second", hosts=[host], routes=[{"name": "d", "targets": targets}]))
    assert host in objects.says("modelaccess", "second", Reason.HOST_CONFLICT)

    objects.patch("modelaccess", "second", {"hosts": [f"other.{host}"]})
    assert "serves model cvr" in objects.says("modelaccess", "second", Reason.SERVED_NAME_MISMATCH)
    only = [{"name": "d", "targets": targets[:1]}]
    objects.patch("modelaccess", "second", {"routes": only})
    objects.says("modelaccess", "second", Reason.TARGET_NOT_READY)
    # Nobody runs an xDS server here.
    objects.says("modelaccess", "second", Reason.XDS_UNREACHABLE, "Programmed")


@pytest.mark.produces(Reason.PLAN_INVALID, Reason.PLAN_COMPILED)
def test_features_that_do_not_fit_together_are_named_and_mended_by_the_spec(objects: Objects) -> None:
    body = feature_compute_body()
    key = {"name": "key", "lookup": {"field": "user.user_id", "type": "int64"}}
    objects.apply({**body, "spec": {**body["spec"], "features": [key]}})
    name = body["metadata"]["name"]
    assert "lookup.field" in objects.says("featurecompute", name, Reason.PLAN_INVALID)

    objects.apply(body)
    objects.says("featurecompute", name, Reason.PLAN_COMPILED, "PlanCompiled")


def _fresh(body: Mapping[str, Any]) -> str:
    return json.dumps({**body, "metadata": {"name": body["metadata"]["name"]}})
