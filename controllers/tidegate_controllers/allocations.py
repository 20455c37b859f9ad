"""Remembers the last result of each pool's allocator, for the pool's own status."""

from collections.abc import Callable

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.pool_status import PoolAllocation


class AllocationResults:
    """Results of the allocator by pool, in memory; none after a restart until the allocator has run again."""

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with each pool whose result changes."""
        self._wake = wake
        self._results: dict[ObjectKey, PoolAllocation] = {}

    def get(self, pool: ObjectKey) -> PoolAllocation | None:
        """Return the last result; None if there is none."""
        return self._results.get(pool)

    def put(self, pool: ObjectKey, result: PoolAllocation) -> None:
        """Take the result of a reconcile."""
        if self._results.get(pool) != result:
            self._results[pool] = result
            self._wake(pool)

    def forget(self, pool: ObjectKey) -> None:
        """Forget a deleted pool."""
        self._results.pop(pool, None)

    def clear(self) -> None:
        """Forget everything when a new term begins, since another leader may have decided in between."""
        self._results.clear()
