"""Reconciles the shared spares of ComputePools: their Deployments, the orders for their agents, and which models they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import structlog
from pydantic import ValidationError

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import LeadershipLostError, PermanentError, RetryableError
from tidegate.kube.kinds import POD
from tidegate.kube.store import labels_of
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.allocator.spare_plan import PlannedSpare, PoolSparePlan
from tidegate.planning.inference.deployments import find_start_text
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.planning.pools.spare_pods import (
    SpareDeployment,
    SpareState,
    build_spares_status,
    find_stale_objects,
    judge_spare,
    make_shared_orders,
    plan_spare_objects,
    read_order,
    select_orders,
)
from tidegate.resources.inference import hash_source
from tidegate.resources.names import (
    INFERENCE_LABEL,
    POOL_LABEL,
    SPARE_LABEL,
    SPARE_MODELS_ANNOTATION,
    to_label_value,
)
from tidegate.resources.settings import SettingsProvider
from tidegate.resources.shared_spare import SpareModel, format_served_models
from tidegate.runtime.clock import Clock
from tidegate.triton.agents import AgentClient
from tidegate_controllers.applier import Applier
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_dataplane.contract import DesiredState

_LOADING_REQUEUE: Final = timedelta(seconds=1)
"""Poll agents this often while a spare does not serve all of its models."""
_SERVING_REQUEUE: Final = timedelta(seconds=10)
_UNLOAD_PAUSE_S: Final = 2.0
"""An order that unloads a model follows so long after gateways were told, until they have all stopped sending."""

log = structlog.get_logger(__name__)


class SharedSparesReconciler:
    """Observe, plan, apply: one pass over the shared spares of one ComputePool."""

    def __init__(
        self,
        *,
        applier: Applier,
        agents: AgentClient,
        pools: TypedCache[ComputePool],
        inferences: TypedCache[Inference],
        spares: SharedSpares,
        settings: SettingsProvider,
        clock: Clock,
    ) -> None:
        self._applier = applier
        self._agents = agents
        self._pools = pools
        self._inferences = inferences
        self._spares = spares
        self._settings = settings
        self._clock = clock
        self._withdrawn: dict[ObjectKey, float] = {}
        """When gateways were last told that a pod stops serving some model, in seconds of the clock."""

    async def reconcile_spares(self, key: ObjectKey) -> timedelta | None:
        """Bring the spares of a pool closer to the allocator's plan; return when to requeue the pool.

        What is refused or fails for one spare or deletion stops no other. Raises the first RetryableError after all others.
        """
        pool, plan = self._pools.get(key), self._spares.get_plan(key)
        if pool is None or pool.metadata.deletion_timestamp is not None or plan is None:
            return None
        deployments = {(item.namespace, item.name): item for item in self._spares.list_deployments(key)}
        config_maps = [
            body
            for body in self._applier.stores.config_maps.by_label(POOL_LABEL, to_label_value(key.name))
            if SPARE_LABEL in labels_of(body)
        ]
        failures: list[RetryableError] = []
        for deletion in find_stale_objects(plan, deployments.values(), config_maps):
            try:
                plan_of_one = ReconcilePlan(status={}, delete=(deletion,))
                refusal = await self._applier.apply_children(pool, plan_of_one)
            except RetryableError as error:
                failures.append(error)
                continue
            if refusal is not None:
                log.warning("spare_not_deleted", object=str(deletion.key), error=refusal.message)
        orders = self._find_orders(plan)

        async def reconcile_one(spare: PlannedSpare) -> SpareState:
            deployment = deployments.get((spare.namespace, spare.name))
            try:
                return await self._reconcile_spare(pool, spare, deployment, orders)
            except RetryableError as error:
                # A refusal of an agent while this process leads is the problem of its spare alone.
                if not (isinstance(error, LeadershipLostError) and self._applier.fence.is_valid()):
                    failures.append(error)
                return SpareState(problem=str(error)[:1024])

        states = await asyncio.gather(*map(reconcile_one, plan.spares))
        by_name = {
            f"{spare.namespace}/{spare.name}": state for spare, state in zip(plan.spares, states, strict=True)
        }
        self._spares.put_status(key, build_spares_status(plan, by_name))
        if failures:
            raise failures[0]
        if not plan.spares:
            return None
        return (
            _LOADING_REQUEUE
            if any(state.problem and state.is_asked for state in states)
            else _SERVING_REQUEUE
        )

    async def _reconcile_spare(
        self,
        pool: ComputePool,
        spare: PlannedSpare,
        deployment: SpareDeployment | None,
        orders: Mapping[ObjectKey, DesiredState],
    ) -> SpareState:
        """Apply the objects of one spare and follow its pod; what is refused is its problem alone."""
        children = ReconcilePlan(status={}, apply=plan_spare_objects(pool, spare, self._settings()))
        refusal = await self._applier.apply_children(pool, children)
        try:
            state = await self._follow_spare(spare, deployment, orders)
        except (PermanentError, ValidationError) as error:
            log.warning("spare_not_followed", spare=f"{spare.namespace}/{spare.name}", error=str(error))
            return SpareState(problem=str(error)[:1024])
        if refusal is not None and state.problem:
            return replace(state, problem=refusal.message)
        return state

    async def _follow_spare(
        self,
        spare: PlannedSpare,
        deployment: SpareDeployment | None,
        orders: Mapping[ObjectKey, DesiredState],
    ) -> SpareState:
        """Send a spare its orders, and write which models it serves; gateways stop some time before a model is unloaded."""
        own = select_orders(spare, orders)
        pod = deployment.serving_pod if deployment is not None else None
        if pod is None:
            return judge_spare(spare, deployment, own, None)
        sources = self._find_sources(spare.namespace, own)
        remaining = {
            name: model
            for name, model in pod.shared_models.items()
            if name in own and model == SpareModel(own[name].version, sources[name])
        }
        if not await self._write_served(pod, remaining):
            return SpareState(problem=f"the API server refuses the annotations of pod {pod.key.name}")
        if self._is_pausing(pod, remaining):
            versions = {name: model.version for name, model in remaining.items()}
            return SpareState(
                versions, f"pod {pod.key.name}: gateways stop sending before models are unloaded"
            )
        self._applier.fence.check()
        shared = make_shared_orders(own.values(), self._applier.fence.epoch)
        reports = await self._agents.send_shared_orders(pod, shared)
        state = judge_spare(spare, deployment, own, reports)
        served = {name: SpareModel(version, sources[name]) for name, version in state.served.items()}
        if reports is not None and served != remaining:
            await self._write_served(pod, served)
        return state

    def _is_pausing(self, pod: PodView, remaining: Mapping[str, SpareModel]) -> bool:
        """Return whether gateways were told just now, or in a pass just before, that a pod serves less than until then."""
        now = self._clock.monotonic()
        self._withdrawn = {
            key: since for key, since in self._withdrawn.items() if now - since < _UNLOAD_PAUSE_S
        }
        if pod.shared_models.keys() - remaining.keys():
            self._withdrawn[pod.key] = now
        return pod.key in self._withdrawn

    def _find_sources(self, namespace: str, names: Iterable[str]) -> Mapping[str, str]:
        """Return the hashes of the sources of Inferences, which the labels of their own pods have."""
        inferences = ((name, self._inferences.get(ObjectKey(namespace, name))) for name in names)
        return {name: hash_source(inference) for name, inference in inferences if inference is not None}

    async def _write_served(self, pod: PodView, served: Mapping[str, SpareModel]) -> bool:
        """Write which models a pod serves into its annotation, from which gateways are configured; return False if refused."""
        stores = self._applier.stores
        live = stores.pod_views.get(pod.key)
        if live is None or live.uid != pod.uid or live.shared_models == served:
            return True
        annotations = {SPARE_MODELS_ANNOTATION: format_served_models(served)}
        patch = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        try:
            stored = await self._applier.cluster.merge(POD, pod.key, patch, self._applier.fence)
        except PermanentError as error:
            log.warning("served_models_refused", pod=str(pod.key), error=str(error))
            return False
        if stored is not None:
            stores.pods.observe("MODIFIED", stored)
        log.info("spare_serves", pod=str(pod.key), models=annotations[SPARE_MODELS_ANNOTATION])
        return True

    def _find_orders(self, plan: PoolSparePlan) -> Mapping[ObjectKey, DesiredState]:
        """Return the committed orders of the Inferences that have a spare."""
        orders: dict[ObjectKey, DesiredState] = {}
        for key in {ObjectKey(spare.namespace, name) for spare in plan.spares for name in spare.models}:
            inference = self._inferences.get(key)
            if inference is None or inference.metadata.deletion_timestamp is not None:
                continue
            config_maps = self._applier.stores.config_maps.by_label(
                INFERENCE_LABEL, to_label_value(key.name), namespace=key.namespace
            )
            order = read_order(find_start_text(config_maps, hash_source(inference)))
            if order is not None:
                orders[key] = order
        return orders
