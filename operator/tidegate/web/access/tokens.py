"""Find the user of a token by the API server's TokenReview, with a cache and a rate limit.

An address may send ten invalid tokens, and then one in five seconds; a review counts from its start until it succeeds.
The number of concurrent reviews is bounded for all addresses together, which take turns, so that no address is rejected
because of the guesses of others. Addresses that recently sent a valid token do not wait for the others.
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
from tidegate.web.access.expiring_cache import ExpiringCache
from tidegate.web.access.fair_semaphore import FairSemaphore
from tidegate.web.access.identity import Identity
from tidegate.web.access.rate_limit import TokenBuckets

_PATH: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_VALID_S: Final = 60.0
_INVALID_S: Final = 5.0
_TRUSTED_S: Final = 8 * 3600.0
_MAX_ENTRIES: Final = 1_024
_BURST: Final = 10
_MAX_WAITING: Final = 256
"""Reviews of one address that may wait for the results of its other reviews."""
_MAX_REVIEWS: Final = 16
"""Concurrent reviews, of trusted and of untrusted addresses each."""
_MAX_TOKEN_BYTES: Final = 16_384
"""No valid token is longer."""


class TooManyTokensError(PermanentError):
    """Too many invalid tokens; the next try is possible after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = ceil(seconds)
        super().__init__(f"too many invalid tokens: wait {self.seconds} s")


@dataclass(slots=True)
class _Guess:
    """A running review of an unknown token; `failed` if the token is invalid."""

    failed: bool = False


@dataclass(slots=True)
class _Pending:
    """The running reviews of one address, and those that wait for one of them to end."""

    reviews: int = 0
    waiting: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TokenReviewer:
    """Reviews of tokens by a client that may create TokenReviews; tokens are cached as SHA-256, and never logged."""

    def __init__(self, client: KubeClient, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._identities = ExpiringCache[str, Identity | None](_MAX_ENTRIES, monotonic)
        self._invalid_tokens = ExpiringCache[str, bool](_MAX_ENTRIES, monotonic)
        self._trusted_tokens = ExpiringCache[str, bool](_MAX_ENTRIES, monotonic)
        """Tokens that were valid: another review of one is not a guess."""
        self._review_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._guesses = TokenBuckets(per_s=0.2, burst=_BURST, monotonic=monotonic)
        self._pending: dict[str, _Pending] = {}
        self._trusted_networks = ExpiringCache[str, bool](_MAX_ENTRIES, monotonic)
        """Networks that sent a valid token."""
        self._untrusted_turns, self._trusted_turns = FairSemaphore(_MAX_REVIEWS), FairSemaphore(_MAX_REVIEWS)

    async def find_identity(self, token: str, address: str) -> Identity | None:
        """Return the user of a token; None if it is invalid. `address` is the client's.

        Raises TooManyTokensError without a review, and TidegateError if the API server does not respond.
        """
        if not token or len(token) > _MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable():
            return None
        hashed = sha256(token.encode()).hexdigest()
        # A page sends several requests at once: one of them reviews the token, the others use the result.
        async with self._review_locks.setdefault(hashed, asyncio.Lock()):
            cached = self._identities.get(hashed)
            if cached is not None or self._invalid_tokens.get(hashed):
                return cached
            network = _address_network(address)
            if self._trusted_tokens.get(hashed):
                async with self._trusted_turns.hold_slot(network):
                    return await self._review_and_cache(token, hashed, network)
            async with self._reserve_guess(network) as guess:
                identity = await self._review_and_cache(token, hashed, network)
                guess.failed = identity is None
                return identity

    @asynccontextmanager
    async def _reserve_guess(self, network: str) -> AsyncGenerator[_Guess]:
        """Count a guess of `network` in advance, and undo it unless the guess fails. Raises TooManyTokensError.

        Many users may share an address behind a proxy or a port forward: their reviews wait for the results of earlier
        ones, and are rejected if those fail.
        """
        pending = self._pending.setdefault(network, _Pending())
        try:
            await self._wait_for_guess(network, pending)
            guess = _Guess()
            pending.reviews += 1
            self._guesses.take(network)
            try:
                turns = self._trusted_turns if self._trusted_networks.get(network) else self._untrusted_turns
                async with turns.hold_slot(network):
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
            if not pending.reviews or pending.waiting >= _MAX_WAITING:
                raise TooManyTokensError(wait_s)
            pending.waiting += 1
            try:
                await pending.ended.wait()
            finally:
                pending.waiting -= 1

    async def _review_and_cache(self, token: str, hashed: str, network: str) -> Identity | None:
        identity = await self._review_token(token)
        if identity is None:
            self._invalid_tokens.put(hashed, value=True, seconds=_INVALID_S)
        else:
            self._identities.put(hashed, identity, _VALID_S)
            self._trusted_tokens.put(hashed, value=True, seconds=_TRUSTED_S)
            self._trusted_networks.put(network, value=True, seconds=_TRUSTED_S)
        return identity

    async def _review_token(self, token: str) -> Identity | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token},
        }
        answer = await self._client.post_review(_PATH, body)
        status: dict[str, Any] = answer.get("status") or {}
        if not status.get("authenticated"):
            return None
        user: dict[str, Any] = status.get("user") or {}
        return Identity(user.get("username", ""), tuple(user.get("groups") or ()), token)


def _address_network(address: str) -> str:
    """Return the network that counts as one address: a /64 of IPv6, because a client can choose the other bits."""
    try:
        network = ip_network((address.partition("%")[0], 64 if ":" in address else 32), strict=False)
    except ValueError:
        return address
    mapped = IPv6Address(address.partition("%")[0]).ipv4_mapped if ":" in address else None
    return str(mapped or network)
