"""Dead letters for refused events: written before the position moves on, and given up only for a target that takes none.

A broker that is away holds the stream, which has its events there too. A target that does not take letters, while the stream can
be read, holds it for a while: features must not grow old for the sake of events that are not in them. Then letters are counted
as failed, and the target is tried again and again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import structlog

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.kafka_topic import DeadLetterTopic, make_letter_producer
from tidegate_dataplane.agent.dead_letters.letter import (
    LetterContent,
    make_letter_id,
    make_reason_headers,
    select_sender_headers,
)
from tidegate_dataplane.agent.dead_letters.nats_subject import DeadLetterSubject
from tidegate_dataplane.agent.kafka_client import import_library
from tidegate_dataplane.agent.kafka_server import KafkaServer, stop_client
from tidegate_dataplane.agent.nats_server import CALL_TIMEOUT_S, NatsServer, close_client
from tidegate_dataplane.contract import DeadLetterCounts, EventDeadLetters, KafkaOrder, NatsEvents
from tidegate_dataplane.ingester.broker import EventMessage
from tidegate_dataplane.ingester.transaction import RefusedMessage

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

log = structlog.get_logger()

MAX_UNACKNOWLEDGED: Final = 64
"""Letters that are published at once; the next ones wait until these are acknowledged."""
PAUSE_S: Final = 1.0
OPEN_EVERY_S: Final = 5.0
"""Interval at which a target that could not be opened is looked at again, also without letters."""
RETRY_EVERY_S: Final = 30.0
"""Interval at which a target that refuses letters gets one: without permission each attempt takes as long as the broker's timeout."""

_Identity: TypeAlias = tuple[str, int, float]


class DeadLetterTarget(Protocol):
    """A subject or topic over one session at a time. Every failure is a BrokerError, after which it is opened again."""

    async def open_target(self) -> None:
        """Connect, and check that it exists and that the stream does not read it."""
        ...

    async def publish_letter(self, refused: RefusedMessage) -> None:
        """Publish one letter, and return once it is stored."""
        ...

    async def close_target(self) -> None:
        """Close the session."""
        ...


