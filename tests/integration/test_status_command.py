"""`tidegate status` against the real API server: the fleet, one object, and waiting until it is ready."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl, a_namespace, may


def says(kubectl: Kubectl, namespace: str, name: str, status: str, reason: str) -> None:
    """What the controllers would say of an Inference."""

    def condition(kind: str, holds: str) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        return {"type": kind, "status": holds, "reason": reason, "message": "m", "lastTransitionTime": at}

    generation = kubectl.json("get", "inference", name, "-n", namespace)["metadata"]["generation"]
    said = [condition("Ready", status), condition("Stalled", "False")]
    patch = {"status": {"observedGeneration": generation, "readyReplicas": 1, "conditions": said}}
    kubectl(
        *("patch", "inference", name, "-n", namespace, "--subresource=status"),
        *("--type=merge", "-p", json.dumps(patch)),
    )


@pytest.fixture
def ctr(kubectl: Kubectl, namespace: str, crds: object) -> str:
    """An Inference of which nobody has said anything, and a ModelAccess of the same name that leads to it."""
    del crds
    access = model_access_body("ctr", routes=[a_route("all", "ctr")])
    for body in (inference_body("ctr"), access):
        kubectl.apply({**body, "metadata": {"name": "ctr"}}, namespace=namespace)
    return f"{namespace}/ctr"


def test_one_object_with_its_pods_routes_and_events(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    done = command_line.run("status", ctr)
    assert done.exit_code == 1
    assert "Progressing" in done.stdout
    assert "say modelaccess/" in done.stderr
    says(kubectl, namespace, "ctr", "True", "AllReplicasReady")
    labels = {"tidegate.io/inference": "ctr"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ctr-0", "labels": labels},
        "spec": {"containers": [{"name": "triton", "image": "x"}], "nodeSelector": {"no": "where"}},
    }
    stranger = {**pod, "metadata": {"name": "cvr-0"}}
    uid = kubectl.json("get", "inference", "ctr", "-n", namespace)["metadata"]["uid"]
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "ctr.1"},
        "involvedObject": {"kind": "Inference", "name": "ctr", "namespace": namespace, "uid": uid},
        "type": "Warning",
        "reason": "LoadFailed",
        "message": "no such tensor",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    another = {**event, "metadata": {"name": "ctr.2"}, "reason": "NotOurs"}
    another["involvedObject"] = {**event["involvedObject"], "uid": "another"}
    kubectl.apply(pod, stranger, event, another, namespace=namespace)
    said = command_line("status", "ctr", "-n", namespace)
    assert said["object"]["state"] == "Ready"
    assert [each["name"] for each in said["pods"]] == ["ctr-0"]
    assert [each["reason"] for each in said["events"]] == ["LoadFailed"]
    assert [(each["access"], each["route"]) for each in said["accesses"]] == [(ctr, "all")]
    access = command_line.run("status", f"modelaccess/{ctr}", "-o", "json")
    assert (access.exit_code, json.loads(access.stdout)["kind"]) == (1, "ModelAccess")


def test_routes_and_states_are_shown_across_namespaces(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    with a_namespace(kubectl, "callers") as callers:
        access = model_access_body("home", routes=[a_route("all", ctr)])
        kubectl.apply({**access, "metadata": {"name": "home"}}, namespace=callers)
        routes = [{"name": "all", "targets": [{"inference": ctr, "weight": 100, "endpoints": 1}]}]
        patch = json.dumps({"status": {"routes": routes}})
        named = ("modelaccess", "home", "-n", callers, "--subresource=status", "--type=merge")
        kubectl("patch", *named, "-p", patch)
        says(kubectl, namespace, "ctr", "True", "AllReplicasReady")

        def find_routes() -> list[str]:
            return [route["access"] for route in command_line("status", f"inference/{ctr}")["accesses"]]

        assert find_routes() == [ctr]
        kubectl("annotate", "inference", "ctr", "-n", namespace, f"tidegate.io/shared-with={callers}")
        assert find_routes() == [ctr, f"{callers}/home"]
        shown = command_line.run("status", f"modelaccess/{callers}/home", "-o", "json")
        lines = json.loads(shown.stdout)["routes"]
        assert [(line["inference"], line["state"]) for line in lines] == [(ctr, "Ready")]


def test_waiting_ends_when_it_is_ready_and_not_before(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    says(kubectl, namespace, "ctr", "False", "Loading")
    late = command_line.run("status", ctr, "--wait", "--timeout", "1s")
    assert late.exit_code == 1
    assert "was not ready within 1s" in late.stderr
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(command_line.run, "status", ctr, "--wait", "--timeout", "60s", "-o", "json")
        with pytest.raises(TimeoutError):
            waiting.result(2.0)
        says(kubectl, namespace, "ctr", "True", "AllReplicasReady")
        done = waiting.result(30.0)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["object"]["state"] == "Ready"
    assert "Inference" in done.stderr


def test_why_names_the_first_stage_that_does_not_follow_a_changed_access(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    new = command_line("why", f"modelaccess/{ctr}")
    assert (new["access"], new["generation"], new["behind"]) == (ctr, 1, "controllers")
    condition = {
        "status": "True",
        "reason": "x",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    conditions = [
        {**condition, "type": name, "observedGeneration": 1}
        for name in ("TargetsReady", "Programmed", "Ready")
    ]
    patch = {"status": {"observedGeneration": 1, "conditions": conditions}}
    kubectl(
        *("patch", "modelaccess", "ctr", "-n", namespace, "--subresource=status"),
        *("--type=merge", "-p", json.dumps(patch)),
    )
    assert command_line("why", f"modelaccess/{ctr}")["behind"] is None
    kubectl(
        "patch",
        "modelaccess",
        "ctr",
        "-n",
        namespace,
        "--type=merge",
        "-p",
        '{"spec":{"hosts":["a.example"]}}',
    )
    changed = command_line("why", "modelaccess/ctr", "-n", namespace)
    assert (changed["generation"], changed["behind"]) == (2, "controllers")
    assert 'ModelAccess "gone" not found' in command_line.refused("why", "modelaccess/gone", "-n", namespace)


@pytest.mark.usefixtures("crds")
def test_who_may_see_one_namespace_alone_is_shown_that_and_told_so(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    del ctr
    kubectl(
        *("create", "role", "reader", "-n", namespace, "--verb=get,list"),
        "--resource=inferences.tidegate.io,modelaccesses.tidegate.io",
    )
    kubectl("create", "rolebinding", "reader", "-n", namespace, "--role=reader", "--user=adam")
    may(kubectl, "adam", "list", "inferences.tidegate.io", namespace)
    done = command_line.run("status", "-n", namespace, "--as", "adam", "-o", "json")
    said = json.loads(done.stdout)
    assert [each["total"] for each in said["kinds"]] == [1, 1, 0, 0]
    assert any(each.startswith("computepools: ") for each in said["skipped"])
    one = json.loads(command_line.run("status", f"{namespace}/ctr", "--as", "adam", "-o", "json").stdout)
    assert any(each.startswith("pods: ") for each in one["skipped"])
    assert 'User "eve" cannot list' in command_line.refused("status", "-n", namespace, "--as", "eve")
    assert "eve" in command_line.refused("status", f"{namespace}/ctr", "--as", "eve")
    missing = command_line.refused("status", f"{namespace}/gone")
    assert f'FeatureCompute "gone" not found in namespace "{namespace}"' in missing
