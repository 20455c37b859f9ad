"""`tidegate hold`, `resume`, `override`, `why` and `history` against the real API server and allocator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.waiting import wait_until
from fixtures.allocated import Allocated, looks_again
from fixtures.command_line import CommandLine
from fixtures.control_plane import Kubectl
from fixtures.processes import Running

pytestmark = pytest.mark.usefixtures("controllers")


class Commands(CommandLine):
    """With what the tests are about; what is left of overrides goes at the end."""

    def __init__(self, kubeconfig: Path, allocated: Allocated) -> None:
        super().__init__(kubeconfig)
        self.namespace, self.pool = allocated.pools.namespace, allocated.pool


@pytest.fixture
def tidegate(kubeconfig: Path, allocated: Allocated, kubectl: Kubectl) -> Iterator[Commands]:
    commands = Commands(kubeconfig, allocated)
    yield commands
    for override in kubectl.json("get", "computeoverrides")["items"]:
        target = override["spec"]["target"]
        if target["name"] == commands.pool or target.get("namespace") == commands.namespace:
            kubectl("delete", "computeoverride", override["metadata"]["name"])


def test_a_held_pool_says_so_and_moves_only_once_it_is_resumed(
    allocated: Allocated, controllers: Running, tidegate: Commands
) -> None:
    allocated.mode("Auto")
    pool, batch = allocated.pool, f"{allocated.pools.namespace}/batch"
    dry = tidegate("hold", pool, "--for", "2h", "--reason", "the sale", "--dry-run")
    assert (dry["done"], dry["dryRun"], len(dry["overrides"])) == ("Made", True, 1)
    assert tidegate("resume", pool)["done"] == "NothingToEnd"
    made = tidegate("hold", "pool", pool, "--for", "2h", "--reason", "the sale")
    assert made["dryRun"] is False
    assert tidegate("resume", pool, "--dry-run")["done"] == "Ended"
    assert (made["done"], made["warnings"], made["heldBy"]) == ("Made", [], [])
    [override] = made["overrides"]
    again = tidegate("hold", pool, "--for", "3h", "--reason", "the sale goes on")
    assert (again["done"], again["overrides"][0]["name"]) == ("Changed", override["name"])
    refused = tidegate.refused("hold", pool, "--for", "2h", "--reason", "x", "--as", "eve")
    assert "eve" in refused
    assert "403" in refused

    wait_until(
        lambda: allocated.pools.status(pool).get("mode") == "Hold",
        what="the allocator holds the pool",
    )
    allocated.model("batch", 0, 4, tier="offline")
    looks_again(controllers, pool)
    allocated.kubelet()
    assert allocated.ready("batch") == 0
    why = tidegate("why", pool)
    assert (why["policyMode"], why["mode"]) == ("Auto", "Hold")
    assert [each["name"] for each in why["heldBy"]] == [override["name"]]
    held = tidegate("why", batch)
    assert "the sale goes on" in held["heldBy"][0]["message"]
    assert (held["replicas"]["existing"], held["newest"]) == (0, None)
    assert tidegate("history", batch)["decisions"] == []

    ended = tidegate("resume", f"computepool/{pool}")
    assert [each["name"] for each in ended["overrides"]] == [override["name"]]
    allocated.settled(batch=4)
    allocated.applied(allocated.decisions()[0])
    moved = tidegate("why", batch)
    assert (moved["heldBy"], moved["decidedBy"], moved["replicas"]["decided"]) == ([], "Allocator", 4)
    assert (moved["move"]["from"], moved["move"]["to"]) == (0, 4)
    [decision] = tidegate("history", batch)["decisions"]
    assert (decision["name"], decision["outcome"]["state"]) == (moved["decision"], "CarriedOut")


def test_an_inference_is_pinned_until_that_is_ended(allocated: Allocated, tidegate: Commands) -> None:
    allocated.mode("Auto")
    allocated.model("ctr", 1, 3)
    allocated.settled(ctr=1)
    ctr = f"{tidegate.namespace}/ctr"
    made = tidegate("override", ctr, "--pin", "3", "--for", "1h", "--reason", "a launch")
    assert made["overrides"][0]["replicas"] == 3
    allocated.settled(ctr=3)
    why = tidegate("why", "ctr", "-n", tidegate.namespace)
    assert [(each["action"], each["reason"]) for each in why["overrides"]] == [("Pin", "a launch")]
    assert "ComputeOverride" in why["move"]["why"]
    assert tidegate("override", ctr, "--end")["done"] == "Ended"
    assert tidegate("why", ctr)["overrides"] == []
