"""Whose token it is, by the API server's TokenReview: remembered for a minute, and asked only so often.

An address may fail ten times, and then once in five seconds; a review counts from its beginning, and no longer once it has
succeeded. All addresses together have a bounded number of reviews under way, one address after the other, so that none is
refused for what others guess. Those that brought a good token lately do not wait for the others at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import IPv6Address, ip_network
from math import ceil
from typing import Any, Final
from weakref import WeakValueDictionary

from tidegate.errors import PermanentError
from tidegate.kube.client import KubeClient
from tidegate.web.access.identity import Identity
from tidegate.web.access.rate_limit import RateLimit
from tidegate.web.access.remembered import Remembered
from tidegate.web.access.turns import Turns

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_KNOWN_S: Final = 60.0
_REFUSED_S: Final = 5.0
_WELL_KNOWN_S: Final = 8 * 3600.0
_MOST: Final = 1_024
_BURST: Final = 10
_WAITING: Final = 256
"""Reviews of one address that may wait for how its others end."""
_AT_ONCE: Final = 16
"""Reviews under way together, of strangers and of others each."""
_LONGEST: Final = 16_384
"""Bytes: what is longer is no token of anybody."""


class TooManyError(PermanentError):
    """Too many tokens were tried; `seconds` until the next may be."""

    def __init__(self, seconds: float) -> None:
        self.seconds = ceil(seconds)
        super().__init__(f"too many tokens were tried: wait {self.seconds} s")


@dataclass(slots=True)
class _Guess:
    """A review of a token that is not known, while it lasts; `failed` once it is nobody's."""

    failed: bool = False


@dataclass(slots=True)
class _Pending:
    """The reviews of one address that have not ended, and those that wait for one of them to end."""

    reviews: int = 0
    waiting: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Tokens:
    """Asks with a client that may create TokenReviews. Tokens are kept as their SHA-256, and never logged."""

    def __init__(self, client: KubeClient, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._known = Remembered[str, Identity | None](_MOST, monotonic)
        self._refused = Remembered[str, bool](_MOST, monotonic)
        self._well_known = Remembered[str, bool](_MOST, monotonic)
        """Tokens that were somebody's: asking again about them is no guess."""
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._guesses = RateLimit(per_s=0.2, burst=_BURST, monotonic=monotonic)
        self._pending: dict[str, _Pending] = {}
        self._welcome = Remembered[str, bool](_MOST, monotonic)
        """Addresses that brought a token of somebody's."""
        self._strangers, self._others = Turns(_AT_ONCE), Turns(_AT_ONCE)

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
            network = _network(address)
            if self._well_known.get(hashed):
                async with self._others.turn(network):
                    return await self._reviewed(token, hashed, network)
            async with self._reserved(network) as guess:
                found = await self._reviewed(token, hashed, network)
                guess.failed = found is None
                return found

    @asynccontextmanager
    async def _reserved(self, network: str) -> AsyncGenerator[_Guess]:
        """Count a guess of `network` beforehand, and not in the end unless it failed. Raises TooManyError.

        Many who have tokens may share an address, behind a proxy or a port forward: they wait for how the guesses before them
        end, and are refused when those were wrong.
        """
        pending = self._pending.setdefault(network, _Pending())
        try:
            await self._wait_for_guess(network, pending)
            guess = _Guess()
            pending.reviews += 1
            self._guesses.take(network)
            try:
                turns = self._others if self._welcome.get(network) else self._strangers
                async with turns.turn(network):
                    yield guess
            finally:
                pending.reviews -= 1
                if not guess.failed:
                    self._guesses.give_back(network)
                pending.ended.set()
                pending.ended = asyncio.Event()
        finally:
            if not pending.reviews and not pending.waiting:
                self._pending.pop(network, None)

    async def _wait_for_guess(self, network: str, pending: _Pending) -> None:
        while wait_s := self._guesses.wait_s(network):
            if not pending.reviews or pending.waiting >= _WAITING:
                raise TooManyError(wait_s)
            pending.waiting += 1
            try:
                await pending.ended.wait()
            finally:
                pending.waiting -= 1

    async def _reviewed(self, token: str, hashed: str, network: str) -> Identity | None:
        found = await self._review(token)
        if found is None:
            self._refused.put(hashed, value=True, seconds=_REFUSED_S)
        else:
            self._known.put(hashed, found, _KNOWN_S)
            self._well_known.put(hashed, value=True, seconds=_WELL_KNOWN_S)
            self._welcome.put(network, value=True, seconds=_WELL_KNOWN_S)
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


def _network(address: str) -> str:
    """What counts as one address: of IPv6 the 64 bits that a site has, since the rest is anyone's to choose."""
    try:
        network = ip_network((address.partition("%")[0], 64 if ":" in address else 32), strict=False)
    except ValueError:
        return address
    mapped = IPv6Address(address.partition("%")[0]).ipv4_mapped if ":" in address else None
    return str(mapped or network)
