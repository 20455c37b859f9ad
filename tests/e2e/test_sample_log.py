"""The sample log through the gateway to a claim: requests sent = ids logged, and the pod's end loses none."""

from __future__ import annotations

import json
import urllib.request
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton

from builders.waiting import LIMIT_S, wait_until
from fixtures.installed import Space

CLAIM: Final = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "samples"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
READ: Final = (
    "import glob, gzip; "
    "[print(line) for path in glob.glob('/mnt/samples/samples/**/*.gz', recursive=True) "
    "for line in gzip.open(path, 'rt').read().splitlines()]"
)


def test_what_the_gateway_was_asked_is_what_was_logged_although_the_pod_was_deleted(space: Space) -> None:
    space.publish("probe", 1)
    space.kubectl.apply(json.dumps(CLAIM), space.namespace)
    space.apply(
        "Inference",
        "probe",
        {
            "model": {"name": "probe", "uri": space.uri("probe"), "version": "1"},
            "resources": {"cpu": "50m", "memory": "512Mi"},
            "logging": {"sample": "1", "sink": {"files": {"uri": "pvc://samples/probe"}}},
        },
    )
    space.access()
    space.ready()
    wait_until(
        lambda: space.condition("inference", "probe", "SamplesLogged").get("status") == "True",
        "the log is well",
        evidence=lambda: space.status("inference", "probe"),
    )
    ids = [f"click-{number}" for number in range(60)]
    _ask_by_grpc(space, ids[:30])
    _ask_by_rest(space, ids[30:])
    pod = _pod(space)

    space.kubectl.run("delete", "pod", pod, "-n", space.namespace, "--wait=false")
    wait_until(lambda: _pod(space) not in ("", pod), "a successor is ready", evidence=lambda: _pod(space))
    records: list[dict[str, Any]] = []

    def logged() -> bool:
        records[:] = _logged(space)
        return len(records) >= len(ids)

    wait_until(logged, "the file is there", evidence=lambda: records)
    assert sorted(record["id"] for record in records) == sorted(ids)
    assert {(record["pod"], record["version"]) for record in records} == {(pod, "1")}
    assert all(record["outputs"][0]["data"] == [1000.0 + _sent(record)] for record in records)


def _ask_by_grpc(space: Space, ids: list[str]) -> None:
    with triton.InferenceServerClient(space.installed.endpoints.gateway) as client:
        for one in ids:
            tensor = triton.InferInput("x", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[int(one.split("-")[1])]], dtype=np.float32))
            answer: Any = client.infer(
                "probe", [tensor], request_id=one, headers=_access(space), client_timeout=LIMIT_S
            )
            assert answer.as_numpy("score").tolist() == [[1000.0 + int(one.split("-")[1])]]


def _ask_by_rest(space: Space, ids: list[str]) -> None:
    for one in ids:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [int(one.split("-")[1])]}
        request = urllib.request.Request(
            f"http://{space.installed.endpoints.gateway}/v2/models/probe/infer",
            data=json.dumps({"id": one, "inputs": [tensor]}).encode(),
            headers={"Content-Type": "application/json", **_access(space)},
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            answered = json.load(answer)
        assert answered["id"] == one
        assert answered["outputs"][0]["data"] == [1000.0 + int(one.split("-")[1])]


def _access(space: Space) -> dict[str, str]:
    return {"x-tidegate-access": f"{space.namespace}/probe"}


def _sent(record: dict[str, Any]) -> float:
    return float(record["id"].split("-")[1])


def _pod(space: Space) -> str:
    """The pod that is ready."""
    for pod in space.installed.pods(space.namespace, "tidegate.io/inference=probe"):
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
        if conditions.get("Ready") == "True":
            return str(pod["metadata"]["name"])
    return ""


def _logged(space: Space) -> list[dict[str, Any]]:
    """What lies on the claim, read in the pod that has it now; nothing while none is ready."""
    if not (pod := _pod(space)):
        return []
    said = space.kubectl.run("exec", "-n", space.namespace, pod, "-c", "agent", "--", "python3", "-c", READ)
    return [json.loads(line) for line in said.splitlines()]
