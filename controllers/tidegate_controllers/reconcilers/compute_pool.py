"""Reconciles ComputePools: writes their status, taints nodes with faults, and restarts MPS daemons."""

from datetime import timedelta
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import COMPUTE_POOL
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate.runtime.clock import Clock
from tidegate_controllers.allocator.reconciler import AllocationResults
from tidegate_controllers.applier import Applier
from tidegate_controllers.shared_spares import SharedSpares
from tidegate_controllers.sharing import GpuSharing
from tidegate_controllers.typed_caches import OverrideIndex

_SYNC_REQUEUE: Final = timedelta(milliseconds=200)
"""Requeue delay until nodes and pods have been listed."""


class ComputePoolReconciler:
    """Observe, plan, mend nodes, write the status: one pass over one ComputePool."""

    def __init__(
        self,
        *,
        applier: Applier,
        views: PoolSlicesCache,
        occupancy: NodeOccupancy,
        overrides: OverrideIndex,
        allocations: AllocationResults,
        spares: SharedSpares,
        sharing: GpuSharing | None,
        clock: Clock,
    ) -> None:
        """Create the reconciler; `sharing` is None if no node agents run."""
        self._sharing = sharing
        self._applier = applier
        self._overrides = overrides
        self._allocations = allocations
        self._spares = spares
        self._views = views
        self._occupancy = occupancy
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Update the status of one ComputePool; return when to requeue it."""
        body = self._applier.stores.pools.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            pool = ComputePool.parse(body)
        except InvalidSpecError as error:
            await self._applier.write_refusal(COMPUTE_POOL, body, str(error), self._clock.now())
            return None
        self._occupancy.start_watching()
        if not self._occupancy.has_synced or (self._sharing is not None and not self._sharing.synced):
            return _SYNC_REQUEUE
        now = self._clock.now()
        slices = self._views.get_slices(pool)
        sharing = self._sharing.plan(pool, slices, now) if self._sharing is not None else None
        observed = PoolObserved(
            pool,
            now,
            slices,
            self._overrides.find_active(OverrideKind.COMPUTE_POOL, key, now),
            self._allocations.get(key),
            sharing,
            self._spares.get_status(key, pool.status.shared_spares),
        )
        plan = plan_pool(observed)
        # The status counts a restart before it happens, so that it is not lost if the leader dies meanwhile.
        await self._applier.write_status(COMPUTE_POOL, body, plan)
        if self._sharing is not None and sharing is not None:
            await self._sharing.apply(pool, sharing, self._applier.cluster, self._applier.fence)
        return plan.requeue_after