class DeadLetterWriter:
    """Writes what is refused of one stream, for the reasons that its order has."""

    def __init__(self, order: EventDeadLetters, target: DeadLetterTarget, hold_s: float) -> None:
        """`hold_s` is how long the stream waits for a target that takes no letters."""
        self._target = target
        self._reasons = frozenset(order.reasons)
        self._source = order.source
        self._hold_s = hold_s
        self._is_open = False
        self._problem: BrokerError | None = None
        self._failing_since_s = 0.0
        self._retry_at_s = 0.0
        self._is_given_up = False
        self._is_missing = False
        self._uncommitted: set[_Identity] = set()

    @property
    def message(self) -> str:
        """Return why no letter is written; empty while there is no reason."""
        return self._problem.message if self._problem is not None else ""

    @property
    def failing_s(self) -> float:
        """Return for how long."""
        return _now_s() - self._failing_since_s if self._problem is not None else 0.0

    async def check_target(self, *, is_busy: bool) -> None:
        """Open the target if it is not open, so that its problems are known before the first letter.

        With `is_busy`, events are waiting: the target is looked at less often.
        """
        retry_at_s = self._retry_at_s + (RETRY_EVERY_S - OPEN_EVERY_S if is_busy else 0.0)
        if self._is_open or (self._problem is not None and _now_s() < retry_at_s):
            return
        with contextlib.suppress(BrokerError):
            await self._open_target()

    async def write_letters(
        self, refused: Sequence[RefusedMessage], since_s: float, check_stream: Callable[[], Awaitable[None]]
    ) -> DeadLetterCounts:
        """Write the letters among `refused`, those that reached the broker at `since_s` or later, and count them.

        Letters of earlier calls are not written again, until `confirm_commit`.

        Raises:
            BrokerError: from `check_stream`: the stream cannot be read either.
        """
        letters = [item for item in refused if self._is_letter(item, since_s)]
        pending = [item for item in letters if _identify(item.message) not in self._uncommitted]
        if not pending:
            return DeadLetterCounts(written=len(letters))
        began_s = _now_s()
        while not self._is_given_up or _now_s() >= self._retry_at_s:
            try:
                await self._publish_letters(pending)
            except BrokerError as error:
                if not error.refused:
                    await check_stream()
                if self._is_given_up or _now_s() - began_s >= self._hold_s:
                    self._is_given_up = True
                    self._log_failure(pending)
                    break
                await asyncio.sleep(PAUSE_S)
            else:
                self._clear_problem()
                return DeadLetterCounts(written=len(letters))
        return DeadLetterCounts(written=len(letters) - len(pending), failed=len(pending))

    def confirm_commit(self) -> None:
        """Forget the letters that were written: the store has a position behind them."""
        self._uncommitted.clear()

    async def close_target(self) -> None:
        """Close the session."""
        self._is_open = False
        await self._target.close_target()

    async def _publish_letters(self, pending: list[RefusedMessage]) -> None:
        """Publish letters, and remove from `pending` those that are stored."""
        if not self._is_open:
            await self._open_target()
        try:
            while pending:
                portion = pending[:MAX_UNACKNOWLEDGED]
                outcomes = await asyncio.gather(*map(self._publish_letter, portion))
                written = [item for item, error in zip(portion, outcomes, strict=True) if error is None]
                self._uncommitted.update(_identify(item.message) for item in written)
                pending[: len(portion)] = [
                    item for item, error in zip(portion, outcomes, strict=True) if error is not None
                ]
                for error in outcomes:
                    if error is not None:
                        raise error
        except BrokerError as error:
            self._record_problem(error, RETRY_EVERY_S)
            # The connection or the target may be gone; the next opening tells.
            await self.close_target()
            raise

    async def _publish_letter(self, item: RefusedMessage) -> BrokerError | None:
        try:
            await self._target.publish_letter(item)
        except BrokerError as error:
            return error
        except Exception as error:  # whatever a message holds, it must not hold up those behind it for ever
            log.exception("dead_letter_crashed", source=self._source, place=_name_place(item.message))
            return BrokerError(f"a dead letter cannot be sent: {type(error).__name__}", refused=True)
        return None

    async def _open_target(self) -> None:
        await self._target.close_target()
        try:
            await self._open_session()
        except BrokerError as error:
            self._record_problem(error, OPEN_EVERY_S)
            self._is_missing = True
            raise
        self._is_open = True
        if self._is_missing:  # else it was there before and took no letter
            self._is_missing = False
            self._clear_problem()

    async def _open_session(self) -> None:
        try:
            await self._target.open_target()
        except BrokerError:
            raise
        except Exception as error:  # the stream is read all the same
            log.exception("dead_letters_crashed", source=self._source)
            message = f"opening the dead letters fails with {type(error).__name__}: report it, with the log of container ingester"
            raise BrokerError(message, refused=True) from error

    def _is_letter(self, item: RefusedMessage, since_s: float) -> bool:
        return item.reason in self._reasons and not item.is_aged and item.message.arrived_s >= since_s

    def _record_problem(self, error: BrokerError, retry_s: float) -> None:
        if self._problem is None:
            self._failing_since_s = _now_s()
        if self._problem is None or self._problem.message != error.message:
            log.warning("dead_letters_fail", source=self._source, message=error.message)
        self._problem, self._retry_at_s = error, _now_s() + retry_s

    def _log_failure(self, pending: Sequence[RefusedMessage]) -> None:
        first, last = (_name_place(item.message) for item in (pending[0], pending[-1]))
        log.warning("dead_letters_failed", source=self._source, count=len(pending), first=first, last=last)

    def _clear_problem(self) -> None:
        if self._problem is not None:
            log.info("dead_letters_written", source=self._source)
        self._problem, self._is_given_up = None, False


