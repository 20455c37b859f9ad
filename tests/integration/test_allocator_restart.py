"""The controllers die in the middle of a decision, and their successors carry it to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.allocated import SLICES, Allocated
from fixtures.control_plane import Kubectl
from fixtures.pools import Pools
from fixtures.processes import SYSTEM_NAMESPACE, controllers_settings, tidegate
from tidegate_localcluster.process import wait_until


@pytest.mark.usefixtures("crds")
def test_a_decision_is_carried_on_by_the_next_leader(
    pools: Pools, kubectl: Kubectl, kubeconfig: Path, controllers_tls: Path, tmp_path: Path
) -> None:
    kubectl.run("create", "namespace", SYSTEM_NAMESPACE)
    for tier in ("realtime", "nearline", "offline"):
        kubectl.run("create", "priorityclass", f"tidegate-{tier}", "--value=1")
    settings = controllers_settings(controllers_tls)
    with tidegate("controllers", kubeconfig, tmp_path / "first", **settings) as first:
        world = Allocated(pools)
        world.mode("Auto")
        world.model("batch", 0, SLICES, tier="offline")
        world.model("ctr", 1, 3)
        world.settled(batch=3, ctr=1)
        world.override("sale", "ctr", floor={"replicas": 3})
        decision = world.decided(batch=1, ctr=3)
        # Nobody ends the batch's pods yet: the first wave is under way, the second cannot begin.
        wait_until(lambda: world.leaving("batch") == 2, what="two pods of the batch drain", timeout_s=60.0)
        first.process.kill()
        first.process.wait(10)
    assert world.ready("ctr") == 1
    world.check(world.kubectl.json("get", "pods", "-n", pools.namespace)["items"])

    with tidegate("controllers", kubeconfig, tmp_path / "second", **settings) as second:
        wait_until(lambda: second.leads, what="the successor leads", timeout_s=30.0)
        outcome = world.applied(decision)
        assert outcome["reclaimSeconds"] > 0
        world.settled(batch=1, ctr=3)
        assert world.decisions()[0]["metadata"]["name"] == decision["metadata"]["name"]
    world.end()
