"""One HTTP request to the API server: addressed, authenticated, timed, and its failure told in our own errors."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import urlencode

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from multidict import CIMultiDict

from tidegate.errors import (
    ApiUnavailableError,
    ConflictError,
    NotAllowedError,
    PermanentError,
    RetryableError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.kube.port import Manifest

APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"

_OK: Final = range(200, 300)
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
# 401: the token has just been rotated, or the API server cannot check it right now. 408 and 429 say so themselves.
_TRY_AGAIN: Final = frozenset({401, 408, 429, *range(500, 600)})
_MOST_WORDS: Final = 1 << 16
_NETWORK_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)
_LONGEST_RETRY_AFTER: Final = timedelta(minutes=5)

# kubernetes.aio publishes no types: hence each `type: ignore[no-untyped-call]` below.


class ExpiredError(RetryableError):
    """The resourceVersion asked for is too old (410 Gone): list again."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask, and how long to wait for the whole answer."""

    method: str
    path: str
    within: timedelta
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Manifest | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Impersonated:
    """Somebody in whose name things are asked, as the API server's impersonation takes them."""

    user: str
    groups: tuple[str, ...] = ()


class Transport:
    """Connections to one API server, kept open and shared."""

    def __init__(
        self, api: ApiClient, *, user_agent: str, acting_for: Impersonated | None = None, token: str = ""
    ) -> None:
        self._api = api
        self._user_agent = user_agent
        self._acting_for = acting_for
        self._token = token

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | None,
        *,
        context: str | None = None,
        user_agent: str,
        acting_for: str = "",
        anonymous: bool = False,
    ) -> Self:
        """To the cluster of `kubeconfig` (its current context, unless another is named), or without one to the pod's own, as its ServiceAccount.

        `acting_for` is a user in whose name everything is asked, for those who may impersonate. `anonymous` leaves the
        credentials out: such connections are for the tokens of others (`bearing`).
        The ServiceAccount's token is read again each minute, since the kubelet rotates it.
        Raises PermanentError when there are no such credentials.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = 0  # no limit: the work queue already bounds what is in flight
        # Else each request looks for a proxy and a ~/.netrc in a thread: slower, and whose credentials would win?
        # What a proxy before the API server gives one visitor is not sent along for another.
        configuration.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=str(kubeconfig), context=context, client_configuration=configuration
                )
        except (ConfigException, OSError, yaml.YAMLError) as exc:
            place = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's ServiceAccount"
            message = f"cannot read the cluster's address and credentials from {place}: {exc}"
            raise PermanentError(message) from exc
        if anonymous:
            _forget_credentials(configuration)
        someone = Impersonated(acting_for) if acting_for else None
        return cls(ApiClient(configuration), user_agent=user_agent, acting_for=someone)

    def bearing(self, token: str) -> Transport:
        """The same connections with somebody's own token. Where they have a client certificate, that would count instead."""
        return Transport(self._api, user_agent=self._user_agent, token=token)

    def impersonating(self, someone: Impersonated) -> Transport:
        """The same connections and credentials in somebody else's name."""
        return Transport(self._api, user_agent=self._user_agent, acting_for=someone)

    async def close(self) -> None:
        """Closes every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def call(self, request: Request) -> dict[str, Any] | None:
        """The decoded answer, or None for 404. Raises what port.Cluster promises."""
        try:
            limit = aiohttp.ClientTimeout(total=request.within.total_seconds())
            async with await self._send(request, limit) as response:
                content = await response.read()
        except _NETWORK_ERRORS as exc:
            raise _unavailable(exc, request) from exc
        if response.status == _NOT_FOUND:
            return None
        if response.status not in _OK:
            raise _translated(response, content, request)
        return _decoded(response, content, request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[aiohttp.StreamReader]:
        """The answer's bytes as they come. `within` bounds the opening; the reader bounds the silence afterwards.

        Raises like `call`, and ExpiredError for 410; inside the block too, when the connection breaks.
        """
        try:
            async with asyncio.timeout(request.within.total_seconds()):
                response = await self._send(request, aiohttp.ClientTimeout(total=None))
            try:
                if response.status not in _OK:
                    raise _translated(response, await response.read(), request)
                yield response.content
            finally:
                response.close()
        except _NETWORK_ERRORS as exc:
            raise _unavailable(exc, request) from exc

    async def end_of(self, request: Request, most_bytes: int) -> tuple[bytes, int] | None:
        """The last bytes of an answer that is no JSON, such as a log, and how many came before them; None for 404.

        Raises like `call`.
        """
        try:
            limit = aiohttp.ClientTimeout(total=request.within.total_seconds())
            async with self._session().get(
                self._url(request), headers=await self._headers(request, "*/*"), timeout=limit
            ) as response:
                if response.status == _NOT_FOUND:
                    return None
                if response.status not in _OK:
                    raise _translated(response, await response.content.read(_MOST_WORDS), request)
                return await _last(response.content, most_bytes)
        except _NETWORK_ERRORS as exc:
            raise _unavailable(exc, request) from exc

    @asynccontextmanager
    async def websocket(
        self, request: Request, protocol: str
    ) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket to `request.path`, which lasts `within` at most. Raises like `call`; PermanentError also for 404."""
        try:
            async with (
                asyncio.timeout(request.within.total_seconds()),
                self._session().ws_connect(
                    self._url(request),
                    protocols=(protocol,),
                    headers=await self._headers(request, "*/*"),
                    # The API server does not answer a farewell, for which 10 s would be waited.
                    timeout=aiohttp.ClientWSTimeout(ws_close=0.2),  # pyright: ignore[reportCallIssue]  made by attrs
                ) as socket,
            ):
                yield socket
        except aiohttp.WSServerHandshakeError as exc:
            # The handshake keeps nothing of what the server says beside the status.
            message = f"{request}: {exc.status}, which is not what a WebSocket begins with"
            if exc.status == HTTPStatus.FORBIDDEN:
                message = f"{request}: 403 Forbidden: the verbs get and create are needed for this resource"
            error = ApiUnavailableError if exc.status in _TRY_AGAIN else PermanentError
            raise error(message) from exc
        except _NETWORK_ERRORS as exc:
            raise _unavailable(exc, request) from exc

    async def _send(self, request: Request, limit: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        about = await self._headers(request, "application/json")
        about["Content-Type"] = request.content_type
        answer = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
            request.method, self._url(request), headers=about, body=request.body, _request_timeout=limit
        )
        response: aiohttp.ClientResponse = answer.response
        return response

    def _url(self, request: Request) -> str:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return f"{self._api.configuration.host}{request.path}{query}"

    async def _headers(self, request: Request, accept: str) -> CIMultiDict[str]:
        """Who asks, by what right, and for what; for the answers of pods the API server takes nothing but */* (406)."""
        headers = CIMultiDict({"Accept": accept, "User-Agent": self._user_agent})
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
            return headers
        if self._acting_for is not None:
            headers["Impersonate-User"] = self._acting_for.user
            for group in self._acting_for.groups:
                headers.add("Impersonate-Group", group)
        await self._api.update_params_for_auth(
            headers, [], ["BearerToken"], request.path, request.method, None
        )
        return headers

    def _session(self) -> aiohttp.ClientSession:
        """The connections of the API client, which makes them at its first request."""
        rest = self._api.rest_client
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no other door; its own WebSockets do the same
        session: aiohttp.ClientSession = rest.pool_manager
        return session


