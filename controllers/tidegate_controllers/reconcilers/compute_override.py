"""Reconciles ComputeOverrides: writes whether each is active."""

from datetime import timedelta

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import COMPUTE_OVERRIDE
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.compute_override import OverrideObserved, plan_override
from tidegate.runtime.clock import Clock
from tidegate_controllers.applier import Applier


class ComputeOverrideReconciler:
    """Observe, plan, write the status: one pass over one ComputeOverride."""

    def __init__(self, applier: Applier, inferences: TypedCache[Inference], clock: Clock) -> None:
        self._applier = applier
        self._inferences = inferences
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Update the status of one ComputeOverride; return the time until it ends."""
        body = self._applier.stores.overrides.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            override = ComputeOverride.parse(body)
        except InvalidSpecError as error:
            await self._applier.write_refusal(COMPUTE_OVERRIDE, body, str(error), self._clock.now())
            return None
        plan = plan_override(self._observe_override(override))
        await self._applier.write_status(COMPUTE_OVERRIDE, body, plan)
        return plan.requeue_after

    def _observe_override(self, override: ComputeOverride) -> OverrideObserved:
        target = override.spec.target
        if target.kind is OverrideKind.COMPUTE_POOL:
            exists = self._applier.stores.pools.get(target.key) is not None
            return OverrideObserved(override, self._clock.now(), exists, target_is_scaled=True)
        inference = self._inferences.get(target.key)
        scaled = inference is not None and inference.spec.scaling is not None
        return OverrideObserved(override, self._clock.now(), inference is not None, scaled)
