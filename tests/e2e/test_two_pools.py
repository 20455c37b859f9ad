"""One Inference in two pools on two nodes: what the first has no room for spills over, and each pod gets its share of the requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from builders.waiting import wait_until
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load
from tidegate.planning.pods import is_ready
from tidegate.resources.names import POOL_LABEL
from tidegate_localcluster.demo import helm
from tidegate_localcluster.node import node_name

FIRST, SECOND = "two-first", "two-second"
WEIGHED_REQUESTS: Final = 600
# The gateway has no curl; its admin port answers on its own loopback alone.
_HOSTS: Final = (
    "exec 3<>/dev/tcp/127.0.0.1/9901; "
    "printf 'GET /clusters HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n' >&3; cat <&3"
)


class World:
    """The model home, whose replicas have two slices in the first pool and the others in the second."""

    def __init__(self, space: Space, first: OwnPool, second: OwnPool) -> None:
        self.space, self.first, self.second = space, first, second

    def asks(self, *pools: Mapping[str, Any], replicas: int = 3) -> None:
        """What the Inference asks for from now on."""
        spec = {
            "model": {"name": "probe", "uri": self.space.uri("probe"), "version": "1"},
            "replicas": replicas,
            "placement": {"pools": list(pools)},
        }
        self.space.apply("Inference", "home", spec)

    def has(self, summary: str) -> None:
        """Waits until the status says so, and Ready."""
        wait_until(
            lambda: (
                self.status().get("poolSummary") == summary
                and self.space.condition("inference", "home").get("status") == "True"
            ),
            f"home has {summary}",
            timeout_s=180.0,
            evidence=self.status,
        )

    def status(self) -> Mapping[str, Any]:
        """As it is now."""
        return self.space.status("inference", "home")

    def addresses(self) -> Mapping[str, str]:
        """The pool of each ready pod, by address."""
        return {
            pod["status"]["podIP"]: pod["metadata"]["labels"][POOL_LABEL]
            for pod in self.space.pods("home")
            if is_ready(pod)
        }

    def requests(self) -> Mapping[str, int]:
        """Requests that the gateways have sent to each address, by their own counters."""
        counts: dict[str, int] = {}
        for gateway in self.space.installed.component("gateway"):
            page = self.space.kubectl.run(
                "exec", gateway["metadata"]["name"], "-n", helm.NAMESPACE, "--", "bash", "-c", _HOSTS
            )
            pattern = rf"^\S*/{re.escape(self.space.namespace)}/\S*::([0-9.]+):\d+::rq_total::(\d+)"
            for address, count in re.findall(pattern, page, re.MULTILINE):
                counts[address] = counts.get(address, 0) + int(count)
        return counts

    def uids(self, pool: str) -> frozenset[str]:
        """The ready pods of one pool."""
        return frozenset(
            pod["metadata"]["uid"]
            for pod in self.space.pods("home")
            if is_ready(pod) and pod["metadata"]["labels"][POOL_LABEL] == pool
        )

    def two_of_the_first(self) -> frozenset[str] | None:
        """The ready pods of the first pool, once there are two."""
        found = self.uids(FIRST)
        return found if len(found) == 2 else None

    def three_addresses(self) -> Mapping[str, str] | None:
        """The addresses, once three pods are ready."""
        found = self.addresses()
        return found if len(found) == 3 else None


@pytest.mark.no_rerun("a lost request")
def test_replicas_spill_over_share_by_weight_and_leave_a_pool_without_a_lost_request(space: Space) -> None:
    space.publish("probe", 1)
    with (
        an_own_pool(space, FIRST, "RecommendOnly", tiers={"realtime": {"ceiling": 2}}) as first,
        an_own_pool(space, SECOND, "RecommendOnly", nodes=[node_name(0)]) as second,
    ):
        world = World(space, first, second)
        world.asks({"name": FIRST})
        space.access(("home", 100), name="home")
        wait_until(
            lambda: space.condition("inference", "home", "Placed").get("reason") == "TierFull",
            "the first pool is full",
            evidence=world.status,
        )
        before = wait_until(
            world.two_of_the_first, "two replicas run", timeout_s=120.0, evidence=world.status
        )

        # 1. What the first pool has no room for goes to the second, and no pod of the first restarts.
        world.asks({"name": FIRST}, {"name": SECOND, "relativeCapacity": "0.5"})
        world.has(f"{FIRST} 2/2, {SECOND} 1/1")
        # On a busy machine a pod may miss a probe, and is not counted for a moment.
        wait_until(lambda: world.uids(FIRST) == before, "the same pods are ready", evidence=world.status)

        # 2. A pod of the second gets half as many requests as one of the first, by the gateways' own counters.
        pools = wait_until(world.three_addresses, "all pods are ready", evidence=world.addresses)
        counted = world.requests()

        def sent(pool: str) -> int:
            now = world.requests()
            return sum(
                now.get(address, 0) - counted.get(address, 0) for address in pools if pools[address] == pool
            )

        with paced_load(space, "home") as load:
            wait_until(
                lambda: sent(FIRST) + sent(SECOND) >= WEIGHED_REQUESTS,
                "enough requests for a share",
                timeout_s=120.0,
                evidence=world.requests,
            )
            report = load.finish()
        assert report.problems == ()
        share = sent(SECOND) / (sent(FIRST) + sent(SECOND))
        assert share == pytest.approx(0.2, abs=0.05), world.requests()

        # 3. The second leaves the list: it ends when the first serves in its place, and no request is lost.
        first.apply("RecommendOnly", tiers={"realtime": {"ceiling": 3}})
        with paced_load(space, "home") as load:
            world.asks({"name": FIRST})
            world.has(f"{FIRST} 3/3")
            wait_until(
                lambda: (
                    not [pod for pod in space.pods("home") if pod["metadata"]["labels"][POOL_LABEL] == SECOND]
                ),
                "no pod of the second is left",
                evidence=lambda: space.pods("home"),
            )
            report = load.finish()
        assert report.problems == ()
        wait_until(lambda: before < world.uids(FIRST), "they are ready to the end", evidence=world.status)
