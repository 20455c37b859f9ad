"""Reconciles ModelAccesses: writes what the gateways run; the xDS servers route from the same objects."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import MODEL_ACCESS
from tidegate.kube.port import Manifest
from tidegate.planning.fleet import inference_backend, pipeline_backend, pipeline_backends, takes_traffic
from tidegate.planning.model_access import AccessObserved, plan_model_access, with_release
from tidegate.planning.pipelines import PipelinesPlan, plan_pipelines
from tidegate.planning.release import ReleasePlan, plan_release
from tidegate.resources.names import INFERENCE_LABEL, PIPELINE_LABEL, label_value
from tidegate.resources.settings import Serving
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.refusals import Refusal
from tidegate.runtime.clock import Clock
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.known import Known
from tidegate_controllers.pipelines import observe_pipelines
from tidegate_controllers.proxies import Proxies
from tidegate_controllers.release import Measurements
from tidegate_controllers.serving import Observer


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What pods of pipelines are observed and rendered with.

    `gateway` is the gateways' `host:port` inside the cluster.
    """

    observer: Observer
    serving: Serving
    gateway: str


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read from outside of the cluster's API."""

    proxies: Proxies
    measurements: Measurements


class ModelAccessReconciler:
    """Observe, plan, apply: one pass over one ModelAccess."""

    def __init__(
        self, writer: Writer, known: Known, sources: Sources, pods: PodSettings, clock: Clock
    ) -> None:
        self._applier = writer
        self._caches = known
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
            await self._applier.refuse(MODEL_ACCESS, body, str(error), self._clock.now())
            return None
        now = self._clock.now()
        release = await self._release(access, body, now)
        access = with_release(access, release.status)
        observed = self._observe(access, await self._plan_pipelines(access), release, now)
        plan = plan_model_access(observed)
        refusal = await self._applier.children(access, plan)
        if refusal is not None:
            plan = plan_model_access(replace(observed, refusal=refusal.verdict()))
        await self._applier.status(MODEL_ACCESS, body, plan)
        return plan.requeue_after

    async def _release(self, access: ModelAccess, body: Manifest, now: datetime) -> ReleasePlan:
        """Plan the next step of the release. Raises StaleCacheError if it would be decided from an old status."""
        released = access.spec.release
        target = self._backend(access, released.target) if released is not None else None
        pods = len(target.endpoints) if target is not None else 0
        plan = plan_release(access, await self._sources.measurements.of(access, now, pods), now)
        if plan.status != access.status.release:
            await self._applier.confirm_status(access, body)
        return plan

    async def _plan_pipelines(self, access: ModelAccess) -> PipelinesPlan:
        pods = self._pods
        observed = await observe_pipelines(access, self._caches, self._applier.stores, pods.observer)
        return plan_pipelines(access, replace(observed, gateway=pods.gateway), pods.serving())

    def _observe(
        self, access: ModelAccess, pipelines: PipelinesPlan, release: ReleasePlan, now: datetime
    ) -> AccessObserved:
        backends = [self._backend(access, name) for name in sorted(access.spec.inferences)]
        host = HostKey(HostKind.ACCESS, access.key)
        return AccessObserved(
            access=access,
            now=now,
            routing=plan_access(
                access,
                {
                    backend.key: backend
                    for backend in (*backends, *self._pipeline_backends(access))
                    if backend is not None
                },
                self._caches.accesses.owners(access),
                credentials=None,
            ),
            proxies=self._sources.proxies.view(host, access.metadata.uid),
            callers=tuple(
                Refusal(access.key, refusal.reason, refusal.part, refusal.message)
                for refusal in self._sources.proxies.refusals(host, access.metadata.uid)
            ),
            gateway=self._pods.gateway,
            pipelines=pipelines,
            release=release,
        )

    def _pipeline_backends(self, access: ModelAccess) -> list[Backend]:
        pods = self._applier.stores.pod_views
        return [
            pipeline_backend(
                access,
                route,
                pods.by_label(PIPELINE_LABEL, label_value(key.name), namespace=key.namespace),
            )
            for key, route in pipeline_backends(access).items()
        ]

    def _backend(self, access: ModelAccess, name: str) -> Backend | None:
        key = ObjectKey(access.key.namespace, name)
        inference = self._caches.inferences.get(key)
        if inference is None or not takes_traffic(inference):
            return None
        pods = self._applier.stores.pod_views.by_label(
            INFERENCE_LABEL, label_value(key.name), namespace=key.namespace
        )
        return inference_backend(inference, pods)
