"""Observes what all serving kinds have in common: pods, their agents' reports, ConfigMaps, refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.features.backfill import BackfillChildren
from tidegate.planning.inference.deployments import DeploymentView
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.planning.pods import PodView
from tidegate.resources.names import BACKFILL_LABEL, to_label_value
from tidegate.triton.agents import AgentClient
from tidegate_controllers.node_capacity import NodeCapacityReader
from tidegate_controllers.stores import Stores
from tidegate_dataplane.contract import AgentReport


@dataclass(frozen=True, slots=True)
class ServingObserved:
    """The children of one object, as the caches and the agents have them."""

    pods: Sequence[PodView]
    reports: Mapping[str, AgentReport]
    config_maps: Sequence[Mapping[str, Any]]
    deployments: Sequence[Mapping[str, Any]]
    deployment_views: Sequence[DeploymentView]
    jobs: Sequence[JobView]
    refusal: PlanRefusal | None
    rooms: Sequence[NodeResources]
    """Nodes with most free resources of those that an unschedulable pod lacks."""


@dataclass(frozen=True, slots=True)
class ServingObserver:
    """Observes the children of an object through the caches, the agents, and the nodes."""

    stores: Stores
    agents: AgentClient
    room: NodeCapacityReader

    async def observe_serving(self, label: str, key: ObjectKey) -> ServingObserved:
        """Return the children of the object `key`, which carry `label`."""
        name, namespace = to_label_value(key.name), key.namespace
        pods = self.stores.pod_views.by_label(label, name, namespace=namespace)
        deployments = self.stores.deployments.by_label(label, name, namespace=namespace)
        return ServingObserved(
            pods=pods,
            reports=await self.agents.get_reports(pods),
            config_maps=self.stores.config_maps.by_label(label, name, namespace=namespace),
            deployments=deployments,
            deployment_views=self.stores.deployment_views.by_label(label, name, namespace=namespace),
            jobs=self.stores.job_views.by_label(label, name, namespace=namespace),
            refusal=next((refusal for body in deployments if (refusal := _find_refusal(body))), None),
            rooms=await self.room.find_rooms(pods),
        )

    async def observe_backfill(self, key: ObjectKey) -> BackfillChildren:
        """Return the children of the backfill of a FeatureCompute."""
        name, namespace = to_label_value(key.name), key.namespace
        pods = self.stores.pod_views.by_label(BACKFILL_LABEL, name, namespace=namespace)
        return BackfillChildren(
            jobs=self.stores.job_views.by_label(BACKFILL_LABEL, name, namespace=namespace),
            pods=pods,
            config_maps=self.stores.config_maps.by_label(BACKFILL_LABEL, name, namespace=namespace),
            freest_nodes=await self.room.find_rooms(pods),
        )


def is_cache_stale(owner: CustomResource, reports: Mapping[str, AgentReport]) -> bool:
    """Return whether an agent reports a later generation than our cache has: the cache lags, or etcd was restored."""
    return any(report.generation > owner.metadata.generation for report in reports.values())


def _find_refusal(deployment: Mapping[str, Any]) -> PlanRefusal | None:
    """Return why a Deployment cannot create pods (a quota, an admission policy), in the API server's words."""
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return PlanRefusal(Reason.CHILD_REFUSED, condition.get("message", ""))
    return None