class NatsDeadLetters:
    """A subject on the server of the stream, over a connection of its own."""

    def __init__(self, order: NatsEvents, target: str, server: NatsServer, name: str, source: str) -> None:
        """`name` is what the server shows of the connection; `source` is <namespace>/<name>/<source>, for the headers."""
        self._order = order
        self._server = server
        self._subject = DeadLetterSubject(server, target)
        self._name = name
        self._source = source
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None

    async def open_target(self) -> None:
        """Connect, and look for the stream that stores the subject."""
        from nats.js.errors import APIError

        self._server.clear_errors()
        self._subject.check_source(self._order.subject)
        self._client = await self._server.connect(self._name)
        self._stream = self._client.jetstream(timeout=CALL_TIMEOUT_S)
        try:
            await self._subject.find_stream(self._stream)
        except APIError as error:
            raise self._server.refusal_error(str(error.description or error)) from error

    async def publish_letter(self, refused: RefusedMessage) -> None:
        """Publish one letter, with an id that JetStream drops doubles by."""
        client, stream, message = self._client, self._stream, refused.message
        if client is None or stream is None or not client.is_connected:
            raise self._server.connection_error("the connection ended")
        headers = {
            "Nats-Msg-Id": _make_id(self._source, self._order.stream, message),
            **_describe_refusal(refused, self._source, self._order.stream),
        }
        content = LetterContent(message.body, select_sender_headers(message.headers, ["Nats-"]), headers)
        await self._subject.publish_letter(stream, client.max_payload, content, can_cut=True)

    async def close_target(self) -> None:
        """Close the connection."""
        client, self._client, self._stream = self._client, None, None
        if client is not None:
            await close_client(client)


class KafkaDeadLetters:
    """A topic of the cluster of the stream, through a producer."""

    def __init__(self, order: KafkaOrder, target: str, server: KafkaServer, name: str, source: str) -> None:
        """`name` is what the cluster shows of the connection; `source` is <namespace>/<name>/<source>, for the headers."""
        self._order = order
        self._target = target
        self._server = server
        self._topic = DeadLetterTopic(server, target)
        self._name = name
        self._source = source
        self._producer: Any = None

    async def open_target(self) -> None:
        """Connect, and look for the topic."""
        options = await self._server.reach_cluster(self._name)
        admin = import_library("aiokafka.admin").AIOKafkaAdminClient(**options)
        try:
            await self._server.call_in_time(admin.start())
            await self._server.call_in_time(
                self._server.list_partitions(admin, self._target, "deadLetters.topic")
            )
        finally:
            await stop_client(admin)
        self._producer = make_letter_producer(options)
        await self._server.call_in_time(self._producer.start())

    async def publish_letter(self, refused: RefusedMessage) -> None:
        """Publish one letter, with an id that readers can drop doubles by."""
        message = refused.message
        headers = {
            "Tidegate-Id": _make_id(self._source, self._order.topic, message),
            **_describe_refusal(refused, self._source, self._order.topic),
            "Tidegate-Partition": message.partition,
        }
        content = LetterContent(message.body, select_sender_headers(message.headers), headers, message.key)
        await self._topic.publish_letter(self._producer, content, can_cut=True)

    async def close_target(self) -> None:
        """Close the connections."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_client(producer)


def _describe_refusal(refused: RefusedMessage, source: str, stream: str) -> dict[str, str]:
    field = {"Tidegate-Field": refused.field} if refused.field else {}
    return {
        **make_reason_headers(refused.reason, refused.text),
        **field,
        "Tidegate-Source": source,
        "Tidegate-Stream": stream,
        "Tidegate-Sequence": str(refused.message.position),
    }


def _make_id(source: str, stream: str, message: EventMessage) -> str:
    return make_letter_id(source, stream, *_identify(message))


def _identify(message: EventMessage) -> _Identity:
    return message.partition, message.position, message.arrived_s


def _name_place(message: EventMessage) -> str:
    return f"{message.partition}/{message.position}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
