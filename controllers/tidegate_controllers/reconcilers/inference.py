"""Reconciles Inferences: keeps their pods, versions and status as the spec asks."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.shared_names import is_shared_with
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.features.feature_jobs import find_used_features
from tidegate.planning.features.last_definitions import resolve_if_usable
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.replicas import resolve_replicas
from tidegate.planning.plan import AgentOrder
from tidegate.resources.names import INFERENCE_LABEL
from tidegate.resources.settings import SettingsProvider
from tidegate.runtime.clock import Clock
from tidegate.telemetry.tracing import DECISION, Attributes, add_attributes, start_span
from tidegate.triton.agents import AgentClient
from tidegate_controllers.applier import Applier
from tidegate_controllers.placements import Placements
from tidegate_controllers.serving import ServingObserver, is_cache_stale
from tidegate_controllers.typed_caches import OverrideIndex
from tidegate_controllers.workloads import KueueWorkloads

_SYNC_REQUEUE: Final = timedelta(milliseconds=200)
"""Requeue delay until nodes and pods, or Kueue's Workloads, have been listed."""


class InferenceReconciler:
    """Observe, plan, apply: one pass over one Inference."""

    def __init__(
        self,
        *,
        applier: Applier,
        agents: AgentClient,
        observer: ServingObserver,
        placements: Placements,
        overrides: OverrideIndex,
        workloads: KueueWorkloads,
        features: TypedCache[FeatureCompute],
        settings: SettingsProvider,
        clock: Clock,
    ) -> None:
        self._applier = applier
        self._agents = agents
        self._observer = observer
        self._placements = placements
        self._overrides = overrides
        self._workloads = workloads
        self._features = features
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Bring one Inference closer to its spec; return when to requeue it."""
        body = self._applier.stores.inferences.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None  # its children are garbage-collected
        try:
            inference = resolve_replicas(Inference.parse(body), self._placements.count_running(key))
        except InvalidSpecError as error:
            await self._applier.write_refusal(INFERENCE, body, str(error), self._clock.now())
            return None
        if not (self._placements.ensure_synced(inference) and self._workloads.has_synced(inference)):
            return _SYNC_REQUEUE
        if inference.status.allocation is not None:
            add_attributes({DECISION: inference.status.allocation.decision})
        observed = await self._observe_inference(inference)
        if is_cache_stale(inference, observed.reports):
            await self._applier.confirm_owner(inference)
        plan = plan_inference(observed, self._settings())
        costs = self._placements.plan_deletion_costs(inference, observed.deployments, plan.apply)
        await self._applier.write_deletion_costs(costs)
        refusal = await self._applier.apply_children(inference, plan)
        self._placements.forget_assumed(key)
        if refusal is not None:
            plan = plan_inference(replace(observed, refusal=refusal), self._settings())
        # The status is written before the orders: it records a failure that the orders are about to undo.
        await self._applier.write_status(INFERENCE, body, plan)
        self._applier.fence.check()
        if plan.orders:
            with start_span("order", _order_attributes(plan.orders)):
                await self._agents.send_orders(plan.orders)
        return plan.requeue_after

    async def _observe_inference(self, inference: Inference) -> InferenceObserved:
        serving = await self._observer.observe_serving(INFERENCE_LABEL, inference.key)
        now = self._clock.now()
        return InferenceObserved(
            inference=inference,
            now=now,
            epoch=self._applier.fence.epoch,
            pods=serving.pods,
            reports=serving.reports,
            config_maps=serving.config_maps,
            deployments=serving.deployment_views,
            refusal=serving.refusal,
            freest_nodes=serving.rooms,
            placement=self._placements.place(inference),
            jobs=serving.jobs,
            kueue=self._workloads.get_queueing(inference),
            features=self._find_features(inference),
            overrides=self._overrides.find_active(OverrideKind.INFERENCE, inference.key, now),
        )

    def _find_features(self, inference: Inference) -> FeatureCompute | None:
        """Return the FeatureCompute that an Inference names, if it exists and shares with the namespace."""
        key = find_used_features(inference)
        features = self._features.get(key) if key is not None else None
        if features is None or not is_shared_with(features, inference.key.namespace):
            return None
        return resolve_if_usable(features, self._features.get)


def _order_attributes(orders: Sequence[AgentOrder]) -> Attributes:
    return {
        "tidegate.pods": tuple(order.pod.key.name for order in orders),
        "tidegate.version": orders[0].desired_state.version,
    }
