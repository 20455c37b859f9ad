"""A user's NATS server: address, credentials, and translation of its errors."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.lookup import checked_addresses
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.broker_tls import CA, CERTIFICATE, PRIVATE_KEY, broker_tls
from tidegate_dataplane.agent.refusals import ArtefactError

if TYPE_CHECKING:
    from nats.aio.client import Client

T = TypeVar("T")

SCHEMES = ("nats://", "tls://")
PORT = 4222
CONNECT_TIMEOUT_S = 3.0
CONNECT_WITHIN_S = 8.0
CLOSE_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 5.0
"""Limit for one response of JetStream."""
PING_EVERY_S = 5
"""A server that ends silently is detected after three missed pings."""
LARGER_THAN_STREAM_TAKES = 10054
"""JetStream's err_code for a message above the stream's max_msg_size."""
STREAM_FULL = 10077
"""JetStream's err_code for a stream that is full and discards new messages; it comes with the status of a server without JetStream."""
TOKEN, USERNAME, PASSWORD = "nats-token", "nats-username", "nats-password"
"""Key names that no other Secret has: otherwise an author of an Inference could send any Secret of the namespace to a host
of their own."""


class NatsServer:
    """One server with the credentials of one Secret; callers own the connections that it opens."""

    def __init__(
        self,
        url: str,
        secret: str,
        credentials: Callable[[], SecretCredentials],
        secret_dir: Path,
        *,
        allow_loopback: bool,
    ) -> None:
        """`secret` is the Secret's name, empty for none; `secret_dir` is where it is mounted."""
        self.url = url
        self._secret = secret
        self._credentials = credentials
        self._secret_dir = secret_dir
        self._allow_loopback = allow_loopback
        self.last_error = ""
        self.permission_error = ""

    def clear_errors(self) -> None:
        """Clear the asynchronous errors of the server."""
        self.last_error, self.permission_error = "", ""

    async def connect(self, name: str) -> "Client":
        """Resolve the host again and connect, with `name` as the name of the connection.

        Raises:
            BrokerError: with a message for the author of the URL or the Secret.
        """
        # Imported here: a pod that talks to no broker does not pay for it.
        from nats import errors
        from nats.aio.client import Client

        from tidegate_dataplane.agent.nats_messages import SenderMsg

        scheme, host, port = self._parse_address()
        credentials, client = self._credentials(), Client()
        client.msg_class = SenderMsg
        identity = self._connect_options(credentials, host)
        try:
            addresses = await checked_addresses(host, port, allow_loopback=self._allow_loopback)
            address = addresses[0][2]
            host_part = f"[{address}]" if ":" in address else address
            # To reconnect is ours, not the client's: it would go to any address that a server names.
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await client.connect(
                    f"{scheme}://{host_part}:{port}",
                    name=name,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # else it tries the first connection for ever
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_TIMEOUT_S),
                    ping_interval=PING_EVERY_S,
                    error_cb=self._record_error,
                    **identity,
                )
                return client
        except ArtefactError as error:  # before there was a connection
            raise self.refusal_error(error.refusal.message) from error
        except (errors.Error, OSError, TimeoutError, ValueError) as error:
            await close_client(client)
            detail = self.last_error or credentials.redact_secrets(str(error) or type(error).__name__)
            if "authorization" in detail.lower():
                raise self.refusal_error(self._explain_denial(credentials)) from error
            raise BrokerError(f"NATS at {self.url} cannot be reached: {detail}", refused=False) from error

    def refusal_error(self, reason: str) -> BrokerError:
        """Return the error for a server that is reachable and refuses."""
        return BrokerError(f"NATS at {self.url}: {reason}", refused=True)

    def missing_stream_error(self, stream: str, subject: str, field: str) -> BrokerError:
        """Return the error for a stream that does not exist, which `field` of the spec names."""
        return self.refusal_error(
            f"there is no stream {stream}; make it: nats stream add {stream} --subjects {subject}, or correct {field}"
        )

    def connection_error(self, reason: str) -> BrokerError:
        """Return the error for a failed connection: the last asynchronous error of the server, else `reason`."""
        if self.permission_error:
            return self.refusal_error(self.permission_error)
        return BrokerError(f"NATS at {self.url}: {self.last_error or reason}", refused=False)

    async def call_server(self, call: Awaitable[T]) -> T:
        """Await a call of the client with a timeout; errors of the JetStream API pass through untranslated."""
        from nats import errors
        from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

        try:
            async with asyncio.timeout(CALL_TIMEOUT_S + 1):
                return await call
        except ServiceUnavailableError as error:
            if error.err_code == STREAM_FULL:
                raise self.refusal_error(str(error.description)) from error
            raise self.connection_error("JetStream is not available there") from error
        except (APIError, NoStreamResponseError):
            raise
        except (errors.Error, OSError, TimeoutError) as error:
            raise self.connection_error(str(error) or type(error).__name__) from error

    def _parse_address(self) -> tuple[str, str, int]:
        try:
            parts = urlsplit(self.url)
            return parts.scheme, parts.hostname or "", parts.port or PORT
        except ValueError as error:
            raise self.refusal_error(f"the URL is invalid: {error}") from error

    def _connect_options(self, credentials: SecretCredentials, host: str) -> dict[str, Any]:
        values = credentials.values
        if self._secret and (missing := missing_keys(values)):
            raise self.refusal_error(f"Secret {self._secret} of the namespace {missing}")
        options: dict[str, Any] = {}
        if TOKEN in values:
            options["token"] = values[TOKEN]
        elif USERNAME in values:
            options |= {"user": values[USERNAME], "password": values[PASSWORD]}
        if self.url.startswith("tls://") or CA in values:
            options |= {"tls": self._make_tls_context(values), "tls_hostname": host}
        return options

    def _make_tls_context(self, values: Mapping[str, str]) -> ssl.SSLContext:
        try:
            return broker_tls(values, self._secret_dir, self._secret)
        except ValueError as error:
            raise self.refusal_error(str(error)) from error

    def _explain_denial(self, credentials: SecretCredentials) -> str:
        if credentials.values.keys() & {TOKEN, USERNAME, CERTIFICATE}:
            return credentials.explain_denial()
        name = self._secret
        wants = f"Secret {name} of the namespace has none" if name else "secretName names no Secret"
        return f"credentials are required, and {wants}: put {TOKEN}, or {USERNAME} and {PASSWORD}, into one"

    async def _record_error(self, error: Exception) -> None:
        """Record an asynchronous error: the cause of a failed connection, or a missing permission."""
        self.last_error = self._credentials().redact_secrets(str(error) or type(error).__name__)[:300]
        if "permissions violation" in self.last_error.lower():
            self.permission_error = self.last_error


async def close_client(client: "Client") -> None:
    """Close the client, and anything that a failed connection left open."""
    with contextlib.suppress(Exception):  # it is gone either way
        await asyncio.wait_for(client.close(), CLOSE_TIMEOUT_S)


def missing_keys(values: Mapping[str, str]) -> str:
    """Return what the Secret lacks for a connection, as the end of a sentence; empty if it lacks nothing."""
    for first, second in ((USERNAME, PASSWORD), (CERTIFICATE, PRIVATE_KEY)):
        for present, absent in ((first, second), (second, first)):
            if present in values and absent not in values:
                return f"has {present} and no {absent}"
    if not values.keys() & {TOKEN, USERNAME, CA, CERTIFICATE}:
        return f"does not exist, or has neither {TOKEN} nor {USERNAME} and {PASSWORD} (nor {CA} or {CERTIFICATE})"
    return ""
