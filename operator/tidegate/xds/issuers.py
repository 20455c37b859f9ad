"""Fetches the public keys of token issuers from their addresses, and keeps the last good ones."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from tidegate.routing.credentials import MAX_JWKS_BYTES, Fetched, NotFetched, host_of, public_keys

_AT_ONCE: Final = 8
_JITTER: Final = 0.1
"""Share of a pause by which it varies, so that replicas and addresses do not ask together."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """Whom to ask, and when. `hosts` are host or host:port; times are in seconds.

    `authorities` is a PEM file of those that vouch for the hosts; None: those of the system.
    """

    hosts: Collection[str] = ()
    authorities: Path | None = None
    interval_s: float = 60.0
    timeout_s: float = 5.0
    first_retry_s: float = 1.0


class IssuerMetrics:
    """How the asking goes; `registry` decides where it is shown."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.fetches = Counter(
            "tidegate_xds_issuer_fetches",
            "Questions to issuers' addresses for their keys, by what came of it.",
            ["result"],
            registry=registry,
        )
        self.failing = Gauge(
            "tidegate_xds_issuer_addresses_failing",
            "Issuers' addresses that gave no usable keys when they were last asked; those seen before go on to count.",
            registry=registry,
        )
        for result in ("keys", "failure"):
            self.fetches.labels(result)


class Issuers:
    """Asks each address that is wanted, again and again, for as long as it is wanted.

    Only hosts of the settings are asked, by https with a certificate that is checked; redirects are not followed, no
    cookie is kept, no more than MAX_JWKS_BYTES are read, and nothing of an answer but public keys gets any further.
    """

    def __init__(
        self,
        settings: IssuerSettings,
        metrics: IssuerMetrics,
        *,
        randomness: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._hosts = frozenset(settings.hosts)
        self._random = randomness or random.Random()  # noqa: S311  pauses, not secrets
        self._wanted: frozenset[str] = frozenset()
        self._fetched: dict[str, Fetched] = {}
        self._failing: set[str] = set()
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._listeners: list[Callable[[str], None]] = []

    @property
    def fetched(self) -> Mapping[str, Fetched]:
        """What is known of each address that is wanted and has been asked."""
        return self._fetched

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Calls `changed` with an address when what is known of it is another thing than before."""
        self._listeners.append(changed)

    def want(self, addresses: Collection[str]) -> None:
        """From now on these are asked, and no others; hosts that are not listed never are."""
        wanted = frozenset(address for address in addresses if host_of(address) in self._hosts)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def settled(self) -> None:
        """Returns when each wanted address has been asked once; that takes the timeout of a question at most for each eight of them."""
        while not self._fetched.keys() >= self._wanted:
            self._arrived.clear()
            await self._arrived.wait()

    async def run(self) -> None:
        """Asks until it is cancelled."""
        following: dict[str, asyncio.Task[None]] = {}
        context = ssl.create_default_context(cafile=self._settings.authorities)
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                connector=aiohttp.TCPConnector(ssl=context, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                self._changed.clear()
                for address in following.keys() - self._wanted:
                    following.pop(address).cancel()
                    self._forget(address)
                for address in self._wanted - following.keys():
                    following[address] = tasks.create_task(self._follow(session, address))
                await self._changed.wait()

    async def _follow(self, session: aiohttp.ClientSession, address: str) -> None:
        pause_s = self._settings.first_retry_s
        while True:
            async with self._slots:
                found = await self._ask(session, address)
            self._take(address, found)
            if isinstance(found, str):
                pause_s = self._settings.first_retry_s
                await self._sleep(self._settings.interval_s)
            else:
                await self._sleep(pause_s)
                pause_s = min(2 * pause_s, self._settings.interval_s)

    async def _sleep(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s * self._random.uniform(1 - _JITTER, 1 + _JITTER))

    def _take(self, address: str, found: Fetched) -> None:
        good = isinstance(found, str)
        self._metrics.fetches.labels("keys" if good else "failure").inc()
        (self._failing.discard if good else self._failing.add)(address)
        self._metrics.failing.set(len(self._failing))
        before = self._fetched.get(address)
        if not isinstance(found, str):
            _log.warning("issuer_gave_no_keys", address=address, why=found.why, keeps=isinstance(before, str))
            if isinstance(before, str):
                return  # An issuer that is away, or broken, has not taken its keys back.
        elif before != found:
            _log.info("issuer_keys_changed", address=address)
        self._fetched[address] = found
        self._arrived.set()
        if before != found:
            self._tell(address)

    def _forget(self, address: str) -> None:
        self._failing.discard(address)
        self._metrics.failing.set(len(self._failing))
        if self._fetched.pop(address, None) is not None:
            self._tell(address)

    def _tell(self, address: str) -> None:
        for changed in self._listeners:
            changed(address)

    async def _ask(self, session: aiohttp.ClientSession, address: str) -> Fetched:
        try:
            async with session.get(
                address, allow_redirects=False, headers={"Accept": "application/json"}
            ) as answer:
                if answer.status != 200:
                    return NotFetched(
                        f"it answers HTTP {answer.status}{_WAYS_OUT.get(answer.status // 100, '')}"
                    )
                body = await _at_most(answer, MAX_JWKS_BYTES)
        except TimeoutError:
            return NotFetched(f"it did not answer in {self._settings.timeout_s:g} s")
        except aiohttp.ClientConnectorCertificateError as error:
            return NotFetched(f"its certificate is refused: {_verdict(error)}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return NotFetched(f"it cannot be reached: {type(error).__name__}")
        return public_keys(body, "what it answers")


_WAYS_OUT: Final = {3: ", a redirect, which is not followed: name the address that it leads to"}


def _verdict(error: aiohttp.ClientConnectorCertificateError) -> str:
    why = error.certificate_error
    return why.verify_message if isinstance(why, ssl.SSLCertVerificationError) else "it is not valid"


async def _at_most(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, cut at one byte more than `limit`, which is then too long for whoever reads it."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > limit:
            return bytes(body[: limit + 1])
    return bytes(body)
