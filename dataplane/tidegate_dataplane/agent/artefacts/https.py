"""https: source: allow-listed hosts only, every redirect and every resolved address checked."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from tidegate_dataplane.agent.artefacts.addresses import refused_address
from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, Download
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

MAX_REDIRECTS = 5
CONNECT_TIMEOUT_S = 10.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})
ABSENT = frozenset({404, 410})


class HttpsSource:
    """Reads `<uri>/<path>`; there is no listing, so an artefact is its model file and what that names."""

    def __init__(
        self,
        uri: ArtefactUri,
        *,
        allowed_hosts: Sequence[str],
        allow_loopback: bool = False,
        ca_file: Path | None = None,
        stall_timeout_s: float = 30.0,
    ) -> None:
        self._uri = uri
        self._allowed = tuple(allowed_hosts)
        self._allow_loopback = allow_loopback
        self._ca_file = ca_file
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=min(CONNECT_TIMEOUT_S, stall_timeout_s), sock_read=stall_timeout_s
        )

    @asynccontextmanager
    async def open(self, path: str) -> AsyncGenerator[Download, None]:
        """Start reading one file."""
        url = f"{self._uri.text.rstrip('/')}/{quote(path)}"
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(allow_loopback=self._allow_loopback), ssl=self._tls(), limit=1
        )
        async with aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, trust_env=False
        ) as session:
            try:
                async with await self._follow(session, url) as response:
                    yield Download(response.content_length, self._chunks(response, url))
            except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
                raise _may_pass(url, error) from error

    async def list(self, folder: str) -> None:
        """Return None: https: has no listing."""
        del folder

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca_file is not None:
            context.load_verify_locations(self._ca_file)
        return context

    async def _follow(self, session: aiohttp.ClientSession, url: str) -> aiohttp.ClientResponse:
        """Return the first answer that is not a redirect; the caller closes it."""
        for _ in range(MAX_REDIRECTS + 1):
            self._check(url)
            response = await session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"})
            if response.status not in REDIRECTS:
                return _succeeded(response, url)
            location = response.headers.get("Location", "")
            response.close()
            url = urljoin(url, location)
        raise ArtefactError(
            FailureReason.FETCH_FAILED, f"{self._uri} redirects more than {MAX_REDIRECTS} times"
        )

    def _check(self, url: str) -> None:
        """Refuse a URL that is not on the list, wherever it came from."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme != "https":
            raise self._refused(url, "it is not https")
        try:
            authority = f"{host}:{parts.port}" if parts.port not in (None, 443) else host
        except ValueError as error:
            raise self._refused(url, "its port is not a number") from error
        if not any(_host_matches(authority, pattern.lower()) for pattern in self._allowed):
            listed = ", ".join(self._allowed) or "no host"
            raise self._refused(url, f"host {authority!r} is not on the list of allowed hosts ({listed})")
        # An address in the URL never reaches the resolver.
        if _is_address(host):
            refused = refused_address(host, allow_loopback=self._allow_loopback)
            if refused:
                raise self._refused(url, f"{host} is {refused}")

    def _refused(self, url: str, why: str) -> ArtefactError:
        source = "" if url.startswith(self._uri.text.rstrip("/")) else f" (redirected from {self._uri})"
        return ArtefactError(
            FailureReason.URI_NOT_ALLOWED, f"{_without_query(url)}{source} is not allowed: {why}"
        )

    async def _chunks(self, response: aiohttp.ClientResponse, url: str) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            received += len(chunk)
            yield chunk
        if response.content_length is not None and received < response.content_length:
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"{_without_query(url)} ended after {received} of {response.content_length} bytes",
            )


class _CheckedResolver(AbstractResolver):
    """Resolves names and drops what must not be connected to, at every connection: a name may change its mind."""

    def __init__(self, *, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`; all of them must be allowed."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        results: list[ResolveResult] = []
        for found_family, _, protocol, _, address in found:
            refused = refused_address(str(address[0]), allow_loopback=self._allow_loopback)
            if refused:
                raise ArtefactError(
                    FailureReason.URI_NOT_ALLOWED,
                    f"host {host!r} resolves to {address[0]}, {refused}: not fetched",
                )
            results.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=found_family,
                    proto=protocol,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        return results

    async def close(self) -> None:
        """Nothing is held."""


def _host_matches(authority: str, pattern: str) -> bool:
    """Return whether the host (with its port, if not 443) is meant: exactly, or any below `*.`."""
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


def _succeeded(response: aiohttp.ClientResponse, url: str) -> aiohttp.ClientResponse:
    if response.status == 200:
        return response
    status = response.status
    response.close()
    shown = _without_query(url)
    if status in ABSENT:
        raise ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, f"{shown} answered {status}: it is not there")
    hint = ": it wants credentials, which https: does not carry" if status in (401, 403) else ""
    raise ArtefactError(FailureReason.FETCH_FAILED, f"{shown} answered {status}{hint}")


def _may_pass(url: str, error: BaseException) -> ArtefactError:
    said = str(error) or type(error).__name__
    return ArtefactError(FailureReason.FETCH_FAILED, f"{_without_query(url)} cannot be fetched: {said}")


def _without_query(url: str) -> str:
    """Return the URL without what may be a signature."""
    return url.split("?")[0]
