"""Plan the objects of a pool's shared spares, the orders for their agents, and what the pool's status says about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.api.shared_spares import (
    MAX_SHARED_SPARES,
    SharedModel,
    SharedSparesStatus,
    SharedSpareStatus,
    UncoveredInference,
)
from tidegate.planning.allocator.spare_plan import LiveSpare, PlannedSpare, PoolSparePlan
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.planning.pools.placement import describe_slices
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import SPARE_LABEL
from tidegate.resources.settings import ServingSettings
from tidegate.resources.shared_spare import SparePlace, adapt_order, build_spare_objects, read_spare_place
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    DesiredState,
    SharedOrders,
    SharedReports,
    find_obstacle,
)

_MAX_TEXT: Final = 1024
_MAX_REASON: Final = 512


@dataclass(frozen=True, slots=True)
class SpareDeployment:
    """The Deployment of a spare and its pods."""

    name: str
    namespace: str
    uid: str
    place: SparePlace | None
    """None if the Deployment is not as we wrote it."""
    pods: Sequence[PodView] = ()

    @property
    def serving_pod(self) -> PodView | None:
        """Return its pod on its node, if that can be called."""
        place = self.place
        return next(
            (pod for pod in self.pods if pod.is_reachable and place is not None and pod.node == place.node),
            None,
        )


@dataclass(frozen=True, slots=True)
class SpareState:
    """What a spare's pod reported, compared with what the Inferences have committed."""

    served: Mapping[str, int] = field(default_factory=dict[str, int])
    """Committed versions that it serves, by Inference."""
    problem: str = ""
    """Why it does not serve some of its models; empty if it serves all."""
    is_asked: bool = True
    """Whether its agent has to be asked again: nothing but the pod's own events tells more about a pod that cannot be called."""


def read_deployment(body: Mapping[str, Any], pods: Iterable[PodView]) -> SpareDeployment:
    """Read the Deployment of a spare; `pods` are those of its namespace and number."""
    metadata = body["metadata"]
    return SpareDeployment(
        metadata["name"], metadata["namespace"], metadata["uid"], read_spare_place(body), tuple(pods)
    )


def list_live_spares(deployments: Iterable[SpareDeployment]) -> tuple[LiveSpare, ...]:
    """Return the spares that exist, for the allocator."""
    live: list[LiveSpare] = []
    for deployment in deployments:
        place = deployment.place
        if place is None:
            continue
        planned = PlannedSpare(
            deployment.name,
            place.namespace,
            place.number,
            place.node,
            place.slices,
            place.models,
            starts=place.starts,
        )
        pods = [pod for pod in deployment.pods if pod.node == place.node and not pod.terminating]
        served = {
            name: model.version for pod in pods if pod.ready for name, model in pod.shared_models.items()
        }
        live.append(LiveSpare(planned, served, bool(pods), any(pod.ready for pod in pods)))
    return tuple(sorted(live, key=lambda spare: (spare.planned.namespace, spare.planned.number)))


def plan_spare_objects(
    pool: ComputePool, spare: PlannedSpare, settings: ServingSettings
) -> tuple[Manifest, ...]:
    """Build the objects of a planned spare; without slices on its node it has no pod yet."""
    place = SparePlace(spare.namespace, spare.number, spare.node, spare.slices, spare.models, spare.starts)
    return build_spare_objects(pool, place, settings)


def find_stale_objects(
    plan: PoolSparePlan, deployments: Iterable[SpareDeployment], config_maps: Iterable[Mapping[str, Any]]
) -> tuple[ObjectDeletion, ...]:
    """Return the deletions of Deployments and ConfigMaps of spares that are not planned any more."""
    names = {(spare.namespace, spare.name) for spare in plan.spares}
    numbers = {(spare.namespace, str(spare.number)) for spare in plan.spares}
    return (
        *(
            ObjectDeletion("Deployment", ObjectKey(item.namespace, item.name), item.uid)
            for item in deployments
            if (item.namespace, item.name) not in names
        ),
        *(
            ObjectDeletion("ConfigMap", ObjectKey(metadata["namespace"], metadata["name"]), metadata["uid"])
            for metadata in (body["metadata"] for body in config_maps)
            if (metadata["namespace"], metadata["labels"][SPARE_LABEL]) not in numbers
        ),
    )


