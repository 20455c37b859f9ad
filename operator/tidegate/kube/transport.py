"""Sends one HTTP request to the API server, and translates its failure into our own errors."""

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
    InvalidRequestError,
    NotAllowedError,
    PermanentError,
    RetryableError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.kube.kubeconfig import check_kubeconfig
from tidegate.kube.port import Manifest

APPLY_PATCH: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"

_OK: Final = range(200, 300)
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_GONE: Final = 410
# 401: the token was rotated, or the API server cannot check it at the moment. 408 and 429 mean it.
_RETRYABLE: Final = frozenset({401, 408, 429, *range(500, 600)})
_MAX_MESSAGE_BYTES: Final = 1 << 16
_NETWORK_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)
_MAX_RETRY_AFTER: Final = timedelta(minutes=5)

# kubernetes.aio publishes no types: hence each `type: ignore[no-untyped-call]` below.


class ExpiredError(RetryableError):
    """The requested resourceVersion is too old (410 Gone): list again."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request, and the timeout for the whole response."""

    method: str
    path: str
    timeout: timedelta
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Manifest | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class ImpersonatedUser:
    """A user and groups to impersonate, as the API server's impersonation headers take them."""

    user: str
    groups: tuple[str, ...] = ()


class ApiTransport:
    """Connections to one API server, kept open and shared."""

    def __init__(
        self,
        api: ApiClient,
        *,
        user_agent: str,
        impersonated: ImpersonatedUser | None = None,
        token: str = "",
    ) -> None:
        self._api = api
        self._user_agent = user_agent
        self._acting_for = impersonated
        self._token = token

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | None,
        *,
        context: str | None = None,
        user_agent: str,
        impersonated: ImpersonatedUser | None = None,
        anonymous: bool = False,
    ) -> Self:
        """Connect to the cluster of `kubeconfig`, or without one to the pod's own as its ServiceAccount.

        `context` is one of the kubeconfig's contexts, by default the current one. `impersonated` is a user to impersonate.
        `anonymous` leaves the credentials out: such connections are for the tokens of others (`with_token`).
        The ServiceAccount's token is read again each minute, since the kubelet rotates it.
        Raises PermanentError if there are no such credentials.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = 0  # no limit: the work queue already bounds what is in flight
        # Otherwise each request looks for a proxy and a ~/.netrc in a thread: slower, and with other credentials.
        # A cookie that a proxy before the API server sets for one user must not be sent for another.
        configuration.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        if kubeconfig is not None:
            check_kubeconfig(kubeconfig)
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=str(kubeconfig), context=context, client_configuration=configuration
                )
        except (ConfigException, OSError, yaml.YAMLError) as exc:
            message = (
                f"cannot read the cluster's address and credentials from kubeconfig {kubeconfig}: {exc}"
                if kubeconfig
                else "no kubeconfig: set $KUBECONFIG or --kubeconfig, or create ~/.kube/config; "
                f"and this is no pod with a ServiceAccount: {exc}"
            )
            raise PermanentError(message) from exc
        if anonymous:
            _forget_credentials(configuration)
        return cls(ApiClient(configuration), user_agent=user_agent, impersonated=impersonated)

    def with_token(self, token: str) -> ApiTransport:
        """Return the same connections with a user's token. A client certificate of theirs would take precedence."""
        return ApiTransport(self._api, user_agent=self._user_agent, token=token)

    def with_impersonation(self, user: ImpersonatedUser) -> ApiTransport:
        """Return the same connections and credentials, impersonating `user`."""
        return ApiTransport(self._api, user_agent=self._user_agent, impersonated=user)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def request_json(self, request: ApiRequest) -> dict[str, Any] | None:
        """Return the decoded response, or None for 404. Raises as port.ClusterApi says."""
        try:
            limit = aiohttp.ClientTimeout(total=request.timeout.total_seconds())
            async with await self._send_request(request, limit) as response:
                content = await response.read()
        except _NETWORK_ERRORS as exc:
            raise _unavailable_error(exc, request) from exc
        if response.status == _NOT_FOUND:
            return None
        if response.status not in _OK:
            raise _translate_error(response, content, request)
        return _decode_json(response, content, request)

    @asynccontextmanager
    async def open_stream(self, request: ApiRequest) -> AsyncGenerator[aiohttp.StreamReader]:
        """Yield the response's body as a stream. `timeout` limits the opening; the reader limits silence afterwards.

        Raises as `request_json`, and ExpiredError for 410; inside the block too, if the connection breaks.
        """
        try:
            async with asyncio.timeout(request.timeout.total_seconds()):
                response = await self._send_request(request, aiohttp.ClientTimeout(total=None))
            try:
                if response.status not in _OK:
                    raise _translate_error(response, await response.read(), request)
                yield response.content
            finally:
                response.close()
        except _NETWORK_ERRORS as exc:
            raise _unavailable_error(exc, request) from exc

    async def read_tail(self, request: ApiRequest, max_bytes: int) -> tuple[bytes, int] | None:
        """Return the last bytes of a response that is no JSON, such as a log, and how many came before; None for 404.

        Raises as `request_json`.
        """
        try:
            limit = aiohttp.ClientTimeout(total=request.timeout.total_seconds())
            async with self._get_session().get(
                self._build_url(request), headers=await self._build_headers(request, "*/*"), timeout=limit
            ) as response:
                if response.status == _NOT_FOUND:
                    return None
                if response.status not in _OK:
                    raise _translate_error(response, await response.content.read(_MAX_MESSAGE_BYTES), request)
                return await _read_tail(response.content, max_bytes)
        except _NETWORK_ERRORS as exc:
            raise _unavailable_error(exc, request) from exc

    @asynccontextmanager
    async def open_websocket(
        self, request: ApiRequest, protocol: str
    ) -> AsyncGenerator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket to `request.path` for `timeout` at most. Raises as `request_json`; PermanentError also for 404."""
        try:
            async with (
                asyncio.timeout(request.timeout.total_seconds()),
                self._get_session().ws_connect(
                    self._build_url(request),
                    protocols=(protocol,),
                    headers=await self._build_headers(request, "*/*"),
                    # The API server does not answer the closing handshake; the default would wait 10 s for it.
                    timeout=aiohttp.ClientWSTimeout(ws_close=0.2),  # pyright: ignore[reportCallIssue]  made by attrs
                ) as socket,
            ):
                yield socket
        except aiohttp.WSServerHandshakeError as exc:
            # The exception has the status only, not the server's message.
            message = f"{request}: HTTP {exc.status} instead of a WebSocket"
            if exc.status == HTTPStatus.FORBIDDEN:
                message = f"{request}: 403 Forbidden: the verbs get and create are needed for this resource"
            error = ApiUnavailableError if exc.status in _RETRYABLE else PermanentError
            raise error(message) from exc
        except _NETWORK_ERRORS as exc:
            raise _unavailable_error(exc, request) from exc

    async def _send_request(
        self, request: ApiRequest, limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        headers = await self._build_headers(request, "application/json")
        headers["Content-Type"] = request.content_type
        rest_response = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
            request.method,
            self._build_url(request),
            headers=headers,
            body=request.body,
            _request_timeout=limit,
        )
        response: aiohttp.ClientResponse = rest_response.response
        return response

    def _build_url(self, request: ApiRequest) -> str:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return f"{self._api.configuration.host}{request.path}{query}"

    async def _build_headers(self, request: ApiRequest, accept: str) -> CIMultiDict[str]:
        """Return the request's headers; for responses of pods, the API server accepts no other Accept than */* (406)."""
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

    def _get_session(self) -> aiohttp.ClientSession:
        """Return the session of the API client, which creates it at its first request."""
        rest = self._api.rest_client
        if rest.pool_manager is None:
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no other door; its own WebSockets do the same
        session: aiohttp.ClientSession = rest.pool_manager
        return session