def _forget_credentials(configuration: Configuration) -> None:
    """Leaves its address, and whom it trusts."""
    configuration.api_key = {}
    configuration.api_key_prefix = {}
    configuration.refresh_api_key_hook = None
    configuration.username = configuration.password = None
    configuration.cert_file = configuration.key_file = None


async def _last(stream: aiohttp.StreamReader, most_bytes: int) -> tuple[bytes, int]:
    """So many bytes at the end of a stream, and how many came before them."""
    found, before = bytearray(), 0
    async for part in stream.iter_any():
        found += part
        if len(found) > 2 * most_bytes:
            before += len(found) - most_bytes
            del found[: len(found) - most_bytes]
    over = max(len(found) - most_bytes, 0)
    return bytes(found[over:]), before + over


def _decoded(response: aiohttp.ClientResponse, content: bytes, request: Request) -> dict[str, Any]:
    """The object that an answer holds. What is none is not the API server's: a page of a proxy, or one that was cut off.

    Raises ApiUnavailableError without a word of the answer, which may hold a Secret.
    """
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        kind = response.content_type
        message = f"{request}: {response.status} with {len(content)} bytes of {kind} that are no JSON object"
        raise ApiUnavailableError(message)
    return cast("dict[str, Any]", decoded)


def _unavailable(error: BaseException, request: Request) -> ApiUnavailableError:
    why = str(error) or type(error).__name__
    return ApiUnavailableError(f"{request}: the API server did not answer: {why}")


def _translated(response: aiohttp.ClientResponse, content: bytes, request: Request) -> TidegateError:
    """The one place where an HTTP status becomes one of our errors."""
    message = f"{request}: {response.status} {_server_message(content)}"
    if response.status == _CONFLICT:
        return ConflictError(message)
    if response.status == _GONE:
        return ExpiredError(message)
    if response.status == HTTPStatus.UNAUTHORIZED:
        return UnauthorizedError(message)
    if response.status == HTTPStatus.FORBIDDEN:
        return NotAllowedError(message)
    if response.status in _TRY_AGAIN:
        return ApiUnavailableError(message, retry_after=_retry_after(response))
    return PermanentError(message)


def _server_message(content: bytes) -> str:
    """The `message` of a Status object, or the beginning of whatever came instead."""
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        return content[:500].decode(errors="replace")
    return str(status.get("message", "")) if isinstance(status, Mapping) else str(status)[:500]


def _retry_after(response: aiohttp.ClientResponse) -> timedelta | None:
    value = response.headers.get("Retry-After", "")
    return min(timedelta(seconds=int(value[:6])), _LONGEST_RETRY_AFTER) if value.isdecimal() else None
