"""Reconciles FeatureComputes: keeps their compiled plan, pods and status as the spec asks."""

from dataclasses import replace
from datetime import timedelta

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import FEATURE_COMPUTE
from tidegate.planning.feature_compute import FeaturesObserved, plan_features
from tidegate.resources.names import FEATURE_COMPUTE_LABEL
from tidegate.resources.settings import Serving
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.runtime.clock import Clock
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.proxies import Proxies
from tidegate_controllers.serving import Observer, ahead_of


class FeatureComputeReconciler:
    """Observe, plan, apply: one pass over one FeatureCompute."""

    def __init__(
        self, writer: Writer, observer: Observer, proxies: Proxies, settings: Serving, clock: Clock
    ) -> None:
        self._applier = writer
        self._observer = observer
        self._proxies = proxies
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Bring one FeatureCompute closer to its spec; return when to requeue it."""
        body = self._applier.stores.features.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None  # its children go with it, through their owner references
        try:
            features = FeatureCompute.parse(body)
        except InvalidSpecError as error:
            await self._applier.refuse(FEATURE_COMPUTE, body, str(error), self._clock.now())
            return None
        observed = await self._observe(features)
        if ahead_of(features, observed.reports):
            await self._applier.confirm(features)
        plan = plan_features(observed, self._settings())
        refusal = await self._applier.children(features, plan)
        if refusal is not None:
            plan = plan_features(replace(observed, refusal=refusal), self._settings())
        await self._applier.status(FEATURE_COMPUTE, body, plan)
        return plan.requeue_after

    async def _observe(self, features: FeatureCompute) -> FeaturesObserved:
        serving = await self._observer.serving(FEATURE_COMPUTE_LABEL, features.key)
        return FeaturesObserved(
            features=features,
            now=self._clock.now(),
            pods=serving.pods,
            reports=serving.reports,
            config_maps=serving.config_maps,
            proxies=self._proxies.view(HostKey(HostKind.FEATURES, features.key), features.metadata.uid),
            refusal=serving.refusal,
            rooms=serving.rooms,
        )