def _forget_credentials(configuration: Configuration) -> None:
    """Keep only the server's address and the certificates that it is checked with."""
    configuration.api_key = {}
    configuration.api_key_prefix = {}
    configuration.refresh_api_key_hook = None
    configuration.username = configuration.password = None
    configuration.cert_file = configuration.key_file = None


async def _read_tail(stream: aiohttp.StreamReader, max_bytes: int) -> tuple[bytes, int]:
    """Return the last bytes of a stream, and how many came before them."""
    tail, dropped = bytearray(), 0
    async for chunk in stream.iter_any():
        tail += chunk
        if len(tail) > 2 * max_bytes:
            dropped += len(tail) - max_bytes
            del tail[: len(tail) - max_bytes]
    excess = max(len(tail) - max_bytes, 0)
    return bytes(tail[excess:]), dropped + excess


def _decode_json(response: aiohttp.ClientResponse, content: bytes, request: ApiRequest) -> dict[str, Any]:
    """Return the JSON object of a response.

    Raises ApiUnavailableError for anything else, such as a proxy's page or a truncated body. The message quotes none of
    it, since it may contain a Secret.
    """
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        kind = response.content_type
        message = (
            f"{request}: {response.status} with {len(content)} bytes of {kind}, which are no JSON object"
        )
        raise ApiUnavailableError(message)
    return cast("dict[str, Any]", decoded)


def _unavailable_error(error: BaseException, request: ApiRequest) -> ApiUnavailableError:
    reason = str(error) or type(error).__name__
    return ApiUnavailableError(f"{request}: the API server did not answer: {reason}")


def _translate_error(response: aiohttp.ClientResponse, content: bytes, request: ApiRequest) -> TidegateError:
    """Translate an HTTP status into one of our errors; this is the only place that does."""
    message = f"{request}: {response.status} {_server_message(content)}"
    if response.status == _CONFLICT:
        return ConflictError(message)
    if response.status == _GONE:
        return ExpiredError(message)
    if response.status == HTTPStatus.UNAUTHORIZED:
        return UnauthorizedError(message)
    if response.status == HTTPStatus.FORBIDDEN:
        return NotAllowedError(message)
    if response.status == HTTPStatus.BAD_REQUEST:
        return InvalidRequestError(message)
    if response.status in _RETRYABLE:
        return ApiUnavailableError(message, retry_after=_retry_after(response))
    return PermanentError(message)


def _server_message(content: bytes) -> str:
    """Return the `message` of a Status object, or the beginning of any other body."""
    try:
        status = json.loads(content)
    except (ValueError, RecursionError):
        return content[:500].decode(errors="replace")
    return str(status.get("message", "")) if isinstance(status, Mapping) else str(status)[:500]


def _retry_after(response: aiohttp.ClientResponse) -> timedelta | None:
    value = response.headers.get("Retry-After", "")
    return min(timedelta(seconds=int(value[:6])), _MAX_RETRY_AFTER) if value.isdecimal() else None
