"""`tidegate analyze` and `doctor` against the real API server and controllers: faults that are made, and found by their codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body, node_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl
from fixtures.pools import Pools

CRD = "featurecomputes.tidegate.io"


class Faults:
    """A namespace of objects with faults, and what the commands say of them."""

    def __init__(self, command_line: CommandLine, kubectl: Kubectl, namespace: str) -> None:
        self.command_line, self.kubectl, self.namespace = command_line, kubectl, namespace

    def apply(self, body: dict[str, Any], **metadata: Any) -> None:
        name = body["metadata"]["name"]
        self.kubectl.apply({**body, "metadata": {"name": name, **metadata}}, namespace=self.namespace)

    def found(self, *arguments: str) -> set[tuple[str, str]]:
        """Codes and names of the objects."""
        said = self.command_line("analyze", "-n", self.namespace, "--fail-on", "Never", *arguments)
        return {(each["code"], each["object"].rpartition("/")[2]) for each in said["findings"]}

    def finds(self, *wanted: tuple[str, str]) -> None:
        """Waits until the controllers have said theirs."""
        wait_until(
            lambda: set(wanted) <= self.found(), what=f"{wanted}; found {self.found()}", timeout_s=40.0
        )


@pytest.fixture
def faults(command_line: CommandLine, kubectl: Kubectl, namespace: str) -> Faults:
    return Faults(command_line, kubectl, namespace)


@pytest.mark.usefixtures("controllers")
def test_faults_of_objects_are_found_by_their_codes(faults: Faults) -> None:
    scaling = {
        "replicas": None,
        "scaling": {"minReplicas": 2, "maxReplicas": 4},
        "placement": {"pool": "none"},
    }
    faults.apply(inference_body("astray", replicas=2, placement={"pool": "no-such-pool"}))
    faults.apply(inference_body("alone", replicas=1))
    faults.apply(inference_body("twice", **scaling))
    faults.apply(inference_body("offline", replicas=2, tier="offline"))
    hosts = {"hosts": ["one.example"]}
    faults.apply(
        model_access_body(
            "first",
            routes=[
                route("alone"),
            ],
            **hosts,
        )
    )
    faults.finds(("TG5006", "alone"))
    faults.apply(model_access_body("second", routes=[route("twice", "gone")], **hosts))
    faults.apply(model_access_body("third", routes=[route("offline")]))
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "twice"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "tidegate.io/v1alpha1", "kind": "Inference", "name": "twice"},
            "maxReplicas": 3,
        },
    }
    faults.apply(autoscaler)
    faults.finds(
        ("TG1202", "astray"),
        ("TG5005", "astray"),
        ("TG5006", "alone"),
        ("TG5003", "twice"),
        ("TG5004", "twice"),
        ("TG2008", "second"),
        ("TG2011", "second"),
        ("TG5007", "third"),
    )
    assert not {name for code, name in faults.found() if code in {"TG2011", "TG5007"}} & {"first"}
    done = faults.command_line.run("analyze", "-n", faults.namespace)
    assert done.exit_code == 1
    assert "TG1202 Inference" in done.stdout


@pytest.mark.usefixtures("controllers")
def test_faults_of_pools_names_and_rooms_are_found_by_their_codes(
    faults: Faults, pools: Pools, kubectl: Kubectl
) -> None:
    """Each is made, found by its code with what to do about it, and not found of what is well beside it."""
    own = faults.namespace
    pools.node()
    kubectl.apply(a_small_node(own))
    good = pools.pool()
    small = {"other": own}
    pool_of(faults, "empty", nodeSelector={"nobody": own})
    pool_of(faults, "huge", nodeSelector=small, slice={"cpu": {"cpu": "64", "memory": "1Gi"}})
    pool_of(faults, "floors", nodeSelector={"third": own}, tiers={"realtime": {"floor": 500}})
    kubectl.apply(a_small_node(own, name=f"{own}-n3", labels={"third": own}))
    try:
        for name in ("n2", "n3"):
            pools.node_status(f"{own}-{name}", node_body()["status"])
        pools.inference("well", pool=good)
        pools.inference("roomless", pool=f"{own}-empty")
        pools.inference("broad", pool=good, slices=400)
        faults.apply(inference_body("heavy", resources={"cpu": "1", "memory": "640Gi"}))
        kubectl("create", "deployment", "inf-taken", "--image=none", "-n", own)
        faults.apply(inference_body("taken"))
        features = feature_compute_body("cross")
        wrong = {"name": "key", "lookup": {"field": "user.user_id", "type": "int64"}}
        faults.apply({**features, "spec": {**features["spec"], "features": [wrong]}})
        faults.apply(model_access_body("mixed", routes=[route("well", "broad")]))
        target = {"kind": "Inference", "namespace": own, "name": "well"}
        ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        pointless = compute_override_body(f"{own}-none", target=target, hold=True, expiresAt=ends)
        kubectl.apply({**pointless, "metadata": {"name": f"{own}-none"}})
        faults.finds(
            ("TG4004", f"{own}-empty"),
            ("TG4006", f"{own}-huge"),
            ("TG4007", f"{own}-floors"),
            ("TG1203", "roomless"),
            ("TG1206", "broad"),
            ("TG1109", "heavy"),
            ("TG1003", "taken"),
            ("TG3002", "cross"),
            ("TG2010", "mixed"),
            ("TG2006", "mixed"),
            ("TG4204", f"{own}-none"),
        )
        said = faults.command_line("analyze", "-n", own, "--fail-on", "Never")["findings"]
        assert all(each["whatToDo"] for each in said)
        assert good not in {each["object"] for each in said if each["level"] == "Error"}
    finally:
        kubectl.run("delete", "computeoverride", f"{own}-none")
        for name in ("empty", "huge", "floors"):
            kubectl.run("delete", "computepool", f"{own}-{name}", "--wait=false")
        kubectl.run("delete", "node", *(f"{own}-{name}" for name in ("n2", "n3")))


def pool_of(faults: Faults, name: str, **spec: Any) -> None:
    whole = f"{faults.namespace}-{name}"
    body = compute_pool_body(whole, **spec)
    body["spec"]["nodeSelector"] = spec["nodeSelector"]
    faults.kubectl.apply({**body, "metadata": {"name": whole}})


def a_small_node(own: str, name: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    body = node_body(name or f"{own}-n2", labels=labels or {"other": own})
    return {field: body[field] for field in ("apiVersion", "kind", "metadata", "spec")}


def route(*inferences: str) -> dict[str, Any]:
    return {"name": "all", "targets": [{"inference": each} for each in inferences]}


@pytest.mark.usefixtures("controllers")
def test_files_are_looked_at_beside_what_there_is(faults: Faults, tmp_path: Path) -> None:
    faults.apply(inference_body("ctr", replicas=2))
    planned = tmp_path / "access.yaml"
    body = model_access_body("home", routes=[route("ctr")])
    planned.write_text(yaml.safe_dump({**body, "metadata": {"name": "home"}}))
    assert ("TG5005", "ctr") in faults.found()
    beside = faults.found("-f", str(planned))
    assert not {code for code, name in beside if name == "home"}
    assert ("TG5005", "ctr") not in beside
    planned.write_text(planned.read_text().replace("inference: ctr", "inference: cvr"))
    assert ("TG2008", "home") in faults.found("-f", str(planned))


def test_who_may_read_nothing_is_told_so_and_not_that_all_is_well(faults: Faults) -> None:
    said = faults.command_line.refused("analyze", "-n", faults.namespace, "--as", "eve")
    assert 'User "eve" cannot list' in said


def test_who_may_list_nothing_of_ours_but_autoscalers_is_told_so_too(
    faults: Faults, kubectl: Kubectl
) -> None:
    kubectl(
        *("create", "role", "autoscalers", "-n", faults.namespace, "--verb=list"),
        "--resource=horizontalpodautoscalers.autoscaling",
    )
    kubectl(
        *("create", "rolebinding", "autoscalers", "-n", faults.namespace, "--role=autoscalers", "--user=adam")
    )
    said = faults.command_line.refused("analyze", "-n", faults.namespace, "--as", "adam")
    assert 'User "adam" cannot list' in said


@pytest.fixture
def changed_kind(kubectl: Kubectl) -> Iterator[None]:
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/later"
    add = [{"op": "add", "path": path, "value": {"type": "string"}}]
    kubectl("patch", "crd", CRD, "--type=json", "-p", json.dumps(add))
    yield
    kubectl("patch", "crd", CRD, "--type=json", "-p", json.dumps([{"op": "remove", "path": path}]))


@pytest.mark.usefixtures("crds")
def test_a_kind_that_is_of_another_version_is_found(
    command_line: CommandLine, request: pytest.FixtureRequest
) -> None:
    def kinds() -> list[tuple[str, str]]:
        said = command_line("doctor", "--fail-on", "Never")
        return [
            (each["code"], each["message"])
            for each in said["findings"]
            if each["kind"] == "CustomResourceDefinition"
        ]

    assert kinds() == []
    request.getfixturevalue("changed_kind")
    [(code, message)] = kinds()
    assert (code, message.rpartition(": ")[2]) == ("TG9002", "-spec.later")


def test_an_api_server_without_the_chart_lacks_its_processes_and_policies(command_line: CommandLine) -> None:
    done = command_line.run("doctor", "-n", "no-such-namespace")
    assert done.exit_code == 1
    assert done.stdout.count("TG9003 Deployment no-such-namespace/tidegate-") == 4
    assert "TG9005" not in done.stdout
