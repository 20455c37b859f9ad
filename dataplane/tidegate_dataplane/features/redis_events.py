"""The events in a Redis as a source of the feature engine: one round trip for a call, and an answer within its time limit.

What was read within CACHE_S is not read again, the absence of events included, so that an event is seen at most that much later.
Where Redis does not answer, the last rows of a key that were read count, or none, and the streams of such keys are not current.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.event_store.redis_client import RedisAccess
from tidegate_dataplane.event_store.redis_store import RedisEventStore
from tidegate_dataplane.event_store.rows import encode_keys
from tidegate_dataplane.event_store.writer import StoreError
from tidegate_dataplane.features.events import Array, SelectedEvents, join_rows

CACHE_S: Final = 0.1
"""How long rows that were read are taken for current."""
MAX_CACHED_BYTES: Final = 64 << 20
"""Of all processes of a version together."""
ENTRY_BYTES: Final = 300
"""What an entry takes beside its rows."""
RETRY_S: Final = 0.25
"""For this time after a failure no request waits for Redis: otherwise each one would wait for its whole time limit."""

READ, CACHED, LAST_KNOWN, DEFAULT = "redis", "cache", "last-known", "default"
"""Where the events of a key come from."""

_CacheKey = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class _CachedRows:
    rows: bytes
    read_at_s: float


class RedisEventReader:
    """Reads the streams of one plan for one process; not for several threads.

    `not_current` has the streams of the last call in which a key's newest events could not be read. `key_counts` counts keys
    by where their events came from, and `failures` the round trips that failed.
    """

    def __init__(
        self,
        plan: FeaturePlan,
        access: RedisAccess,
        clock: Callable[[], float] = time.monotonic,
        *,
        instances: int = 1,
    ) -> None:
        """`access` is that of the plan's store, and `instances` the processes of the version. The server need not be there."""
        self._store = RedisEventStore(access, plan)
        self._store.start_connecting()
        self._timeout_s = access.order.timeout_ms / 1000
        self._clock = clock
        entities = {entity.name: entity.type for entity in plan.entities}
        self._streams = {stream.name: stream for stream in plan.streams}
        self._key_types = {stream.name: entities[stream.entity] for stream in plan.streams}
        self._cache: OrderedDict[_CacheKey, _CachedRows] = OrderedDict()
        self._cached_bytes = 0
        self._max_cached_bytes = MAX_CACHED_BYTES // instances
        self._retry_at_s = 0.0
        self.not_current: tuple[str, ...] = ()
        self.key_counts = dict.fromkeys((READ, CACHED, LAST_KNOWN, DEFAULT), 0)
        self.failures = 0
        self.last_error = ""

    @property
    def stream_names(self) -> frozenset[str]:
        """Return the streams that it reads."""
        return frozenset(self._streams)

    def read_streams(self, keys: Mapping[str, Array]) -> Mapping[str, SelectedEvents]:
        """Return the events of the keys of each stream; never fails."""
        now_s = self._clock()
        encoded = {name: encode_keys(values, self._key_types[name]) for name, values in keys.items()}
        missing = {
            name: absent
            for name, all_keys in encoded.items()
            if (absent := [key for key in all_keys if not self._is_current(name, key, now_s)])
        }
        missing_count = sum(map(len, missing.values()))
        self.key_counts[CACHED] += sum(map(len, encoded.values())) - missing_count
        read = self._read_missing(missing, now_s)
        self.not_current = () if read is not None else tuple(missing)
        selected: dict[str, SelectedEvents] = {}
        for name, all_keys in encoded.items():
            rows = [self._cache.get((name, key), _NOTHING).rows for key in all_keys]
            if read is not None and name in read:
                rows = [read[name].get(key, row) for key, row in zip(all_keys, rows, strict=True)]
            selected[name] = join_rows(self._streams[name], rows)
        self._store_rows(read or {})
        return selected

    def close_connection(self) -> None:
        """Close the connection to the store."""
        self._store.close_connection()

    def _is_current(self, stream: str, key: bytes, now_s: float) -> bool:
        entry = self._cache.get((stream, key))
        return entry is not None and now_s - entry.read_at_s <= CACHE_S

    def _read_missing(
        self, missing: Mapping[str, Sequence[bytes]], now_s: float
    ) -> Mapping[str, Mapping[bytes, bytes]] | None:
        """Return the rows of the missing keys; None if they cannot be read."""
        if not missing:
            return {}
        count = sum(map(len, missing.values()))
        if now_s >= self._retry_at_s:
            try:
                rows = self._store.read_streams(missing, self._timeout_s)
            except StoreError as error:
                self.failures, self.last_error = self.failures + 1, str(error)
                self._retry_at_s = self._clock() + RETRY_S
                self._store.start_connecting()
            else:
                self.key_counts[READ] += count
                return {name: dict(zip(missing[name], rows[name], strict=True)) for name in missing}
        last_known = sum((name, key) in self._cache for name, keys in missing.items() for key in keys)
        self.key_counts[LAST_KNOWN] += last_known
        self.key_counts[DEFAULT] += count - last_known
        return None

    def _store_rows(self, read: Mapping[str, Mapping[bytes, bytes]]) -> None:
        now_s = self._clock()
        for name, rows_of_keys in read.items():
            for key, rows in rows_of_keys.items():
                self._remove_entry((name, key))
                self._cache[name, key] = _CachedRows(rows, now_s)
                self._cached_bytes += ENTRY_BYTES + len(rows)
        while self._cached_bytes > self._max_cached_bytes:
            self._remove_entry(next(iter(self._cache)))

    def _remove_entry(self, key: _CacheKey) -> None:
        entry = self._cache.pop(key, None)
        if entry is not None:
            self._cached_bytes -= ENTRY_BYTES + len(entry.rows)


_NOTHING: Final = _CachedRows(b"", 0.0)
