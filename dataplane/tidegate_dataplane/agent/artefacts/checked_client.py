"""HTTPS client for artefacts: allow-listed hosts only, every redirect and every resolved address checked."""

import socket
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tidegate_dataplane.addresses import explain_refusal
from tidegate_dataplane.agent.artefacts.lookup import checked_addresses
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class HttpRules:
    """Allowed hosts, trusted certificate authorities, and the longest pause between bytes."""

    allowed_hosts: Sequence[str]
    allow_loopback: bool = False
    ca_file: Path | None = None
    stall_timeout_s: float = 30.0


class CheckedClient:
    """Sends GET requests for one artefact; every refusal names its URI."""

    def __init__(self, uri: str, rules: HttpRules) -> None:
        self._uri = uri.rstrip("/")
        self._rules = rules
        self._timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(CONNECT_TIMEOUT_S, rules.stall_timeout_s),
            sock_read=rules.stall_timeout_s,
        )

    @asynccontextmanager
    async def get(
        self, url: str, *, headers: Mapping[str, str] | None = None, authorization: str | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Return the first answer that is not a redirect, whatever its status.

        `authorization` goes to the host of `url` alone, never to one that it redirects to.
        """
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(allow_loopback=self._rules.allow_loopback),
            ssl=self._make_tls_context(),
            limit=1,
        )
        async with aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, trust_env=False
        ) as session:
            try:
                async with await self._follow_redirects(
                    session, url, headers or {}, authorization
                ) as response:
                    yield response
            except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
                detail = str(error) or type(error).__name__
                raise ArtefactError(
                    FailureReason.FETCH_FAILED, f"{strip_query(url)} cannot be fetched: {strip_query(detail)}"
                ) from error

    def _make_tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._rules.ca_file is not None:
            context.load_verify_locations(self._rules.ca_file)
        return context

    async def _follow_redirects(
        self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], authorization: str | None
    ) -> aiohttp.ClientResponse:
        origin = urlsplit(url).netloc
        for _ in range(MAX_REDIRECTS + 1):
            self._check_url(url)
            request_headers = {"Accept-Encoding": "identity", **headers}
            if authorization is not None and urlsplit(url).netloc == origin:
                request_headers["Authorization"] = authorization
            response = await session.get(url, allow_redirects=False, headers=request_headers)
            if response.status not in REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()
            url = join_location(url, location)
        raise ArtefactError(
            FailureReason.FETCH_FAILED, f"{self._uri} redirects more than {MAX_REDIRECTS} times"
        )

    def _check_url(self, url: str) -> None:
        """Raise if the URL, given or redirected to, is not on the list."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme != "https":
            raise self._url_not_allowed(url, "it is not https")
        try:
            authority = f"{host}:{parts.port}" if parts.port not in (None, 443) else host
        except ValueError as error:
            raise self._url_not_allowed(url, "its port is not a number") from error
        if not any(_host_matches(authority, pattern.lower()) for pattern in self._rules.allowed_hosts):
            listed = ", ".join(self._rules.allowed_hosts) or "no host"
            raise self._url_not_allowed(
                url, f"host {authority!r} is not on the list of allowed hosts ({listed})"
            )
        # An address in the URL never reaches the resolver.
        if _is_address(host):
            refused = explain_refusal(host, allow_loopback=self._rules.allow_loopback)
            if refused:
                raise self._url_not_allowed(url, f"{host} is {refused}")

    def _url_not_allowed(self, url: str, reason: str) -> ArtefactError:
        source = "" if url.startswith(self._uri) else f" (on the way to {self._uri})"
        return ArtefactError(
            FailureReason.URI_NOT_ALLOWED, f"{strip_query(url)}{source} is not allowed: {reason}"
        )


class _CheckedResolver(AbstractResolver):
    """Resolves names and checks the addresses at every connection, since a name may change its address."""

    def __init__(self, *, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`; all of them must be allowed."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=found_family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for found_family, protocol, address in await checked_addresses(
                host, port, family, allow_loopback=self._allow_loopback
            )
        ]

    async def close(self) -> None:
        """Nothing is held."""


def join_location(url: str, location: str) -> str:
    """Return the absolute URL of `location` relative to `url`.

    Raises:
        ArtefactError: FetchFailed if it is no URL.
    """
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise ArtefactError(
            FailureReason.FETCH_FAILED, f"{strip_query(url)} leads to {location[:100]!r}, which is no URL"
        ) from error


def strip_query(url: str) -> str:
    """Return the URL without its query, which may contain a signature."""
    return url.split("?")[0]


def _host_matches(authority: str, pattern: str) -> bool:
    """Return whether the pattern matches the host (with its port, if not 443): exactly, or any host below `*.`."""
    if pattern.startswith("*."):
        return authority.endswith(pattern[1:])
    return authority == pattern


def _is_address(host: str) -> bool:
    """Return whether a C library would take `host` for an address (127.1 and 0x7f000001 included)."""
    if ":" in host:
        return True
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True
