"""From the messages of one read to what is written to the store in one transaction. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidegate_dataplane.contract import EventStream, RefusalReason, RefusedEvent
from tidegate_dataplane.event_store.rows import count_row_bytes
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.ingester.broker import EventMessage, ReadMessages
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.refusal import EventRefusedError

MAX_TRANSACTION_BYTES: Final = 32 << 20
"""Size of the rows that one transaction may read and write: those of all keys that it changes."""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that is not stored, and why; `is_aged` and `field` are those of EventRefusedError."""

    message: EventMessage
    reason: RefusalReason
    text: str
    field: str
    is_aged: bool


@dataclass(frozen=True, slots=True)
class EventTransaction:
    """Rows by key, the state after them, and the messages that are not among them."""

    events: Mapping[bytes, Sequence[bytes]]
    after: StreamState
    refused: Sequence[RefusedMessage] = ()


def count_messages(stream: EventStream) -> int:
    """Return how many messages a transaction may have if each one has a key of its own whose history is full."""
    return max(MAX_TRANSACTION_BYTES // (stream.max_events * count_row_bytes(stream.fields)), 1)


def divide_messages(read: ReadMessages, max_messages: int) -> Iterator[ReadMessages]:
    """Return parts to store one after the other; the positions of each one are behind its messages."""
    messages = read.messages
    for start in range(max_messages, len(messages), max_messages):
        part = messages[start - max_messages : start]
        yield ReadMessages(part, {message.partition: message.position + 1 for message in part})
    last = (len(messages) - 1) // max_messages * max_messages
    yield replace(read, messages=messages[last:])


def sort_messages(
    state: StreamState, read: ReadMessages, parser: EventParser, now_ms: int
) -> EventTransaction:
    """Return what the messages add to `state`; a message before the state's position is there already."""
    events: dict[bytes, list[bytes]] = {}
    refused: list[RefusedMessage] = []
    newest = dict(state.newest_ms)
    reasons = dict(state.refused)
    stored = state.stored
    for message in read.messages:
        if message.position < state.positions.get(message.partition, 0):
            continue
        try:
            event = parser.parse_event(message.body)
            # A broker that gives messages the time of their producer could give them any.
            arrived_ms = min(int(message.arrived_s * 1000), now_ms)
            before = newest.get(message.partition)
            parser.check_time(event.time_ms, before, arrived_ms=arrived_ms, now_ms=now_ms)
        except EventRefusedError as error:
            reasons[error.reason] = reasons.get(error.reason, 0) + 1
            refused.append(RefusedMessage(message, error.reason, error.message, error.field, error.is_aged))
            continue
        stored += 1
        # A clock that is ahead must not make the events of others late.
        seen_ms = min(event.time_ms, arrived_ms)
        newest[message.partition] = seen_ms if before is None else max(seen_ms, before)
        events.setdefault(event.key, []).append(event.row)
    positions = {**state.positions}
    for partition, position in read.next_positions.items():
        positions[partition] = max(position, positions.get(partition, 0))
    after = state.model_copy(
        update={
            "positions": positions,
            "newest_ms": newest,
            "stored": stored,
            "refused": reasons,
            "last_refused": _describe_refusal(refused[-1]) if refused else state.last_refused,
        }
    )
    return EventTransaction(events, after, refused)


def _describe_refusal(refused: RefusedMessage) -> RefusedEvent:
    return RefusedEvent(
        partition=refused.message.partition,
        position=refused.message.position,
        reason=refused.reason,
        message=refused.text,
    )
