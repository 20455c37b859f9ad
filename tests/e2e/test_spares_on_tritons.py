"""Warm spares on real Tritons: they get no request until they are needed, and then no pod starts for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from builders.waiting import wait_until
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load
from tidegate.planning.pods import is_ready
from tidegate_localcluster.demo.load import CheckedLoad

BEARS_PER_S = 8
QUIET, QUIET_PACE_S = 12, 0.2
"""Requests one after the other, which one replica bears."""


class World:
    """The model home, of one replica or two, in a pool that is all its own."""

    def __init__(self, pool: OwnPool) -> None:
        self.pool, self.space = pool, pool.space
        scaling = {"minReplicas": 1, "maxReplicas": 2}
        self.space.apply("Inference", "home", pool.model("probe", BEARS_PER_S, scaling=scaling))
        self.space.access(("home", 100), name="home")
        self.space.ready("inference/home", "modelaccess/home")

    def pods(self) -> Mapping[str, Mapping[str, Any]]:
        """Those of home that are not on their way out, by uid."""
        return {pod["metadata"]["uid"]: pod for pod in self.space.pods("home")}

    def counts(self) -> Mapping[str, float]:
        """Requests that each Triton has run, by the uid of its pod."""
        return self.pool.counts("home")

    def has(self, replicas: int, spares: int) -> None:
        """Waits until so many were decided, and all of them are there."""

        def found() -> tuple[int, int, int]:
            allocation = self.space.status("inference", "home").get("allocation", {})
            ready = sum(map(is_ready, self.pods().values()))
            return allocation.get("replicas", 0), allocation.get("spares", 0), ready

        wait_until(
            lambda: found() == (replicas, spares, replicas + spares),
            f"{replicas} replicas and {spares} spares",
            timeout_s=120.0,
            evidence=lambda: (found(), self.space.status("inference", "home")),
        )

    def serves_alone(self) -> str:
        """Sends some requests; the pod that ran all of them, while the others ran none."""

        def counts() -> Mapping[str, float]:
            return {uid: self.pool.count(pod) for uid, pod in self.pods().items()}

        def found() -> str | None:
            ready, before = self.space.ready_times("home"), counts()
            for _ in range(QUIET):
                time.sleep(QUIET_PACE_S)
                self.space.ask("home")
            wait_until(
                lambda: sum(counts().values()) >= sum(before.values()) + QUIET,
                "all are counted",
                evidence=counts,
            )
            ran = {uid: count - before[uid] for uid, count in counts().items() if count != before[uid]}
            if list(ran.values()) != [QUIET] and self.space.ready_times("home") != ready:
                # On a busy machine a pod may miss a probe: then the other stands in for it.
                return None
            assert list(ran.values()) == [QUIET], (before, ran)
            [uid] = ran
            return uid

        return wait_until(
            found,
            "all are asked while no pod misses a probe",
            evidence=lambda: self.space.ready_times("home"),
        )

    def stands_in(self, spare: str) -> None:
        """Asks until the spare has run a request."""
        pod = self.pods()[spare]
        before = self.pool.count(pod)

        def asked() -> bool:
            time.sleep(QUIET_PACE_S)
            with suppress(InferenceServerException):
                self.space.ask("home")
            return self.pool.count(pod) > before

        wait_until(asked, "the spare runs requests", evidence=self.counts)

    def load(self) -> AbstractContextManager[CheckedLoad]:
        """Asks for far more than one replica bears."""
        return paced_load(self.space, "home")

    def moved(self) -> Mapping[str, Any]:
        """The move of the newest decision that raised home."""
        moves = [
            (each["at"], move)
            for each in (decision["spec"] for decision in self.pool.decisions())
            for move in each.get("moves", ())
            if move["inference"] == f"{self.space.namespace}/home" and move["to"] > move["from"]
        ]
        return max(moves, key=lambda one: str(one[0]))[1]


@pytest.mark.no_rerun("a lost request")
def test_a_spare_gets_no_request_until_it_is_needed_and_then_no_pod_starts(space: Space) -> None:
    space.publish("probe", 1)
    # Without a spare a pod starts: integration/test_warm_spares.py.
    with an_own_pool(space, "warm", "Auto", tiers={"realtime": {"warmSpares": 1}}) as pool:
        world = World(pool)
        world.has(1, 1)
        wait_until(
            lambda: space.status("inference", "home").get("spareReplicas") == 1,
            "the status says that it is a spare",
            evidence=lambda: space.status("inference", "home"),
        )
        serving = world.serves_alone()
        [spare] = world.pods().keys() - {serving}

        # A pod that fails: the spare answers before its successor could, and the successor is the spare.
        name = world.pods()[serving]["metadata"]["name"]
        space.kubectl.run(
            "delete", "pod", name, "--namespace", space.namespace, "--grace-period=0", "--force"
        )
        world.stands_in(spare)
        world.has(1, 1)
        assert world.serves_alone() == spare
        [successor] = world.pods().keys() - {spare}

        # More load: the decision takes the spare.
        before, idle = world.pods().keys(), world.counts()[successor]
        with world.load() as load:
            wait_until(
                lambda: world.counts().get(successor, 0) > idle + 5,
                "the promoted one runs requests",
                timeout_s=120.0,
                evidence=lambda: (world.counts(), space.status("inference", "home")),
            )
            report = load.finish()
        assert world.pods().keys() == before
        assert all(
            container["restartCount"] == 0
            for pod in world.pods().values()
            for container in pod["status"]["containerStatuses"]
        )
        assert report.problems == ()
        move = world.moved()
        assert (move["from"], move["to"], move["promoted"]) == (1, 2, 1)
        assert move["why"].endswith("; from a warm spare")
