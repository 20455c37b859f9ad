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
    made = tidegate("hold", pool, "--for", "2h", "--reason", "the sale")
    assert (made["done"], made["inTheWay"], made["heldBy"]) == ("Made", [], [])
    [override] = made["overrides"]
    again = tidegate("hold", pool, "--for", "3h", "--reason", "the sale goes on")
    assert again["done"] == "Changed"
    assert again["overrides"][0]["name"] == override["name"]
    assert again["overrides"][0]["until"] > override["until"]

    wait_until(
        lambda: allocated.pools.status(pool).get("mode") == "Hold",
        what="the allocator holds the pool",
        timeout_s=30.0,
    )
    allocated.model("batch", 0, 4, tier="offline")
    looks_again(controllers, pool)
    allocated.kubelet()
    assert allocated.ready("batch") == 0
    why = tidegate("why", pool)
    assert (why["policyMode"], why["mode"]) == ("Auto", "Hold")
    assert [each["name"] for each in why["heldBy"]] == [override["name"]]
    held = tidegate("why", batch)
    assert "the sale goes on" in held["heldBy"][0]["said"]
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
    assert decision["binding"]
    assert tidegate.run("history", pool, "-o", "name").stdout.split() == [
        f"allocationdecision.tidegate.io/{decision['name']}"
    ]
    assert tidegate("resume", pool)["done"] == "NothingToEnd"


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
    # What `override` made is not for `resume` to end, and it says what is.
    left = tidegate("resume", ctr)
    assert left["done"] == "NothingToEnd"
    assert "--end ends it" in left["inTheWay"][0]
    assert tidegate("override", ctr, "--end")["done"] == "Ended"
    assert tidegate("why", ctr)["overrides"] == []


def test_what_cannot_be_is_refused_and_nothing_is_made(
    allocated: Allocated, tidegate: Commands, kubectl: Kubectl
) -> None:
    allocated.pools.inference("fixed", pool=allocated.pool)
    fixed, pool = f"{tidegate.namespace}/fixed", tidegate.pool
    asked = ("--for", "2h", "--reason", "x")
    assert "spec.replicas is fixed: set spec.scaling" in tidegate.refused("hold", fixed, *asked)
    assert "--reason is empty" in tidegate.refused("hold", pool, "--for", "2h", "--reason", "  ")
    assert "from 1m to 168h" in tidegate.refused("hold", pool, "--for", "169h", "--reason", "x")
    assert "there is no Inference nobody" in tidegate.refused("why", "nobody", "-n", "ads")
    assert f"no Inference or ComputePool {pool}-" in tidegate.refused("why", f"{pool}-")
    # A name that two objects have is none until it is said whose it is.
    allocated.pools.inference(pool, pool=pool)
    assert f"say {tidegate.namespace}/{pool}, computepool/{pool}" in tidegate.refused("why", pool, "-A")
    assert tidegate("why", f"computepool/{pool}", "-A")["kind"] == "ComputePool"
    assert tidegate("why", pool, "-n", tidegate.namespace)["kind"] == "Inference"
    # Who may not, may not through this command either.
    refused = tidegate.refused("hold", pool, *asked, "--as", "eve")
    assert "eve" in refused
    assert "403" in refused
    made = [each["spec"]["target"]["name"] for each in kubectl.json("get", "computeoverrides")["items"]]
    assert not {"fixed", pool} & set(made)


def test_resume_fails_while_something_else_holds_the_pool(allocated: Allocated, tidegate: Commands) -> None:
    allocated.mode("Hold")
    tidegate("hold", tidegate.pool, "--for", "1h", "--reason", "x")
    foreign = allocated.override("freeze", hold=True)
    done = tidegate.run("resume", tidegate.pool)
    assert done.exit_code == 1
    assert f"ComputeOverride {foreign}" in done.stdout
    assert "spec.policy.mode" in done.stdout
    assert [each["by"] for each in tidegate("why", tidegate.pool)["heldBy"]] == [
        "ComputeOverride",
        "policy.mode",
    ]
