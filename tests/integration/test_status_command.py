"""`tidegate status` against the real API server: the fleet, one object, and waiting until it is ready."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.waiting import wait_until
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl, may
from fixtures.pools import Pools


def says(
    kubectl: Kubectl, namespace: str, name: str, status: str, reason: str, *, stalled: bool = False
) -> None:
    """What the controllers would say of an Inference."""

    def condition(kind: str, holds: str) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        return {"type": kind, "status": holds, "reason": reason, "message": "m", "lastTransitionTime": at}

    generation = kubectl.json("get", "inference", name, "-n", namespace)["metadata"]["generation"]
    said = [condition("Ready", status), condition("Stalled", str(stalled))]
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
    assert (
        command_line.run("status", "ctr", "-n", namespace, "-o", "name").stdout
        == "inference.tidegate.io/ctr\n"
    )


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
    assert "Progressing" in done.stderr


def test_what_is_stalled_is_not_waited_for_to_the_end(
    ctr: str, kubectl: Kubectl, namespace: str, command_line: CommandLine
) -> None:
    says(kubectl, namespace, "ctr", "False", "PoolNotFound", stalled=True)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(command_line.run, "status", ctr, "--wait", "--timeout", "10m").result(60.0)
    assert done.exit_code == 1
    assert "it is stalled" in done.stderr


@pytest.mark.usefixtures("controllers")
def test_a_pool_is_waited_for_until_real_controllers_say_that_it_is_ready(
    pools: Pools, command_line: CommandLine
) -> None:
    name = f"computepool/{pools.pool()}"
    wait_until(
        lambda: command_line.run("status", name, "-o", "json").stdout.find("NoNodes") > 0,
        what="a pool without nodes is not as it should be",
        timeout_s=30.0,
    )
    assert command_line.run("status", name).exit_code == 1
    pools.node()
    done = command_line.run("status", name, "--wait", "--timeout", "60s", "-o", "json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["object"]["state"], said["slices"]["total"]) == ("Ready", 4)
    # The fleet has it as well, and is not as it should be while one of its objects is not.
    pools.inference("astray", pool="no-such-pool")
    wait_until(
        lambda: "PoolNotFound" in command_line.run("status", "-n", pools.namespace).stdout,
        what="the fleet shows what is wrong",
        timeout_s=30.0,
    )
    fleet = command_line.run("status", "-n", pools.namespace, "-o", "json")
    assert fleet.exit_code == 1
    told = json.loads(fleet.stdout)
    [astray] = [each for each in told["attention"] if each["kind"] == "Inference"]
    assert astray["name"] == f"{pools.namespace}/astray"
    [pool] = [each for each in told["pools"] if each["pool"] in name]
    assert (pool["state"], pool["slices"]["free"]) == ("Ready", 4)


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
    assert "eve" in command_line.refused("status", "--as", "eve")
    assert "eve" in command_line.refused("status", f"{namespace}/ctr", "--as", "eve")


@pytest.mark.usefixtures("crds")
def test_what_is_not_there_is_said_with_where_it_was_looked_for(
    command_line: CommandLine, namespace: str
) -> None:
    assert f"FeatureCompute gone in namespace {namespace}" in command_line.refused(
        "status", f"{namespace}/gone"
    )
    assert "there is no ComputePool gone" in command_line.refused("status", "pool/gone", "--wait")
    assert "has no state of its own" in command_line.refused("status", "override/sale")
