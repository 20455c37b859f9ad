"""What caches keep of other people's objects is all that is read of them, and little of what is not."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tidegate.kube.transforms import trim_deployment, trim_pod
from tidegate.planning.gpu_sharing.node_sharing import parse_slice_pod
from tidegate.planning.inference.deployments import parse_deployment
from tidegate.planning.pods import parse_pod
from tidegate.planning.pools.nodes import parse_occupant
from tidegate_controllers.placements import read_assigned_pod
from tidegate_controllers.signals import find_pod_owners

OBJECTS: Final = Path(__file__).resolve().parents[1] / "golden" / "objects"
NOW: Final = "2026-01-01T00:00:00Z"
READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "pods as planners see them": parse_pod,
    "what takes room on a node": parse_occupant,
    "pods on slices": parse_slice_pod,
    "pods on assigned slices": read_assigned_pod,
    "whose a pod is": lambda body: find_pod_owners([body]),
}


def the_deployment(file: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((OBJECTS / file).read_text())
    deployment: dict[str, Any] = next(each for each in documents if each["kind"] == "Deployment")
    deployment["metadata"] |= {
        "uid": "d1",
        "generation": 3,
        "resourceVersion": "9",
        "managedFields": [{"manager": "x"}],
    }
    return deployment


def pods_of(file: str) -> list[dict[str, Any]]:
    """A pod of the file's Deployment at each point of its life."""
    template = the_deployment(file)["spec"]["template"]
    statuses = [
        {
            "phase": "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
            ],
        },
        {
            "phase": "Running",
            "hostIP": "10.0.0.9",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": NOW}],
            "containerStatuses": [
                {
                    "name": "triton",
                    "image": "triton:1",
                    "imageID": "sha256:0",
                    "restartCount": 3,
                    "ready": False,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back off"}},
                    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": NOW}},
                }
            ],
            "initContainerStatuses": [
                {"name": "agent", "ready": True, "restartCount": 0, "state": {"running": {}}}
            ],
        },
        {"phase": "Failed", "reason": "UnexpectedAdmissionError"},
    ]
    metadata = {
        **template["metadata"],
        "name": "p",
        "namespace": "ads",
        "uid": "u",
        "resourceVersion": "5",
        "creationTimestamp": NOW,
        "managedFields": [{"manager": "kubelet"}],
        "ownerReferences": [{"kind": "ReplicaSet", "name": "inf-ctr-abc", "uid": "r", "controller": True}],
    }
    return [
        {"metadata": {**metadata, **gone}, "spec": {**template["spec"], "nodeName": node}, "status": status}
        for status, node, gone in zip(
            statuses, ("", "node-a", "node-a"), ({}, {}, {"deletionTimestamp": NOW}), strict=True
        )
    ]


@pytest.mark.parametrize(
    "file", ["inference-file.yaml", "inference-pool.yaml", "inference-gpu.yaml", "pipeline.yaml"]
)
@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_a_pod_reads_the_same_of_what_is_kept(file: str, reader: str) -> None:
    for body in pods_of(file):
        assert READERS[reader](trim_pod(body)) == READERS[reader](body)


def test_most_of_a_pod_is_not_kept() -> None:
    whole = pods_of("inference-pool.yaml")[1]
    assert len(json.dumps(trim_pod(whole))) < len(json.dumps(whole)) / 2
    assert "managedFields" not in trim_pod(whole)["metadata"]


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2},
        {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 0},
        {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1},
    ],
)
@pytest.mark.parametrize("reason", ["NewReplicaSetAvailable", "ProgressDeadlineExceeded"])
def test_whoever_reads_a_deployment_reads_the_same_of_what_is_kept(
    status: dict[str, Any], reason: str
) -> None:
    progress = {
        "type": "Progressing",
        "status": "True",
        "reason": reason,
        "message": "m",
        "lastUpdateTime": NOW,
    }
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "exceeded quota",
    }
    body = {**the_deployment("inference-pool.yaml"), "status": {**status, "conditions": [progress, failure]}}
    kept = trim_deployment(body)
    assert parse_deployment(kept) == parse_deployment(body)
    assert kept["spec"] == body["spec"], "what was applied is compared as a whole"
    assert [each.get("message") for each in kept["status"]["conditions"]] == [None, "exceeded quota"]


def test_a_deployment_that_gets_on_is_news_only_where_somebody_reads_it() -> None:
    """A Deployment's status is written four times until its only pod is ready."""
    body = the_deployment("inference-pool.yaml")
    conditions = [
        {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated", "lastUpdateTime": NOW}
    ]
    first = {
        "observedGeneration": 3,
        "replicas": 1,
        "updatedReplicas": 1,
        "unavailableReplicas": 1,
        "conditions": conditions,
    }
    later = {
        **first,
        "terminatingReplicas": 0,
        "conditions": [{**conditions[0], "lastUpdateTime": "2026-01-01T00:00:01Z"}],
    }
    assert trim_deployment({**body, "status": first}) == trim_deployment({**body, "status": later})
    assert trim_deployment({**body, "status": first}) != trim_deployment(
        {**body, "status": {**first, "readyReplicas": 1}}
    )
