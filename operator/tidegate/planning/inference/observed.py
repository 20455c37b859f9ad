"""What the plan of an Inference depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.batch.kueue import KueueState
from tidegate.planning.inference.deployments import DeploymentView
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.replicas import count_serving_pods
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.planning.pods import PodView
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import AgentReport


@dataclass(frozen=True, slots=True)
class InferenceObserved:
    """Inputs of `plan_inference`."""

    inference: Inference
    now: datetime
    epoch: int
    pods: Sequence[PodView] = ()
    reports: Mapping[str, AgentReport] = field(default_factory=dict[str, AgentReport])
    """Reports of agents by pod uid; a pod whose agent did not answer is absent."""
    config_maps: Sequence[Mapping[str, Any]] = ()
    """Our ConfigMaps of this Inference, of all sources."""
    deployments: Sequence[DeploymentView] = ()
    """The live Deployments with its label."""
    refusal: PlanRefusal | None = None
    """Why a child cannot be applied as planned: a quota, an admission policy, a name that is taken."""
    freest_nodes: Sequence[NodeResources] = ()
    """The nodes with the most free of a resource that an unschedulable pod lacks."""
    placement: PlacementResult | None = None
    """What its pools assign to it; None if the spec names no pool."""
    overrides: Sequence[ComputeOverride] = ()
    """The active ComputeOverrides of the Inference."""
    jobs: Sequence[JobView] = ()
    """Our Jobs of this Inference, earlier runs included."""
    kueue: KueueState | None = None
    """What Kueue reports about the Jobs; None if the spec names no queue."""
    features: FeatureCompute | None = None
    """The FeatureCompute that the batch or the stream names; None if it names none, or none that it may use."""

    @property
    def slice_resources(self) -> SliceResources | None:
        """Return the resources of each pod as its pool defines them, of several pools those with GPUs; None without a pool."""
        return self.placement.resources if self.placement is not None else None

    @property
    def template_unknown(self) -> bool:
        """Return whether no pool can tell the resources of a slice: the pods that run then stay as they are."""
        return self.placement is not None and self.placement.resources is None

    @property
    def has_several_pools(self) -> bool:
        """Return whether several pools assign slices to it."""
        return self.placement is not None and bool(self.placement.pools)

    @property
    def replicas(self) -> int:
        """Return the desired number of pods, warm spares included."""
        return self.placement.replicas if self.placement is not None else self.inference.spec.replicas

    @property
    def required_pods(self) -> int:
        """Return how many pods must be ready for Ready=True, with one Deployment.

        A missing warm spare does not matter, but a rollout is only complete when the spares are replaced too.
        """
        alive = {pod.template for pod in self.pods if not pod.terminating}
        return self.replicas if len(alive) > 1 else count_serving_pods(self.inference, self.replicas)
