"""Limit the rate of tries by key, so that few guesses of tokens reach the API server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_MAX_KEYS: Final = 10_000


@dataclass(slots=True)
class _Bucket:
    tokens: float
    updated_s: float


class TokenBuckets:
    """One token bucket for each key: `burst` tokens at once, then `per_s` tokens a second."""

    def __init__(self, *, per_s: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._per_s, self._burst, self._monotonic = per_s, burst, monotonic
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return the seconds until a token is available; zero if one is."""
        bucket = self._fill_bucket(key)
        return 0.0 if bucket.tokens >= 1 else (1 - bucket.tokens) / self._per_s

    def take(self, key: str) -> None:
        """Take a token, or the rest of one."""
        bucket = self._fill_bucket(key)
        bucket.tokens = max(bucket.tokens - 1, 0)

    def give_back(self, key: str) -> None:
        """Undo one `take`."""
        bucket = self._fill_bucket(key)
        bucket.tokens = min(bucket.tokens + 1, self._burst)

    def _fill_bucket(self, key: str) -> _Bucket:
        now = self._monotonic()
        bucket = self._buckets.pop(key, None) or _Bucket(self._burst, now)
        bucket.tokens = min(bucket.tokens + (now - bucket.updated_s) * self._per_s, self._burst)
        bucket.updated_s = now
        self._buckets[key] = bucket
        while len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return bucket
