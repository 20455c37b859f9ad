"""The controllers die with a standby beside them, and the next leader goes on: what is settled stays, what had begun ends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders.inference import inference_body
from builders.waiting import at_rest, wait_until
from fixtures.allocated import SLICES, Allocated
from fixtures.control_plane import Kubectl, a_namespace
from fixtures.pools import Pools
from fixtures.processes import Running, controllers_settings, leading_controllers, tidegate

INFERENCES = 10
KINDS = "inferences,modelaccesses,configmaps,deployments,poddisruptionbudgets"


@dataclass(frozen=True, slots=True)
class Succession:
    """The next leader, and what was there when the one before was killed."""

    leader: Running
    settled: str
    """A namespace of Inferences of which everything was said."""
    versions: Mapping[str, str]
    """Of its objects at that moment."""
    moving: Allocated
    """A pool in the middle of a decision."""
    decision: Mapping[str, Any]


@pytest.fixture(scope="module")
def succession(
    kubectl: Kubectl,
    kubeconfig: Path,
    crds: Path,
    controllers_tls: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Succession]:
    """One leader is killed in the middle of a decision, while another waits."""
    del crds
    folder, settings = tmp_path_factory.mktemp("succession"), controllers_settings(controllers_tls)
    with a_namespace(kubectl, "settled") as settled, a_namespace(kubectl, "moving") as own:
        room, pools = Pools(kubectl, settled), Pools(kubectl, own)
        with leading_controllers(kubectl, kubeconfig, folder / "first", settings) as first:
            settle(room)
            world = Allocated(pools)
            decision = begin_a_decision(world)
            versions = quiet(kubectl, settled)
            with tidegate("controllers", kubeconfig, folder / "second", **settings) as second:
                assert not second.leads
                first.process.kill()
                wait_until(lambda: second.leads, what="the other one leads")
                yield Succession(second, settled, versions, world, decision)
        world.end()
        for made in (room, pools):
            made.end()


def settle(room: Pools) -> None:
    """Make Inferences whose pods have a node, so that those of nobody else concern them."""
    room.node("0", cpu="64", memory="256Gi")
    for index in range(INFERENCES):
        body = inference_body(f"m{index}")
        room.kubectl.apply({**body, "metadata": {"name": f"m{index}"}}, namespace=room.namespace)

    def placed() -> int:
        pods = room.kubectl.json("get", "pods", "-n", room.namespace)["items"]
        return sum("nodeName" in pod["spec"] for pod in pods)

    wait_until(lambda: placed() == INFERENCES, what="all pods have a node")


def begin_a_decision(world: Allocated) -> Mapping[str, Any]:
    """Let the allocator decide, and its first wave begin; the decision."""
    world.mode("Auto")
    world.model("batch", 0, SLICES, tier="offline")
    world.model("ctr", 1, 3)
    world.settled(batch=3, ctr=1)
    world.override("sale", "ctr", floor={"replicas": 3})
    decision = world.decided(batch=1, ctr=3)
    # Nobody ends the batch's pods yet: the first wave is under way, the second cannot begin.
    wait_until(lambda: world.leaving("batch") == 2, what="two pods of the batch drain")
    return decision


def test_restart_over_settled_objects_writes_nothing_and_a_successor_repairs(
    succession: Succession, kubectl: Kubectl
) -> None:
    namespace, leader = succession.settled, succession.leader
    wait_until(
        lambda: reconciled(leader) >= INFERENCES,
        what="the new leader has looked at everything",
    )
    assert resource_versions(kubectl, namespace) == succession.versions

    # It does repair what is not as it should be: the same measure moves.
    kubectl("delete", "deployment", "inf-m3", "-n", namespace)
    wait_until(
        lambda: kubectl.run("get", "deployment", "inf-m3", "-n", namespace, "-o", "name").returncode == 0,
        what="the Deployment is back",
    )
    assert resource_versions(kubectl, namespace) != succession.versions


def test_a_decision_is_carried_on_by_the_next_leader(succession: Succession, kubectl: Kubectl) -> None:
    world, decision = succession.moving, succession.decision
    assert world.ready("ctr") == 1
    world.check(kubectl.json("get", "pods", "-n", world.pools.namespace)["items"])
    outcome = world.applied(decision)
    assert outcome["reclaimSeconds"] > 0
    world.settled(batch=1, ctr=3)
    assert world.decisions()[0]["metadata"]["name"] == decision["metadata"]["name"]


def quiet(kubectl: Kubectl, namespace: str) -> Mapping[str, str]:
    """Versions of the objects once all have a status and nothing moves any more."""
    wait_until(lambda: all_told(kubectl, namespace), what="all have a status")
    return at_rest(lambda: resource_versions(kubectl, namespace), what="what was made for the Inferences")


def all_told(kubectl: Kubectl, namespace: str) -> bool:
    items = kubectl.json("get", "inferences", "-n", namespace)["items"]
    return len(items) == INFERENCES and all(item["status"].get("conditions") for item in items)


def resource_versions(kubectl: Kubectl, namespace: str) -> Mapping[str, str]:
    found = json.loads(kubectl("get", KINDS, "-n", namespace, "-o", "json"))
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"]
        for one in found["items"]
    }


def reconciled(running: Running) -> float:
    """How many reconciles of Inferences there were."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in running.metrics().splitlines()
        if line.startswith("tidegate_reconciles_total{") and 'queue="inference"' in line
    )
