"""What each pool's allocator last came to, for the pool's own status."""

from collections.abc import Callable

from tidegate.api.meta import ObjectKey
from tidegate.planning.pool_allocation import PoolAllocation


class Allocations:
    """Remembers within a process; after a restart nothing is known until the allocator has looked again."""

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        """Calls `wake` with each pool of which something else is to be said."""
        self._wake = wake
        self._found: dict[ObjectKey, PoolAllocation] = {}

    def get(self, pool: ObjectKey) -> PoolAllocation | None:
        """The last one, or None."""
        return self._found.get(pool)

    def put(self, pool: ObjectKey, found: PoolAllocation) -> None:
        """After a look."""
        if self._found.get(pool) != found:
            self._found[pool] = found
            self._wake(pool)

    def forget(self, pool: ObjectKey) -> None:
        """It is gone."""
        self._found.pop(pool, None)

    def clear(self) -> None:
        """Another term begins: somebody else may have decided in between."""
        self._found.clear()
