"""Buffer of records between the socket and the sink: bounded in bytes, each id once."""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from tidegate_dataplane.sampling.frames import SampleRecord

# What Python's own objects take around a record, roughly.
RECORD_BYTES = 2048


@dataclass(slots=True)
class BufferedRecord:
    """A buffered record; `settle` is called once, when it is written or given up.

    `tried_s` is the time of the first write without a known outcome, `refused_s` of the first refusal.
    """

    record: SampleRecord
    size: int
    since_s: float
    settle: Callable[[], None]
    tried_s: float | None = None
    refused_s: float | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """The most that the sink takes at once, and how long a smaller portion waits for more."""

    records: int
    bytes: int
    age_s: float


class SampleBuffer:
    """First in, first out; records that are being written still count."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._waiting: deque[BufferedRecord] = deque()
        self._bytes_waiting = 0
        self._bytes = 0
        self._records = 0
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def record_count(self) -> int:
        """Return the number of records, those being written included."""
        return self._records

    @property
    def byte_count(self) -> int:
        """Return the size of the records in bytes."""
        return self._bytes

    def offer_record(self, record: SampleRecord, size: int, settle: Callable[[], None]) -> bool:
        """Add the record if it fits; never wait."""
        size += RECORD_BYTES
        if self._closing or self._bytes + size > self._max_bytes:
            return False
        self._waiting.append(BufferedRecord(record, size, self._clock(), settle))
        self._bytes_waiting += size
        self._bytes += size
        self._records += 1
        self._changed.set()
        return True

    async def take_portion(self, portion: Portion) -> list[BufferedRecord]:
        """Return the next portion as soon as it is full or old enough; empty once closed and drained."""
        while not self._is_due(portion):
            self._changed.clear()
            wait_s = portion.age_s - (self._clock() - self._waiting[0].since_s) if self._waiting else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        taken: list[BufferedRecord] = []
        size = 0
        while self._waiting and len(taken) < portion.records and (not taken or size < portion.bytes):
            buffered = self._waiting.popleft()
            taken.append(buffered)
            size += buffered.size
        self._bytes_waiting -= size
        return taken

    def release_record(self, buffered: BufferedRecord) -> None:
        """Free the room of a record that was taken, and notify its sender."""
        self._bytes -= buffered.size
        self._records -= 1
        buffered.settle()

    def take_rest(self) -> list[BufferedRecord]:
        """Return everything that waits, at once."""
        taken, self._waiting, self._bytes_waiting = list(self._waiting), deque(), 0
        return taken

    def close(self) -> None:
        """Accept no more records; hand out the rest without waiting for full portions."""
        self._closing = True
        self._changed.set()

    def _is_due(self, portion: Portion) -> bool:
        if self._closing:
            return True
        if not self._waiting:
            return False
        is_full = len(self._waiting) >= portion.records or self._bytes_waiting >= portion.bytes
        return is_full or self._clock() - self._waiting[0].since_s >= portion.age_s


class RecentIds:
    """Ids of the last records, so that a request that ran twice is logged once."""

    def __init__(self, max_ids: int = 1 << 16) -> None:
        self._max_ids = max_ids
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, request_id: str) -> bool:
        return _hash_id(request_id) in self._ids

    def add(self, request_id: str) -> None:
        """Remember an id, and forget the oldest if there are too many."""
        self._ids[_hash_id(request_id)] = None
        if len(self._ids) > self._max_ids:
            self._ids.popitem(last=False)


def _hash_id(request_id: str) -> bytes:
    return blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()