def read_order(text: str | None) -> DesiredState | None:
    """Read the order that an Inference has committed, as a shared pod takes it; None if it can take none."""
    try:
        order = None if text is None else adapt_order(DesiredState.model_validate_json(text))
    except ValidationError:
        return None  # edited by hand; the Inference's reconciler writes it again
    return order if order is not None and find_obstacle(order) is None else None


def select_orders(
    spare: PlannedSpare, orders: Mapping[ObjectKey, DesiredState]
) -> Mapping[str, DesiredState]:
    """Return the orders of a spare's Inferences by name: without one of another owner, and of two for a model only the first."""
    selected: dict[str, DesiredState] = {}
    models: set[str] = set()
    for name in spare.models:
        key = ObjectKey(spare.namespace, name)
        order = orders.get(key)
        # Its ConfigMap was edited by hand.
        if order is None or order.owner != str(key) or order.model in models:
            continue
        models.add(order.model)
        selected[name] = order
    return selected


def make_shared_orders(orders: Iterable[DesiredState], epoch: int) -> SharedOrders:
    """Return the orders for a spare's agent."""
    return SharedOrders(epoch=epoch, orders=tuple(sorted(orders, key=lambda order: order.owner)))


def judge_spare(
    spare: PlannedSpare,
    deployment: SpareDeployment | None,
    orders: Mapping[str, DesiredState],
    reports: SharedReports | None,
) -> SpareState:
    """Return what a spare serves; `orders` are the committed ones by Inference, and `reports` those of its agent, if it answers."""
    pod = deployment.serving_pod if deployment is not None else None
    if pod is None:
        return SpareState(problem=_explain_missing_pod(spare, deployment), is_asked=False)
    if reports is None:
        return SpareState(problem=f"the agent of pod {pod.key.name} does not answer on port 8443")
    by_name = {owner.partition("/")[2]: report for owner, report in reports.reports.items()}
    served = {
        name: orders[name].version
        for name in spare.models
        if name in orders and _serves_order(by_name.get(name), orders[name])
    }
    problems = [
        f"{name}: {_explain_model(orders.get(name), by_name.get(name))}"
        for name in spare.models
        if name not in served
    ]
    return SpareState(served, "; ".join(problems)[:_MAX_TEXT])


def build_spares_status(plan: PoolSparePlan, states: Mapping[str, SpareState]) -> SharedSparesStatus | None:
    """Build the status; `states` are by namespace/name of the Deployment. None if no Inference asks for a shared spare."""
    if not plan.spares and not plan.uncovered and not plan.covered:
        return None
    return SharedSparesStatus(
        slices=plan.slice_count,
        spares=tuple(
            _report_spare(spare, states.get(f"{spare.namespace}/{spare.name}", SpareState()))
            for spare in plan.spares[:MAX_SHARED_SPARES]
        ),
        uncovered=tuple(
            UncoveredInference(inference=key, reason=reason[:_MAX_REASON])
            for key, reason in list(plan.uncovered.items())[:MAX_SHARED_SPARES]
        ),
    )


def _report_spare(spare: PlannedSpare, state: SpareState) -> SharedSpareStatus:
    return SharedSpareStatus(
        name=spare.name,
        namespace=spare.namespace,
        node=spare.node,
        slices=spare.slices,
        models=tuple(
            SharedModel(inference=name, version=str(state.served.get(name, ""))) for name in spare.models
        ),
        reason=spare.reason[:_MAX_TEXT],
        problem=state.problem,
    )


def _serves_order(report: AgentReport | None, order: DesiredState) -> bool:
    return report is not None and report.phase is AgentPhase.READY and report.serving == order.version


def _explain_model(order: DesiredState | None, report: AgentReport | None) -> str:
    if order is None:
        return "it has committed no version that a shared pod can load"
    if report is None:
        return f"version {order.version} is not ordered yet"
    if report.failure is not None:
        return f"version {report.failure.version}: {report.failure.message}"
    return f"version {order.version} is {report.phase.value}"


def _explain_missing_pod(spare: PlannedSpare, deployment: SpareDeployment | None) -> str:
    if not spare.starts:
        return f"it starts as soon as node {spare.node} has {describe_slices(spare.slices)} free"
    if deployment is None or not deployment.pods:
        return "it has no pod yet"
    pod = deployment.pods[0]
    if pod.problem is not None:
        return f"pod {pod.key.name}: {pod.problem.message}"[:_MAX_TEXT]
    return f"pod {pod.key.name} {f'waits: {pod.unschedulable}' if pod.unschedulable else 'starts'}"[
        :_MAX_TEXT
    ]
