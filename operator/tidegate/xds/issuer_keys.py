"""Fetching of token issuers' public keys; the last valid ones stay in use."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from prometheus_client import CollectorRegistry

from tidegate.routing.credentials import (
    MAX_JWKS_BYTES,
    KeyFetchFailed,
    KeyFetchResult,
    KeyFetchSkipped,
    host_from_address,
    parse_public_keys,
)
from tidegate_dataplane.contract.answers import AnswerError, make_bounded_session, read_body
from tidegate_dataplane.contract.metrics import MetricCatalog

_JITTER: Final = 0.1
"""The random part of each pause, so that replicas and addresses do not fetch at the same time."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IssuerSettings:
    """The hosts of issuers, and limits. `hosts` are host or host:port; times are in seconds.

    `authorities` is a PEM file of the certificate authorities of the hosts; None: those of the system.
    `per_namespace`: the most addresses of one namespace's accesses, so that it cannot starve the others.
    `per_host`: the most concurrent requests to one host; twice as many as one namespace can have.
    `patience_s`: how long the routing waits for the first answer of an address.
    `grace_s`: how long keys of an address that no access names stay, in case one does again; more than `patience_s`, since
    the keys of an access's old address count until its new one has answered.
    """

    hosts: Collection[str] = ()
    authorities: Path | None = None
    interval_s: float = 60.0
    timeout_s: float = 5.0
    first_retry_s: float = 1.0
    per_namespace: int = 8
    per_host: int = 16
    patience_s: float = 6.0
    grace_s: float = 60.0


ISSUERS: Final = MetricCatalog("tidegate_xds_issuer_")
_FETCHES = ISSUERS.add_counter(
    "fetches_total",
    "Fetches of keys from issuers' addresses (jwksUri), by result: keys or failure.",
    "result",
)
_FAILING = ISSUERS.add_gauge(
    "addresses_failing",
    "Addresses that returned no usable keys at the last fetch; keys fetched earlier stay valid until the next restart.",
)


class _AuthorityFile:
    """The certificates in a PEM file; without a file those of the system."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._loaded: bytes | None = None
        self._context: ssl.SSLContext | None = None

    def load_context(self) -> ssl.SSLContext | KeyFetchFailed:
        """Return a TLS context with the newest content of the file, never with an older one."""
        try:
            content = b"" if self._file is None else self._file.read_bytes()
            if self._context is None or content != self._loaded:
                # Reset first: a broken file must not leave the older certificates in use.
                self._context = None
                self._context = ssl.create_default_context(cafile=self._file)
                self._loaded = content
        except (OSError, ValueError) as error:
            _log.warning("authorities_unreadable", file=str(self._file), error=str(error))
            return KeyFetchFailed(
                "no certificate can be checked: the ConfigMap in the chart's auth.jwks.caConfigMap needs "
                f"certificates as PEM in ca.crt ({type(error).__name__})"
            )
        return self._context


class IssuerMetrics:
    """The metrics of fetching keys; `registry` exposes them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.fetches = _FETCHES.register(registry)
        self.failing = _FAILING.register(registry)
        for result in ("keys", "failure"):
            self.fetches.labels(result)


