"""Samples to a NATS JetStream stream: each is published with its own id, and retried until acknowledged.

A stream drops a second message of the same id within its duplicate window (two minutes by default): so a record of two
pods, or one whose acknowledgement was lost, appears once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.nats_server import LARGER_THAN_STREAM_TAKES, NatsServer, close_client
from tidegate_dataplane.agent.samples.buffer import BufferedRecord, Portion
from tidegate_dataplane.agent.samples.lines import SampleOrigin, render_line
from tidegate_dataplane.agent.samples.sink import SinkError, WriteOutcome
from tidegate_dataplane.contract import SampleOrder, SampleProblem

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

ACK_TIMEOUT_S = 5.0
AT_ONCE = 256
UNCERTAIN_S = 100.0
"""A record whose acknowledgement was lost is tried again for this time: below the two minutes in which a stream knows
what it has. After them it might appear twice, so it is dropped."""
REFUSED_S = UNCERTAIN_S
"""A record that the stream refuses is tried again for this time: most refusals are of the stream and pass, and one of a
single record must not hold up the others for ever."""


class NatsSampleSink:
    """Publishes to one subject of one server."""

    portion = Portion(records=AT_ONCE, bytes=1 << 20, age_s=0.0)

    def __init__(
        self,
        order: SampleOrder,
        origin: SampleOrigin,
        credentials: Callable[[], SecretCredentials],
        secret_dir: Path,
        *,
        allow_loopback: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = order
        self._origin = origin
        self._server = NatsServer(
            order.url, order.secret, credentials, secret_dir, allow_loopback=allow_loopback
        )
        self._clock = clock
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._problem: SinkError | None = None

    async def write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome]:
        """Publish the records side by side; those without an acknowledgement in time are retried."""
        self._server.clear_errors()
        self._problem = None
        client, stream = await self._ensure_connected()
        # JSON takes milliseconds per record: in the loop, the probes would wait for it.
        lines = await asyncio.to_thread(self._render_lines, portion)
        pairs = zip(portion, lines, strict=True)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._publish_record(client, stream, buffered, line))
                for buffered, line in pairs
            ]
        fates = [task.result() for task in tasks]
        if all(fate is WriteOutcome.RETRY for fate in fates):
            await self.close()
            detail = self._server.last_error or f"it did not acknowledge a record within {ACK_TIMEOUT_S:g} s"
            away = SinkError(SampleProblem.SINK_UNREACHABLE, f"NATS at {self._order.url}: {detail}")
            denied = self._server.permission_error
            raise self._problem or (self._refusal_error(denied) if denied else away)
        return fates

    async def close(self) -> None:
        """Close the connection; the next portion resolves the address again and opens another."""
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            await close_client(client)

    def _render_lines(self, portion: Sequence[BufferedRecord]) -> list[bytes | None]:
        """Return each record's JSON; None for a record that has none."""
        lines: list[bytes | None] = []
        for buffered in portion:
            try:
                lines.append(render_line(buffered.record, self._origin).rstrip())
            except ValueError:
                lines.append(None)
        return lines

    async def _publish_record(
        self, client: "Client", stream: "JetStreamContext", buffered: BufferedRecord, line: bytes | None
    ) -> WriteOutcome:
        from nats import errors
        from nats.js.errors import APIError, NoStreamResponseError

        now = self._clock()
        if _is_past(buffered.tried_s, now, UNCERTAIN_S) or _is_past(buffered.refused_s, now, REFUSED_S):
            return WriteOutcome.UNCONFIRMED
        if line is None or len(line) > client.max_payload:
            return WriteOutcome.TOO_LARGE
        uncertain = buffered.tried_s is not None
        headers = {"Nats-Msg-Id": message_id(self._origin.inference, buffered.record.id)}
        try:
            ack = await stream.publish(self._order.subject, line, timeout=ACK_TIMEOUT_S, headers=headers)
        except NoStreamResponseError:
            self._problem = self._refusal_error(
                f"no stream takes the subject {self._order.subject}; make one: nats stream add SAMPLES --subjects "
                f"{self._order.subject}"
            )
            return WriteOutcome.RETRY
        except APIError as error:
            if error.err_code == LARGER_THAN_STREAM_TAKES:
                return WriteOutcome.TOO_LARGE
            self._problem = self._refusal_error(str(error.description))
            buffered.refused_s = now if buffered.refused_s is None else buffered.refused_s
            return WriteOutcome.RETRY
        except (errors.Error, OSError, TimeoutError):
            buffered.tried_s = buffered.tried_s if uncertain else now
            return WriteOutcome.RETRY
        except (ValueError, TypeError, KeyError):  # nats-py, of an answer that is no acknowledgement
            self._problem = self._refusal_error(
                f"something other than a stream answers on {self._order.subject}: end it, or name another subject"
            )
            buffered.tried_s = buffered.tried_s if uncertain else now  # a stream may have it nevertheless
            return WriteOutcome.RETRY
        return WriteOutcome.DUPLICATE if ack.duplicate and not uncertain else WriteOutcome.WRITTEN

    async def _ensure_connected(self) -> "tuple[Client, JetStreamContext]":
        if self._client is None or self._stream is None or not self._client.is_connected:
            await self.close()
            try:
                self._client = await self._server.connect(
                    f"tidegate {self._origin.inference} {self._origin.pod}"
                )
            except BrokerError as error:
                raise _sink_error(error) from error
            self._stream = self._client.jetstream()
        return self._client, self._stream

    def _refusal_error(self, reason: str) -> SinkError:
        return _sink_error(self._server.refusal_error(reason))


def _sink_error(error: BrokerError) -> SinkError:
    problem = SampleProblem.SINK_REFUSED if error.refused else SampleProblem.SINK_UNREACHABLE
    return SinkError(problem, error.message)


def _is_past(since_s: float | None, now_s: float, limit_s: float) -> bool:
    return since_s is not None and now_s - since_s > limit_s


def message_id(inference: str, request_id: str) -> str:
    """Return the id by which a stream recognises a duplicate.

    It is not the request's own: two Inferences may log one request into one stream, and a client's text is no header.
    """
    return blake2b(f"{inference}\n{request_id}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
