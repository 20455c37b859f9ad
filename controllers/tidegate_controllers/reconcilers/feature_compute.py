"""Reconciles FeatureComputes: keeps their compiled plan, pods and status as the spec asks."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import FEATURE_COMPUTE
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.features.shared_features import list_shared_keys
from tidegate.planning.plan import ReconcilePlan
from tidegate.resources.names import FEATURE_COMPUTE_LABEL
from tidegate.resources.settings import SettingsProvider
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.runtime.clock import Clock
from tidegate_controllers.applier import Applier
from tidegate_controllers.proxies import ProxyReports
from tidegate_controllers.serving import ServingObserver, is_cache_stale


class FeatureComputeReconciler:
    """Observe, plan, apply: one pass over one FeatureCompute."""

    def __init__(
        self,
        *,
        applier: Applier,
        observer: ServingObserver,
        proxies: ProxyReports,
        features: TypedCache[FeatureCompute],
        settings: SettingsProvider,
        clock: Clock,
    ) -> None:
        self._applier = applier
        self._observer = observer
        self._proxies = proxies
        self._features = features
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
            await self._applier.write_refusal(FEATURE_COMPUTE, body, str(error), self._clock.now())
            return None
        observed = await self._observe_features(features)
        if is_cache_stale(features, observed.reports):
            await self._applier.confirm_owner(features)
        plan = plan_features(observed, self._settings())
        refusal = await self._applier.apply_children(features, plan)
        backfill = ReconcilePlan(plan.status, plan.backfill.apply, plan.backfill.delete)
        backfill_refusal = await self._applier.apply_children(features, backfill)
        if refusal is not None or backfill_refusal is not None:
            observed = replace(
                observed,
                refusal=refusal or observed.refusal,
                backfill=replace(observed.backfill, refusal=backfill_refusal),
            )
            plan = plan_features(observed, self._settings())
        await self._applier.write_status(FEATURE_COMPUTE, body, plan)
        return plan.requeue_after

    async def _observe_features(self, features: FeatureCompute) -> FeaturesObserved:
        serving = await self._observer.observe_serving(FEATURE_COMPUTE_LABEL, features.key)
        return FeaturesObserved(
            features=features,
            now=self._clock.now(),
            pods=serving.pods,
            reports=serving.reports,
            config_maps=serving.config_maps,
            deployments=serving.deployments,
            proxies=self._proxies.view_object(
                HostKey(HostKind.FEATURES, features.key), features.metadata.uid
            ),
            refusal=serving.refusal,
            freest_nodes=serving.rooms,
            backfill=await self._observer.observe_backfill(features.key),
            origins=self._find_origins(features),
        )

    def _find_origins(self, features: FeatureCompute) -> Mapping[ObjectKey, FeatureCompute]:
        origins = ((key, self._features.get(key)) for key in list_shared_keys(features))
        return {key: origin for key, origin in origins if origin is not None}
