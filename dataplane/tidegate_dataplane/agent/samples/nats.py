"""Samples to a NATS JetStream stream: each published with an id of its own and acknowledged, or tried again.

A stream drops a second message of the same id within its duplicate window (two minutes unless it says otherwise):
that is what makes a record of two pods, or one whose acknowledgement was lost, appear once.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tidegate_dataplane.agent.artefacts.checked_client import checked_addresses
from tidegate_dataplane.agent.artefacts.credentials import Credentials
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.samples.buffer import Held, Portion
from tidegate_dataplane.agent.samples.lines import Origin, line_of
from tidegate_dataplane.agent.samples.sink import Fate, SinkError
from tidegate_dataplane.contract import SampleOrder, SampleProblem

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

PORT = 4222
CONNECT_TIMEOUT_S = 3.0
CONNECT_WITHIN_S = 8.0
ACK_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
AT_ONCE = 256
UNCERTAIN_S = 100.0
"""A record whose acknowledgement was lost is tried again for so long: below the two minutes in which a stream knows
what it has. After them it might appear twice, so it is dropped."""
REFUSED_S = UNCERTAIN_S
"""A record that the stream refuses is tried again for so long: most refusals are of the stream and pass, and one of a
single record must not hold up the others for ever."""
LARGER_THAN_STREAM_TAKES = 10054
"""JetStream's err_code for a message above the stream's max_msg_size."""
TOKEN, USERNAME, PASSWORD = "nats-token", "nats-username", "nats-password"
"""What is sent to the server of the user's choice has names that no other Secret has: whoever may write an Inference
could otherwise send any Secret of the namespace to a host of theirs."""
CA, CERTIFICATE, PRIVATE_KEY = "ca.crt", "tls.crt", "tls.key"


class NatsSink:
    """One subject of one server."""

    portion = Portion(records=AT_ONCE, bytes=1 << 20, age_s=0.0)

    def __init__(
        self,
        order: SampleOrder,
        origin: Origin,
        credentials: Callable[[], Credentials],
        secret_dir: Path,
        *,
        allow_loopback: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._origin = origin
        self._credentials = credentials
        self._secret_dir = secret_dir
        self._allow_loopback = allow_loopback
        self._clock = clock
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._said = ""
        self._denied = ""
        self._problem: SinkError | None = None

    async def write(self, portion: Sequence[Held]) -> Sequence[Fate]:
        """Publish the records side by side; what is not acknowledged in time is to be tried again."""
        self._said, self._denied, self._problem = "", "", None
        client, stream = await self._connected()
        # JSON takes milliseconds per record: in the loop, the probes would wait for it.
        lines = await asyncio.to_thread(self._lines, portion)
        pairs = zip(portion, lines, strict=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._publish(client, stream, held, line)) for held, line in pairs]
        fates = [task.result() for task in tasks]
        if all(fate is Fate.AGAIN for fate in fates):
            await self.close()
            said = self._said or f"it did not acknowledge a record within {ACK_TIMEOUT_S:g} s"
            away = SinkError(SampleProblem.SINK_UNREACHABLE, f"NATS at {self._order.url}: {said}")
            raise self._problem or (self._refused(self._denied) if self._denied else away)
        return fates

    async def close(self) -> None:
        """Close the connection; the next portion opens another, to an address that is looked up anew."""
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            await _closed(client)

    def _lines(self, portion: Sequence[Held]) -> list[bytes | None]:
        """Return each record's JSON, None for one that has none."""
        lines: list[bytes | None] = []
        for held in portion:
            try:
                lines.append(line_of(held.record, self._origin).rstrip())
            except ValueError:
                lines.append(None)
        return lines

    async def _publish(
        self, client: "Client", stream: "JetStreamContext", held: Held, line: bytes | None
    ) -> Fate:
        from nats import errors
        from nats.js.errors import APIError, NoStreamResponseError

        now = self._clock()
        if _is_past(held.tried_s, now, UNCERTAIN_S) or _is_past(held.refused_s, now, REFUSED_S):
            return Fate.UNCONFIRMED
        if line is None or len(line) > client.max_payload:
            return Fate.TOO_LARGE
        uncertain = held.tried_s is not None
        headers = {"Nats-Msg-Id": message_id(self._origin.inference, held.record.id)}
        try:
            ack = await stream.publish(self._order.subject, line, timeout=ACK_TIMEOUT_S, headers=headers)
        except NoStreamResponseError:
            self._problem = self._refused(
                f"no stream takes the subject {self._order.subject}; make one: nats stream add SAMPLES --subjects "
                f"{self._order.subject}"
            )
            return Fate.AGAIN
        except APIError as error:
            if error.err_code == LARGER_THAN_STREAM_TAKES:
                return Fate.TOO_LARGE
            self._problem = self._refused(str(error.description))
            held.refused_s = now if held.refused_s is None else held.refused_s
            return Fate.AGAIN
        except (errors.Error, OSError, TimeoutError):
            held.tried_s = held.tried_s if uncertain else now
            return Fate.AGAIN
        except (ValueError, TypeError, KeyError):  # nats-py, of an answer that is no acknowledgement
            self._problem = self._refused(
                f"something other than a stream answers on {self._order.subject}: end it, or name another subject"
            )
            held.tried_s = held.tried_s if uncertain else now  # a stream may have it nevertheless
            return Fate.AGAIN
        return Fate.DUPLICATE if ack.duplicate and not uncertain else Fate.WRITTEN

    async def _connected(self) -> "tuple[Client, JetStreamContext]":
        if self._client is None or self._stream is None or not self._client.is_connected:
            await self.close()
            self._client = await self._connect()
            self._stream = self._client.jetstream()
        return self._client, self._stream

    async def _connect(self) -> "Client":
        # Imported here: a pod that logs no samples does not pay for it.
        from nats import errors
        from nats.aio.client import Client

        scheme, host, port = self._address()
        credentials, client = self._credentials(), Client()
        identity = self._identity(credentials, host)
        try:
            addresses = await checked_addresses(host, port, allow_loopback=self._allow_loopback)
            address = addresses[0][2]
            shown = f"[{address}]" if ":" in address else address
            # To reconnect is ours, not the client's: it would go to any address that a server names.
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await client.connect(
                    f"{scheme}://{shown}:{port}",
                    name=f"tidegate {self._origin.inference} {self._origin.pod}",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,  # else it tries the first connection for ever
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_TIMEOUT_S),
                    error_cb=self._hear,
                    **identity,
                )
                return client
        except ArtefactError as error:  # before there was a connection
            raise self._refused(error.refusal.message) from error
        except (errors.Error, OSError, TimeoutError, ValueError) as error:
            await _closed(client)
            said = self._said or credentials.redacted(str(error) or type(error).__name__)
            if "authorization" in said.lower():
                raise self._refused(self._hint(credentials)) from error
            raise SinkError(
                SampleProblem.SINK_UNREACHABLE, f"NATS at {self._order.url} cannot be reached: {said}"
            ) from error

    def _address(self) -> tuple[str, str, int]:
        try:
            parts = urlsplit(self._order.url)
            return parts.scheme, parts.hostname or "", parts.port or PORT
        except ValueError as error:
            raise self._refused(f"it is no address: {error}") from error

    def _identity(self, credentials: Credentials, host: str) -> dict[str, Any]:
        values = credentials.values
        if self._order.secret and (missing := missing_keys(values)):
            raise self._refused(f"Secret {self._order.secret} of the namespace {missing}")
        options: dict[str, Any] = {}
        if TOKEN in values:
            options["token"] = values[TOKEN]
        elif USERNAME in values:
            options |= {"user": values[USERNAME], "password": values[PASSWORD]}
        if self._order.url.startswith("tls://") or CA in values:
            options |= {"tls": self._tls(values), "tls_hostname": host}
        return options

    def _tls(self, values: Mapping[str, str]) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context()
            if CA in values:
                context.load_verify_locations(cadata=values[CA])
            if CERTIFICATE in values:
                context.load_cert_chain(self._secret_dir / CERTIFICATE, self._secret_dir / PRIVATE_KEY)
        except (OSError, ValueError) as error:
            where = f"{CA}, {CERTIFICATE} or {PRIVATE_KEY} in Secret {self._order.secret} of the namespace"
            raise self._refused(f"{where} cannot be used: {error}") from error
        return context

    def _hint(self, credentials: Credentials) -> str:
        if credentials.values.keys() & {TOKEN, USERNAME, CERTIFICATE}:
            return credentials.hint()
        name = self._order.secret
        wants = f"Secret {name} of the namespace has none" if name else "secretName names no Secret"
        return f"it wants credentials, and {wants}: put {TOKEN}, or {USERNAME} and {PASSWORD}, into one"

    async def _hear(self, error: Exception) -> None:
        """Keep what is said beside the answers: why a connection failed, or a permission that is missing."""
        self._said = self._credentials().redacted(str(error) or type(error).__name__)[:300]
        if "permissions violation" in self._said.lower():
            self._denied = self._said

    def _refused(self, why: str) -> SinkError:
        return SinkError(SampleProblem.SINK_REFUSED, f"NATS at {self._order.url}: {why}")


async def _closed(client: "Client") -> None:
    """Close the client, and what a connection that did not come about has left open."""
    with contextlib.suppress(Exception):  # it is gone either way
        await asyncio.wait_for(client.close(), CLOSE_TIMEOUT_S)


def missing_keys(values: Mapping[str, str]) -> str:
    """Return what a Secret lacks, as the end of a sentence; empty where it has what it takes to connect."""
    for one, other in ((USERNAME, PASSWORD), (CERTIFICATE, PRIVATE_KEY)):
        for has, lacks in ((one, other), (other, one)):
            if has in values and lacks not in values:
                return f"has {has} and no {lacks}"
    if not values.keys() & {TOKEN, USERNAME, CA, CERTIFICATE}:
        return f"does not exist, or has neither {TOKEN} nor {USERNAME} and {PASSWORD} (nor {CA} or {CERTIFICATE})"
    return ""


def _is_past(since_s: float | None, now_s: float, limit_s: float) -> bool:
    return since_s is not None and now_s - since_s > limit_s


def message_id(inference: str, request_id: str) -> str:
    """Return the id by which a stream knows a record again.

    Not the request's own: two Inferences may log one request into one stream, and a client's text is no header.
    """
    return blake2b(f"{inference}\n{request_id}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
