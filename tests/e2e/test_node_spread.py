"""Replicas of a model on two real nodes: the scheduler spreads them, and those that end leave the others spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from builders.waiting import wait_until
from fixtures.cluster import POOL_NODE
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool
from tidegate.planning.inference.deletion_order import COST_ANNOTATION
from tidegate.planning.pods import is_ready
from tidegate_localcluster.node import node_name

FIRST_NODE: Final = node_name(0)
NODES: Final = (FIRST_NODE, POOL_NODE)


def count_by_node(space: Space) -> Mapping[str, int]:
    """Ready replicas of the model on each node; empty while some are not ready."""
    pods = space.pods("home")
    return Counter(pod["spec"]["nodeName"] for pod in pods) if all(map(is_ready, pods)) else {}


def has_replicas(pool: OwnPool, **placed: int) -> None:
    """Waits until the model has so many replicas on the first node and on that of pools."""
    expected = {node: placed[name] for name, node in zip(("first", "second"), NODES, strict=True)}
    expected = {node: count for node, count in expected.items() if count}
    wait_until(
        lambda: count_by_node(pool.space) == expected,
        f"replicas by node are {expected}",
        timeout_s=120.0,
        evidence=lambda: (
            count_by_node(pool.space),
            pool.space.status("inference", "home"),
            pool.status(),
        ),
    )


def scale(pool: OwnPool, replicas: int) -> None:
    pool.space.patch("inference", "home", {"replicas": replicas})


def find_costs(space: Space) -> list[Any]:
    """Deletion costs of the pods that remain."""
    annotations = (pod["metadata"].get("annotations", {}) for pod in space.pods("home"))
    return [costs[COST_ANNOTATION] for costs in annotations if COST_ANNOTATION in costs]


@pytest.mark.alone("cordons the node of pools")
def test_replicas_are_spread_and_stay_so_when_some_end(space: Space) -> None:
    space.publish("probe", 1)
    with an_own_pool(space, "spread", "RecommendOnly", nodes=NODES) as pool:
        try:
            space.kubectl.run("cordon", POOL_NODE)
            space.apply("Inference", "home", pool.model("probe", 50, replicas=2))
            has_replicas(pool, first=2, second=0)
        finally:
            space.kubectl.run("uncordon", POOL_NODE)
        # The constraint sends those that start now to the node that has fewer.
        scale(pool, 4)
        has_replicas(pool, first=2, second=2)
        wait_until(
            lambda: pool.status().get("imbalancePercent") is not None,
            "the pool shows its imbalance",
            evidence=pool.status,
        )
        # By their age alone, Kubernetes would end the two that started last, which are on one node.
        scale(pool, 2)
        has_replicas(pool, first=1, second=1)
        assert find_costs(space) == []
