"""ComputePool: says what its nodes have, and who has it."""

from datetime import timedelta
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.compute_pool import ComputePool
from tidegate.api.meta import ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.kube.kinds import COMPUTE_POOL
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.pool_views import PoolViews
from tidegate.planning.compute_pool import PoolObserved, plan_pool
from tidegate.runtime.clock import Clock
from tidegate_controllers.allocations import Allocations
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.overrides import Overrides
from tidegate_controllers.sharing import Sharing

_UNTIL_KNOWN: Final = timedelta(milliseconds=200)
"""How soon to look again while the first listings of nodes and pods are under way."""


class ComputePoolReconciler:
    """Observe, plan, write the status: one pass over one ComputePool."""

    def __init__(
        self,
        writer: Writer,
        views: PoolViews,
        occupancy: Occupancy,
        overrides: Overrides,
        allocations: Allocations,
        sharing: Sharing | None,
        clock: Clock,
    ) -> None:
        """`sharing` is None where no node agents run."""
        self._sharing = sharing
        self._writer = writer
        self._overrides = overrides
        self._allocations = allocations
        self._views = views
        self._occupancy = occupancy
        self._clock = clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Brings the status of one ComputePool up to date; returns when to look again."""
        body = self._writer.stores.pools.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        try:
            pool = ComputePool.parse(body)
        except InvalidSpecError as error:
            await self._writer.refuse(COMPUTE_POOL, body, str(error), self._clock.now())
            return None
        self._occupancy.begin()
        if not self._occupancy.known or (self._sharing is not None and not self._sharing.synced):
            return _UNTIL_KNOWN
        now = self._clock.now()
        slices = self._views.slices(pool)
        sharing = self._sharing.plan(pool, slices, now) if self._sharing is not None else None
        observed = PoolObserved(
            pool,
            now,
            slices,
            self._overrides.about(OverrideKind.COMPUTE_POOL, key, now),
            self._allocations.get(key),
            sharing,
        )
        plan = plan_pool(observed)
        # The status counts a restart before it happens, so that a leader that dies meanwhile forgets none.
        await self._writer.status(COMPUTE_POOL, body, plan)
        if self._sharing is not None and sharing is not None:
            await self._sharing.apply(pool, sharing, self._writer.cluster, self._writer.fence)
        return plan.requeue_after
