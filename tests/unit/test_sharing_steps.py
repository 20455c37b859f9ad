"""Steps of a repair as they reach the API server: a taint among others' taints, pods by uid, all of them tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from builders.compute_pool import a_compute_pool, node_body
from builders.sharing_world import SharingWorld
from tidegate.api.meta import ObjectKey
from tidegate.api.repairs import RepairState
from tidegate.errors import AgentUnreachableError, ConflictError
from tidegate.kube import kinds
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.store import ObjectStore
from tidegate.planning.sharing_health import SharingPlan
from tidegate.planning.sharing_repairs import OrderNode, RemovePod, Step, TaintNode
from tidegate_controllers.node_agents import NodeAgents
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.sharing import Helpers, Sharing
from tidegate_controllers.sharing_metrics import SharingMetrics
from tidegate_controllers.stores import Stores
from tidegate_dataplane.contract.sharing import NodeAction, NodeOrder

FOREIGN = {"key": "dedicated", "value": "ads", "effect": "NoSchedule"}
OURS = {"key": "tidegate.io/sharing", "value": "Repairing", "effect": "NoSchedule"}
FENCE = Fence.unlimited(7)


class Api:
    """One node, and what was asked."""

    def __init__(self, *taints: dict[str, str]) -> None:
        self.node: dict[str, Any] | None = node_body("gpu-0", taints=list(taints))
        self.node["metadata"]["resourceVersion"] = "12"
        self.merged: list[Mapping[str, Any]] = []
        self.deleted: list[tuple[str, str]] = []
        self.conflict = False

    async def get(self, kind: Kind, key: ObjectKey) -> Mapping[str, Any] | None:
        assert (kind, key) == (kinds.NODE, ObjectKey("", "gpu-0"))
        return self.node

    async def merge(self, kind: Kind, key: ObjectKey, patch: Mapping[str, Any], fence: Fence) -> None:
        assert (kind, key, fence) == (kinds.NODE, ObjectKey("", "gpu-0"), FENCE)
        if self.conflict:
            message = "the object has been modified"
            raise ConflictError(message)
        self.merged.append(patch)

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        assert (kind, fence) == (kinds.POD, FENCE)
        self.deleted.append((str(key), uid))


class Silent:
    """Agents none of which answers."""

    def __init__(self) -> None:
        self.orders: list[NodeOrder] = []

    async def send(self, node: str, order: NodeOrder) -> None:
        self.orders.append(order)
        message = f"no node agent runs on {node}"
        raise AgentUnreachableError(message)


async def taken(
    api: Api, *steps: Step, agents: Silent | None = None, registry: CollectorRegistry | None = None
) -> None:
    """Takes these steps."""
    stores = Stores()
    helpers = Helpers(ObjectStore(kinds.POD), "plugin", "daemon")
    metrics = SharingMetrics(registry or CollectorRegistry())
    sharing = Sharing(
        cast(NodeAgents, agents), helpers, stores, Ownership(stores), Occupancy(stores.pods), metrics
    )
    whole = SharingWorld().look()
    plan = SharingPlan(whole.repairs, steps, None, {}, (), frozenset(), whole.requeue_after)
    await sharing.carry_out(a_compute_pool(), plan, cast(Any, api), FENCE)


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ([FOREIGN], RepairState.REPAIRING, [FOREIGN, OURS]),
        ([OURS, FOREIGN], RepairState.QUARANTINED, [FOREIGN, {**OURS, "value": "Quarantined"}]),
        ([FOREIGN, OURS], None, [FOREIGN]),
    ],
)
async def test_taint_is_changed_among_those_of_others_and_only_as_the_node_was_read(
    before: list[dict[str, str]], value: RepairState | None, after: list[dict[str, str]]
) -> None:
    api = Api(*before)
    await taken(api, TaintNode("gpu-0", value))
    assert api.merged == [{"metadata": {"resourceVersion": "12"}, "spec": {"taints": after}}]


async def test_taint_that_is_as_it_should_be_is_not_written() -> None:
    api = Api(FOREIGN, OURS)
    await taken(api, TaintNode("gpu-0", RepairState.REPAIRING))
    api.node = None
    await taken(api, TaintNode("gpu-0", None))
    assert api.merged == []


async def test_step_that_fails_keeps_no_other_from_being_taken() -> None:
    api, agents = Api(), Silent()
    api.conflict = True
    steps = (
        TaintNode("gpu-0", RepairState.REPAIRING),
        OrderNode("gpu-0", "a", NodeAction.TERMINATE_CLIENT, 4100, 7001),
        RemovePod(ObjectKey("ads", "p"), "uid-p"),
    )
    registry = CollectorRegistry()
    await taken(api, *steps, agents=agents, registry=registry)
    for step, count in (("TaintNode", 1), ("OrderNode", 1), ("RemovePod", None)):
        labels = {"pool": "cpu-a", "step": step}
        assert registry.get_sample_value("tidegate_pool_repair_steps_failed_total", labels) == count
    assert [(each.epoch, each.server, each.client) for each in agents.orders] == [(7, 4100, 7001)]
    assert api.deleted == [("ads/p", "uid-p")]
