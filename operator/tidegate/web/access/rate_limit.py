"""How many tokens may be tried by each address, so that guessing hardly reaches the API server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_MOST_ADDRESSES: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class RateLimit:
    """Token buckets: `burst` at once, then `per_s` each second, for each key."""

    def __init__(self, *, per_s: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._per_s, self._burst, self._monotonic = per_s, burst, monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Seconds until there is one; zero where there is one now."""
        bucket = self._filled(key)
        return 0.0 if bucket.tokens >= 1 else (1 - bucket.tokens) / self._per_s

    def take(self, key: str) -> None:
        """Takes one, or what is left of it."""
        bucket = self._filled(key)
        bucket.tokens = max(bucket.tokens - 1, 0)

    def give_back(self, key: str) -> None:
        """Take back one `take`, as if it had never been."""
        bucket = self._filled(key)
        bucket.tokens = min(bucket.tokens + 1, self._burst)

    def _filled(self, key: str) -> _Bucket:
        now = self._monotonic()
        bucket = self._buckets.pop(key, None) or _Bucket(self._burst, now)
        bucket.tokens = min(bucket.tokens + (now - bucket.at) * self._per_s, self._burst)
        bucket.at = now
        self._buckets[key] = bucket
        while len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket
