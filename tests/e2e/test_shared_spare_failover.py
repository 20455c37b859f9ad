"""Two models of one replica share a spare on another node: it answers for the one whose pod is gone, and only until that is back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
from tritonclient.utils import InferenceServerException

from builders.load import access_client
from builders.waiting import wait_until
from fixtures.cluster import POOL_NODE
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool
from tidegate.planning.pods import is_ready
from tidegate.resources.names import SPARE_LABEL
from tidegate_localcluster.node import node_name

FIRST_NODE: Final = node_name(0)
NODES: Final = (FIRST_NODE, POOL_NODE)
MODELS: Final = {"ctr": 1, "cvr": 2}
"""The models, and the version of each, from which its answers come."""
POLICY: Final = {
    "mode": "Auto",
    "interval": "2s",
    "nodeLoss": {"mode": "Shared", "sharedSpares": {"maxModels": 4, "maxSlices": 1}},
}
QUIET: Final = 12


class World:
    """Two models on the first node, each with an access of its own."""

    def __init__(self, pool: OwnPool) -> None:
        self.pool, self.space = pool, pool.space
        for name, version in MODELS.items():
            self.space.publish(name, version)
            spec = pool.model(name, 50, scaling={"minReplicas": 1, "maxReplicas": 1})
            spec["model"] |= {"name": name, "version": str(version)}
            self.space.apply("Inference", name, spec)
            self.space.access((name, 100), name=name)
        self.space.ready(*(f"{kind}/{name}" for name in MODELS for kind in ("inference", "modelaccess")))

    def spare(self) -> Mapping[str, Any]:
        """The only pod that they share."""
        [pod] = self.space.installed.pods(self.space.namespace, SPARE_LABEL)
        return pod

    def own(self, name: str) -> Mapping[str, Any]:
        """The only pod of a model that is not on its way out."""
        [pod] = [pod for pod in self.space.pods(name) if "deletionTimestamp" not in pod["metadata"]]
        return pod

    def ask(self, name: str) -> None:
        """One request, whose answer is checked by value. Raises InferenceServerException."""
        address = self.space.installed.endpoints.gateway
        client = access_client(address, f"{self.space.namespace}/{name}", model=name)
        try:
            assert client.ask().version == str(MODELS[name])
        finally:
            client.close()

    def has_spare(self) -> None:
        """Waits until the pool says that one spare serves both."""
        expected = [{"inference": name, "version": str(version)} for name, version in MODELS.items()]

        def serves_both() -> bool:
            spares = self.pool.status().get("sharedSpares", {}).get("spares", ())
            return [(spare["node"], spare["models"]) for spare in spares] == [(POOL_NODE, expected)]

        wait_until(serves_both, "a spare serves both", timeout_s=180.0, evidence=self.describe)

    def serves_alone(self, name: str) -> None:
        """Waits until all of some requests are run by the model's own pod."""

        def is_alone() -> bool:
            spare, own = self.spare(), self.own(name)
            before = self.space.count_requests(spare, name), self.space.count_requests(own, name)
            for _ in range(QUIET):
                self.ask(name)
            wait_until(
                lambda: (
                    self.space.count_requests(spare, name) + self.space.count_requests(own, name)
                    >= sum(before) + QUIET
                ),
                "all are counted",
                evidence=self.describe,
            )
            return (self.space.count_requests(spare, name), self.space.count_requests(own, name)) == (
                before[0],
                before[1] + QUIET,
            )

        wait_until(is_alone, f"{name} needs no spare", timeout_s=120.0, evidence=self.describe)

    def stands_in(self, name: str) -> None:
        """Asks until the spare has run a request."""
        spare = self.spare()
        before = self.space.count_requests(spare, name)

        def is_answered() -> bool:
            with suppress(InferenceServerException):
                self.ask(name)
            return self.space.count_requests(spare, name) > before

        wait_until(is_answered, "the spare answers", evidence=self.describe)

    def lose(self, name: str) -> None:
        """Ends the model's pod, without notice."""
        pod = self.own(name)["metadata"]["name"]
        self.space.kubectl.run(
            "delete", "pod", pod, "--namespace", self.space.namespace, "--grace-period=0", "--force"
        )

    def is_back(self, name: str) -> None:
        wait_until(
            lambda: any(map(is_ready, self.space.pods(name))),
            f"{name} is back",
            timeout_s=180.0,
            evidence=self.describe,
        )

    def describe(self) -> object:
        status = self.pool.status()
        pods = [
            (
                pod["metadata"]["name"],
                pod["spec"].get("nodeName"),
                pod["metadata"].get("annotations"),
                pod["status"].get("phase"),
            )
            for pod in self.space.installed.pods(self.space.namespace, "")
        ]
        return status.get("sharedSpares"), status.get("slices"), status.get("conditions"), pods


@pytest.mark.alone("cordons nodes")
def test_a_spare_that_two_models_share_answers_for_the_one_that_is_gone_until_it_is_back(
    space: Space,
) -> None:
    kubectl = space.kubectl
    with an_own_pool(space, "shared", "Auto", nodes=NODES, policy=POLICY) as pool:
        try:
            kubectl.run("cordon", POOL_NODE)
            world = World(pool)
            assert world.own("ctr")["spec"]["nodeName"] == world.own("cvr")["spec"]["nodeName"] == FIRST_NODE
            kubectl.run("uncordon", POOL_NODE)
            world.has_spare()
            for name in MODELS:
                world.serves_alone(name)
            spare = world.spare()
            assert [world.space.count_requests(spare, name) for name in MODELS] == [0, 0]

            why = space.installed.tidegate("why", "inference/ctr", "--namespace", space.namespace)
            assert (
                f"on node {POOL_NODE}, has ctr version 1, cvr version 2: the loss of node {FIRST_NODE}" in why
            )

            # No node takes its successor, so that only the spare can answer.
            kubectl.run("cordon", *NODES)
            world.lose("ctr")
            world.stands_in("ctr")
            assert world.space.count_requests(spare, "cvr") == 0
            kubectl.run("uncordon", *reversed(NODES))
            world.is_back("ctr")
            world.serves_alone("ctr")
            world.serves_alone("cvr")
            assert world.spare()["metadata"]["uid"] == spare["metadata"]["uid"]
            assert world.space.count_requests(spare, "cvr") == 0
        finally:
            kubectl.run("uncordon", *NODES)
