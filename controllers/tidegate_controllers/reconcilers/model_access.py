"""Reconciles ModelAccesses: writes what the gateways run; the xDS servers route from the same objects."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import resolve_shared_name
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import MODEL_ACCESS
from tidegate.kube.port import Manifest
from tidegate.planning.access.backends import (
    build_inference_backend,
    build_pipeline_backend,
    map_pipeline_routes,
    takes_traffic,
)
from tidegate.planning.access.callees import CalleeLookup, find_callees
from tidegate.planning.access.model_access import AccessObserved, plan_model_access, with_release
from tidegate.planning.access.pipelines import PipelinePods, PipelinesObserved, PipelinesPlan, plan_pipelines
from tidegate.planning.access.release import ReleasePlan, plan_release
from tidegate.resources.names import ACCESS_LABEL, INFERENCE_LABEL, PIPELINE_LABEL, to_label_value
from tidegate.resources.pipeline import make_pipeline_name
from tidegate.resources.settings import SettingsProvider
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.runtime.clock import Clock
from tidegate_controllers.applier import Applier
from tidegate_controllers.proxies import ProxyReports
from tidegate_controllers.release import ReleaseMeasurer
from tidegate_controllers.serving import ServingObserver
from tidegate_controllers.stores import Stores
from tidegate_controllers.typed_caches import TypedCaches

ResourceT = TypeVar("ResourceT", bound=CustomResource)


@dataclass(frozen=True, slots=True)
class PipelinePodSettings:
    """What pods of pipelines are observed and rendered with."""

    observer: ServingObserver
    serving: SettingsProvider


@dataclass(frozen=True, slots=True)
class AccessSources:
    """What is read from outside of the cluster's API."""

    proxies: ProxyReports
    measurements: ReleaseMeasurer


class ModelAccessReconciler:
    """Observe, plan, apply: one pass over one ModelAccess."""

    def __init__(
        self,
        *,
        applier: Applier,
        caches: TypedCaches,
        sources: AccessSources,
        pods: PipelinePodSettings,
        clock: Clock,
    ) -> None:
        self._applier = applier
        self._caches = caches
        self._sources = sources
        self._pods = pods
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Update the pipelines and the status of one ModelAccess; return when to requeue it."""
        body = self._applier.stores.accesses.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None  # its children are garbage-collected
        try:
            access = ModelAccess.parse(body)
        except InvalidSpecError as error:
            await self._applier.write_refusal(MODEL_ACCESS, body, str(error), self._clock.now())
            return None
        now = self._clock.now()
        release = await self._plan_release(access, body, now)
        access = with_release(access, release.status)
        observed = self._observe_access(access, await self._plan_pipelines(access), release, now)
        plan = plan_model_access(observed)
        refusal = await self._applier.apply_children(access, plan)
        if refusal is not None:
            plan = plan_model_access(replace(observed, refusal=refusal.to_verdict()))
        await self._applier.write_status(MODEL_ACCESS, body, plan)
        return plan.requeue_after

    async def _plan_release(self, access: ModelAccess, body: Manifest, now: datetime) -> ReleasePlan:
        """Plan the next step of the release. Raises StaleCacheError if it would be decided from an old status."""
        released = access.spec.release
        target = self._find_backend(access, released.target) if released is not None else None
        pods = len(target.answering_pods) if target is not None else 0
        plan = plan_release(access, await self._sources.measurements.measure_release(access, now, pods), now)
        if plan.status != access.status.release:
            await self._applier.confirm_status(access, body)
        return plan

    async def _plan_pipelines(self, access: ModelAccess) -> PipelinesPlan:
        pods = self._pods
        observed = await _observe_pipelines(access, self._caches, self._applier.stores, pods.observer)
        return plan_pipelines(access, observed, pods.serving())

    def _observe_access(
        self, access: ModelAccess, pipelines: PipelinesPlan, release: ReleasePlan, now: datetime
    ) -> AccessObserved:
        backends = [self._find_backend(access, name) for name in sorted(access.spec.inference_names)]
        host = HostKey(HostKind.ACCESS, access.key)
        return AccessObserved(
            access=access,
            now=now,
            routing=plan_access(
                access,
                {
                    backend.key: backend
                    for backend in (*backends, *self._list_pipeline_backends(access))
                    if backend is not None
                },
                self._caches.accesses.claim_hosts(access),
                credentials=None,
            ),
            proxies=self._sources.proxies.view_object(host, access.metadata.uid),
            caller_refusals=self._sources.proxies.list_refusals(host, access.metadata.uid),
            gateway=self._pods.serving().gateway,
            pipelines=pipelines,
            release=release,
        )

    def _list_pipeline_backends(self, access: ModelAccess) -> list[Backend]:
        pods = self._applier.stores.pod_views
        return [
            build_pipeline_backend(
                access,
                route,
                pods.by_label(PIPELINE_LABEL, to_label_value(key.name), namespace=key.namespace),
            )
            for key, route in map_pipeline_routes(access).items()
        ]

    def _find_backend(self, access: ModelAccess, name: str) -> Backend | None:
        key = resolve_shared_name(name, access.key.namespace)
        inference = self._caches.inferences.get(key)
        if inference is None or not takes_traffic(inference):
            return None
        pods = self._applier.stores.pod_views.by_label(
            INFERENCE_LABEL, to_label_value(key.name), namespace=key.namespace
        )
        return build_inference_backend(inference, pods)


async def _observe_pipelines(
    access: ModelAccess, caches: TypedCaches, stores: Stores, observer: ServingObserver
) -> PipelinesObserved:
    """Return the pipelines of an access as the caches and the agents have them.

    Agents are asked only if the access has pipelines.
    """
    name, namespace = to_label_value(access.key.name), access.key.namespace
    children = {
        store.kind.kind: tuple(store.by_label(ACCESS_LABEL, name, namespace=namespace))
        for store in stores.owned_stores()
        if store is not stores.pods
    }
    pods: dict[str, PipelinePods] = {}
    for route in access.spec.routes:
        if route.pipeline is None:
            continue
        key = ObjectKey(namespace, make_pipeline_name(access, route.name))
        serving = await observer.observe_serving(PIPELINE_LABEL, key)
        pods[route.name] = PipelinePods(
            serving.pods, serving.reports, serving.config_maps, serving.refusal, serving.rooms
        )
    lookup = CalleeLookup(caches.inferences.get, caches.features.get, caches.accesses.get)
    return PipelinesObserved(pods=pods, callees=find_callees(access, lookup), children=children)
