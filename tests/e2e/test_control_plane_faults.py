"""The control plane dies and the pods are replaced: traffic does not notice, and everything comes back as asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from builders.scenario import require_scenario
from builders.waiting import at_rest, stays, wait_until
from fixtures.audit_log import ACCOUNT
from fixtures.installed import Installed, Space, a_space
from tidegate.api.conditions import ConditionType, is_condition_true
from tidegate.api.reasons import Reason
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.demo.helm import NAMESPACE

_WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@pytest.fixture(scope="module")
def space(installed: Installed) -> Iterator[Space]:
    """A model of two replicas behind an access, for all tests of the module."""
    with a_space(installed, "e2e-control-plane-faults") as space:
        space.publish("probe", 1, 2)
        space.inference(replicas=2)
        space.access()
        space.ready()
        yield space


def test_settled_objects_cost_no_writes_and_an_edit_does(space: Space) -> None:
    """For minutes, and for all namespaces, in bench/idle_writes.py."""

    def settled() -> tuple[Mapping[str, str], int] | None:
        ready = space.ready_times("probe")
        at_rest(lambda: _writes(space), what="writes in the namespace")
        before = _versions(space), _writes(space)
        try:
            # The allocator looks every 30 s.
            stays(lambda: (_versions(space), _writes(space)), "objects and write requests", for_s=31)
        except AssertionError:
            # On a busy machine a pod may miss a probe, and the status counts those that are ready.
            if space.ready_times("probe") == ready:
                raise
            return None
        return before

    before = wait_until(
        settled,
        "a time in which no pod misses a probe",
        timeout_s=180.0,
        evidence=lambda: space.ready_times("probe"),
    )
    # Both measures can move.
    space.patch("inference", "probe", {"replicas": 1})
    wait_until(lambda: _versions(space) != before[0] and _writes(space) > before[1], "both measures moved")


@pytest.mark.alone("kills the control plane")
@pytest.mark.no_rerun("a lost request")
def test_killing_controllers_and_xds_under_load_loses_no_request(space: Space) -> None:
    space.inference(replicas=2)
    space.serves("probe", 1)
    with space.load(1, 2) as load:
        load.wait_for("1", 200)
        killed = [space.installed.kill("tidegate controllers"), space.installed.kill("tidegate xds")]
        load.wait_sent(1500, timeout_s=100)
        # The system still works: a version changes after both have come back.
        space.swap_version("probe", 2)
        report = load.finish()

    assert report.problems == ()
    require_scenario(min(killed) >= 1, f"both run when they are killed: {killed}")
    space.ready()


def test_killing_triton_is_noticed(space: Space) -> None:
    """The negative of the test above: the data plane's own death does show in the same counters."""
    space.ready()
    version = int(space.ask().version)
    restarts = _restarts(space)
    with space.load(version) as load:
        load.wait_sent(100)
        servers = [pod["metadata"]["uid"] for pod in space.pods("probe")]
        assert space.installed.kill_in_pods("--model-control-mode=explicit", servers) >= 1
        load.wait_failed(1)
        load.finish()

    wait_until(lambda: _restarts(space) > restarts, "the kubelet restarted Triton")
    space.answers(version)


@pytest.mark.alone("takes the gateways away")
@pytest.mark.produces(Reason.NO_PROXIES)
def test_restarting_every_pod_in_any_order_ends_ready(space: Space) -> None:
    version = int(space.ask().version)
    scale = ("scale", "deployment/tidegate-gateway", "-n", "tidegate-system")
    space.kubectl.run(*scale, "--replicas=0")
    wait_until(
        lambda: space.condition("modelaccess", "probe").get("reason") == Reason.NO_PROXIES,
        "Ready says NoProxies",
        evidence=lambda: space.status("modelaccess", "probe"),
    )
    space.kubectl.run(*scale, "--replicas=2")
    for selector, namespace in (
        ("tidegate.io/inference=probe", space.namespace),
        ("app.kubernetes.io/component=xds", "tidegate-system"),
        ("app.kubernetes.io/component=controllers", "tidegate-system"),
    ):
        space.kubectl.run("delete", "pods", "-n", namespace, "-l", selector, "--wait=false")
    wait_until(
        lambda: (
            len(space.installed.component("gateway")) == 2
            and all(
                _is_ready(pod)
                for name in ("gateway", "xds", "controllers")
                for pod in space.installed.component(name)
            )
        ),
        "Tidegate's own pods are ready again",
    )
    space.ready()
    wait_until(
        lambda: is_condition_true(
            space.status("modelaccess", "probe")["conditions"], ConditionType.PROGRAMMED
        ),
        "both gateways run it",
    )
    space.answers(version)


