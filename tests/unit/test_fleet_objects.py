"""The objects of the fleet demo are such as Tidegate takes, and its kubelets do with pods what kubelets do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.inference import Inference
from tidegate.planning.pods import is_ready
from tidegate_dataplane.contract import AgentReport
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.fleet_demo import agents, objects
from tidegate_localcluster.fleet_demo.kubelet import next_request, running_status
from tidegate_localcluster.fleet_demo.workload import generate_models
from tidegate_localcluster.state import ClusterPlan, FleetSettings

ROOT = Path(__file__).resolve().parents[2]


def a_pod(*, node: str = "gpu-sim-000", leaving: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p", "namespace": "fleet", "uid": "u"}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    sidecar = {"name": "agent", "image": "a", "restartPolicy": "Always"}
    spec = {
        "nodeName": node,
        "containers": [{"name": "triton", "image": "t"}],
        "initContainers": [sidecar, {"name": "once", "image": "o"}],
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def test_pool_and_inferences_parse_as_what_they_claim_to_be() -> None:
    assert ComputePool.parse(objects.make_pool(30)).spec.policy.mode is PolicyMode.AUTO
    for model in generate_models(30, 60, seed=1):
        parsed = Inference.parse(objects.make_inference(model))
        assert parsed.spec.scaling is not None
        assert (parsed.spec.capacity is None) == (model.tier == "offline")


def test_every_user_has_the_rights_of_the_chart_and_no_others() -> None:
    made = [body for _, body in objects.read_chart_objects(ROOT)]
    roles = {body["metadata"]["name"] for body in made if body["kind"] in {"ClusterRole", "Role"}}
    bindings = [body for body in made if "subjects" in body]
    assert roles == {body["roleRef"]["name"] for body in bindings}
    assert {body["subjects"][0]["name"] for body in bindings} == set(objects.USERS.values())
    kinds = {body["kind"] for body in made}
    assert {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"} <= kinds


def test_a_plan_without_a_fleet_has_no_models() -> None:
    with pytest.raises(LocalClusterError, match="not of a fleet"):
        objects.list_models(ClusterPlan(name="x", cgroup="x"))
    assert (
        len(
            objects.list_models(ClusterPlan(name="x", cgroup="x", fleet=FleetSettings(nodes=4, inferences=6)))
        )
        == 6
    )


def test_a_pod_with_a_node_is_said_to_run_and_then_left_alone() -> None:
    pod = a_pod()
    method, path, body = next_request(pod) or ("", "", {})
    assert (method, path) == ("PATCH", "/api/v1/namespaces/fleet/pods/p/status")
    assert body["metadata"]["uid"] == "u"
    ready = {**pod, "status": body["status"]}
    assert is_ready(ready)
    assert next_request(ready) is None
    sidecars = [each["name"] for each in body["status"]["initContainerStatuses"]]
    assert sidecars == ["agent"]


def test_a_pod_on_its_way_out_is_ended_at_once_and_no_other_of_its_name() -> None:
    method, path, body = next_request(a_pod(leaving=True)) or ("", "", {})
    assert (method, path) == ("DELETE", "/api/v1/namespaces/fleet/pods/p")
    assert body == {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}}


def test_a_pod_without_a_node_is_nobodys() -> None:
    assert next_request(a_pod(node="")) is None


def test_the_address_of_all_pods_is_on_loopback() -> None:
    assert running_status(a_pod())["podIP"] == agents.ADDRESS
    assert agents.ADDRESS.startswith("127.")


def test_what_the_stand_in_for_agents_says_is_a_report() -> None:
    report = AgentReport.model_validate(agents.REPORT)
    assert (report.serving, report.loaded) == (1, (1,))