class IssuerKeyFetcher:
    """Fetches keys from each address that is wanted, periodically.

    Only hosts in the settings are fetched from, by https with a verified certificate. Redirects are not followed, cookies are
    not stored, at most MAX_JWKS_BYTES are read, and only public keys are taken from an answer.
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
        self._authorities = _AuthorityFile(settings.authorities)
        self._wanted: frozenset[str] = frozenset()
        self._left_out: Mapping[str, KeyFetchSkipped] = {}
        self._fetched: dict[str, KeyFetchResult] = {}
        self._failing: set[str] = set()
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._slots = {host: asyncio.Semaphore(settings.per_host) for host in self._hosts}
        self._listeners: list[Callable[[str], None]] = []

    @property
    def results(self) -> Mapping[str, KeyFetchResult]:
        """Result of each wanted address that has one, including those over the limit."""
        return self._fetched

    @property
    def pending_addresses(self) -> Collection[str]:
        """Wanted addresses without a result yet; none stays here for longer than `patience_s`."""
        return self._wanted - self._fetched.keys()

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with an address when its result changes."""
        self._listeners.append(changed)

    def set_addresses(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Fetch from these addresses and from no others.

        Of each namespace the first `per_namespace` count; hosts that are not in the settings never do.
        """
        addresses_to_fetch, left_out = self._select_addresses(addresses)
        if (addresses_to_fetch, left_out) == (self._wanted, self._left_out):
            return
        before, self._left_out = self._left_out, left_out
        self._wanted = addresses_to_fetch
        for address in before.keys() | left_out.keys():
            if not isinstance(self._fetched.get(address), str):
                self._store_result(address, left_out.get(address))
        self._changed.set()
        self._arrived.set()

    async def wait_for_results(self) -> None:
        """Wait until each wanted address has a result, for `patience_s` at most."""
        while self.pending_addresses:
            self._arrived.clear()
            await self._arrived.wait()

    async def run(self) -> None:
        """Fetch until cancelled."""
        following: dict[str, asyncio.Task[None]] = {}
        leaving: dict[str, asyncio.Task[None]] = {}
        async with (
            make_bounded_session(
                aiohttp.ClientTimeout(total=self._settings.timeout_s),
                aiohttp.TCPConnector(limit=0, force_close=True),
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                self._changed.clear()
                leaving = {address: task for address, task in leaving.items() if not task.done()}
                for address in following.keys() - self._wanted:
                    following.pop(address).cancel()
                    leaving[address] = tasks.create_task(self._forget_address(address))
                for address in self._wanted - following.keys():
                    if address in leaving:
                        leaving.pop(address).cancel()
                    following[address] = tasks.create_task(self._follow_address(session, address))
                await self._changed.wait()

    def _select_addresses(
        self, addresses: Mapping[str, Sequence[str]]
    ) -> tuple[frozenset[str], Mapping[str, KeyFetchSkipped]]:
        """Return the addresses to fetch from, and those that are over the limit of their namespace."""
        limit = self._settings.per_namespace
        addresses_to_fetch, left_out = set[str](), dict[str, KeyFetchSkipped]()
        for namespace, named in addresses.items():
            listed = [
                address for address in dict.fromkeys(named) if host_from_address(address) in self._hosts
            ]
            addresses_to_fetch.update(listed[:limit])
            reason = f"namespace {namespace} names {len(listed)} addresses of issuers, and at most {limit} of one are asked, those of its oldest accesses"
            left_out |= dict.fromkeys(listed[limit:], KeyFetchSkipped(reason))
        over_limit = {
            address: reason for address, reason in left_out.items() if address not in addresses_to_fetch
        }
        return frozenset(addresses_to_fetch), over_limit

    async def _follow_address(self, session: aiohttp.ClientSession, address: str) -> None:
        late = asyncio.get_running_loop().call_later(self._settings.patience_s, self._end_patience, address)
        try:
            await self._fetch_repeatedly(session, address)
        finally:
            late.cancel()

    async def _fetch_repeatedly(self, session: aiohttp.ClientSession, address: str) -> None:
        pause_s = self._settings.first_retry_s
        while True:
            async with self._slots[host_from_address(address)]:
                result = await self._fetch_keys(session, address)
            self._take_result(address, result)
            if isinstance(result, str):
                pause_s = self._settings.first_retry_s
                await self._sleep_jittered(self._settings.interval_s)
            else:
                await self._sleep_jittered(pause_s)
                pause_s = min(2 * pause_s, self._settings.interval_s)

    def _end_patience(self, address: str) -> None:
        if address not in self._fetched:
            reason = f"nothing came in {self._settings.patience_s:g} s: it is slow, or others at its host are"
            self._store_result(address, KeyFetchFailed(reason))

    async def _forget_address(self, address: str) -> None:
        """Forget an address that no access names any more; valid keys after a grace period."""
        self._failing.discard(address)
        self._metrics.failing.set(len(self._failing))
        if isinstance(self._fetched.get(address), str):
            await asyncio.sleep(self._settings.grace_s)
        self._store_result(address, self._left_out.get(address))

    async def _sleep_jittered(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s * self._random.uniform(1 - _JITTER, 1 + _JITTER))

    def _take_result(self, address: str, result: KeyFetchResult) -> None:
        has_keys = isinstance(result, str)
        self._metrics.fetches.labels("keys" if has_keys else "failure").inc()
        if has_keys:
            self._failing.discard(address)
        else:
            self._failing.add(address)
        self._metrics.failing.set(len(self._failing))
        before = self._fetched.get(address)
        if not isinstance(result, str):
            _log.warning(
                "issuer_gave_no_keys", address=address, why=result.reason, keeps=isinstance(before, str)
            )
            if isinstance(before, str):
                return  # An issuer that is unavailable has not revoked its keys.
        elif before != result:
            _log.info("issuer_keys_changed", address=address)
        self._store_result(address, result)

    def _store_result(self, address: str, result: KeyFetchResult | None) -> None:
        """Store the result of an address (None: none), and notify subscribers if it changed."""
        before = self._fetched.get(address)
        if result is None:
            self._fetched.pop(address, None)
        else:
            self._fetched[address] = result
            self._arrived.set()
        if before != result:
            for changed in self._listeners:
                changed(address)

    async def _fetch_keys(self, session: aiohttp.ClientSession, address: str) -> KeyFetchResult:
        context = self._authorities.load_context()
        if isinstance(context, KeyFetchFailed):
            return context
        try:
            async with session.get(
                address, allow_redirects=False, headers={"Accept": "application/json"}, ssl=context
            ) as answer:
                if answer.status != 200:
                    return KeyFetchFailed(
                        f"it answers HTTP {answer.status}{_WAYS_OUT.get(answer.status // 100, '')}"
                    )
                body = await read_body(answer, MAX_JWKS_BYTES)
        except TimeoutError:
            return KeyFetchFailed(f"it did not answer in {self._settings.timeout_s:g} s")
        except aiohttp.ClientConnectorCertificateError as error:
            return KeyFetchFailed(f"its certificate is refused: {_describe_certificate_error(error)}")
        except AnswerError as error:
            return KeyFetchFailed(str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return KeyFetchFailed(f"it cannot be reached: {type(error).__name__}")
        return parse_public_keys(body, "what it answers")


_WAYS_OUT: Final = {3: ", a redirect, which is not followed: name the address that it leads to"}


def _describe_certificate_error(error: aiohttp.ClientConnectorCertificateError) -> str:
    certificate_error = error.certificate_error
    return (
        certificate_error.verify_message
        if isinstance(certificate_error, ssl.SSLCertVerificationError)
        else "it is not valid"
    )
