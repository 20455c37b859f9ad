"""Whose token it is, by the API server's TokenReview: remembered for a minute, and asked only so often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from math import ceil
from typing import Any, Final
from weakref import WeakValueDictionary

from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.web.access.identity import Identity
from tidegate.web.access.rate_limit import RateLimit
from tidegate.web.access.remembered import Remembered

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_KNOWN_S: Final = 60.0
_REFUSED_S: Final = 5.0
_WELL_KNOWN_S: Final = 8 * 3600.0
_MOST: Final = 1_024
_LONGEST: Final = 16_384
"""Bytes: what is longer is no token of anybody."""


class TooManyError(PermanentError):
    """Too many tokens were tried; `seconds` until the next may be."""

    def __init__(self, seconds: float) -> None:
        self.seconds = ceil(seconds)
        super().__init__(f"too many tokens were tried: wait {self.seconds} s")


class Tokens:
    """Asks with a client that may create TokenReviews. Tokens are kept as their SHA-256, and never logged."""

    def __init__(self, client: KubeClient, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._known = Remembered[str, Identity | None](_MOST, monotonic)
        self._refused = Remembered[str, bool](_MOST, monotonic)
        self._well_known = Remembered[str, bool](_MOST, monotonic)
        """Tokens that were somebody's: asking again about them is no guess."""
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._by_address = RateLimit(per_s=0.2, burst=10, monotonic=monotonic)
        self._by_all = RateLimit(per_s=5.0, burst=50, monotonic=monotonic)

    async def identity(self, token: str, address: str) -> Identity | None:
        """Whose it is; None: nobody's. `address` is the visitor's.

        Raises TooManyError before anybody is asked, and TidegateError when the API server does not answer.
        """
        if not token or len(token) > _LONGEST or not token.isascii() or not token.isprintable():
            return None
        hashed = sha256(token.encode()).hexdigest()
        # A page asks several things at once: one of them asks the API server, the others have its answer.
        async with self._asking.setdefault(hashed, asyncio.Lock()):
            found = self._known.get(hashed)
            if found is not None or self._refused.get(hashed):
                return found
            if not self._well_known.get(hashed):
                self._bound(address)
            return await self._reviewed(token, hashed, address)

    def _bound(self, address: str) -> None:
        wait_s = max(self._by_address.wait_s(address), self._by_all.wait_s(""))
        if wait_s:
            raise TooManyError(wait_s)

    async def _reviewed(self, token: str, hashed: str, address: str) -> Identity | None:
        found = await self._review(token)
        if found is None:
            # Only guesses count: many who have tokens may share an address, behind a proxy or a port forward.
            self._by_address.take(address)
            self._by_all.take("")
            self._refused.put(hashed, value=True, seconds=_REFUSED_S)
        else:
            self._known.put(hashed, found, _KNOWN_S)
            self._well_known.put(hashed, value=True, seconds=_WELL_KNOWN_S)
        return found

    async def _review(self, token: str) -> Identity | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token},
        }
        answer = await self._client.review(_PATH, body)
        status: dict[str, Any] = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        user: dict[str, Any] = status.get("user") or {}
        return Identity(user.get("username", ""), tuple(user.get("groups") or ()), token)