@pytest.mark.no_rerun("a refused right")
def test_api_server_refuses_the_writes_of_a_former_leader(space: Space) -> None:
    epoch = int(_deployment(space)["metadata"]["annotations"]["tidegate.io/epoch"])
    leader = "--as=system:serviceaccount:tidegate-system:tidegate-controllers"

    def annotate(number: int) -> str:
        arguments = ("annotate", "deployment", "inf-probe", "-n", space.namespace, "--overwrite", leader)
        return space.kubectl.run(*arguments, f"tidegate.io/epoch={number}")

    with pytest.raises(CommandError, match="no longer the leader"):
        annotate(epoch - 1)
    annotate(epoch)


def test_deleting_takes_the_children_along_and_recreating_serves_again(space: Space) -> None:
    space.kubectl.run("delete", "inference/probe", "-n", space.namespace, "--wait=true")
    wait_until(
        lambda: not space.installed.pods(space.namespace, "tidegate.io/inference=probe"),
        "the pods are gone",
    )
    space.inference(version=2)
    space.ready()
    assert space.ask().version == "2"


@pytest.mark.slow("a template after the other; what a field does is checked on Deployments and on one Triton")
def test_every_served_field_can_be_edited(space: Space) -> None:
    space.publish("other", 1)
    space.inference(replicas=2)
    space.serves("probe", 1)
    edits: list[dict[str, object]] = [
        {"replicas": 1},
        {"resources": {"cpu": "60m"}},
        {"tier": "nearline"},
        {"batching": {"mode": "Fixed", "maxBatchSize": 16, "maxQueueDelay": "500us"}},
        {"model": {"uri": space.uri("other")}},
    ]
    for edit in edits:
        space.patch("inference", "probe", edit)
        wait_until(
            lambda: _observed(space) and _ready(space),
            f"Ready after {edit}",
            evidence=lambda: space.status("inference", "probe"),
        )
        assert space.ask().version == "1"
    (pod,) = space.installed.pods(space.namespace, "tidegate.io/inference=probe")
    assert pod["metadata"]["labels"]["tidegate.io/tier"] == "nearline"
    assert pod["spec"]["priorityClassName"] == "tidegate-nearline"


def _observed(space: Space) -> bool:
    found = space.kubectl.get("inference", "probe", space.namespace)
    assert found is not None
    return found["status"].get("observedGeneration") == found["metadata"]["generation"]


def _ready(space: Space) -> bool:
    pods = space.installed.pods(space.namespace, "tidegate.io/inference=probe")
    ready = space.condition("inference", "probe").get("status") == "True"
    return ready and len(pods) == space.status("inference", "probe")["replicas"]


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _restarts(space: Space) -> int:
    pods = space.installed.pods(space.namespace, "tidegate.io/inference=probe")
    return sum(c["restartCount"] for pod in pods for c in pod["status"].get("containerStatuses", ()))


def _versions(space: Space) -> dict[str, str]:
    """resourceVersion of everything of ours in the namespace: it moves with every write."""
    kinds = "inferences,modelaccesses,deployments,configmaps,poddisruptionbudgets"
    found = json.loads(space.kubectl.run("get", kinds, "-n", space.namespace, "-o", "json"))
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for one in found["items"]
    }


def _writes(space: Space) -> int:
    """Requests of Tidegate's processes that write in the namespace, by the API server's audit log."""
    log = space.installed.cluster.files.audit_log
    here, theirs = f'"namespace":"{space.namespace}"', f"{ACCOUNT}{NAMESPACE}:"
    found = 0
    # The API server moves a part aside when it has become large.
    for part in log.parent.glob(f"{log.stem}*{log.suffix}"):
        with part.open() as lines:
            ours = (line for line in lines if here in line and theirs in line and line.endswith("\n"))
            found += sum(json.loads(line)["verb"] in _WRITES for line in ours)
    return found


def _deployment(space: Space) -> Mapping[str, Any]:
    return space.kubectl.get("deployment", "inf-probe", space.namespace) or {}
