"""From the messages of one read to what is written to the store in one transaction. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate_dataplane.contract import RefusedEvent
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.ingester.broker import ReadMessages
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.refusal import EventRefusedError


@dataclass(frozen=True, slots=True)
class EventTransaction:
    """Rows by key, and the state after them."""

    events: Mapping[bytes, Sequence[bytes]]
    after: StreamState


def sort_messages(
    state: StreamState, read: ReadMessages, parser: EventParser, now_ms: int
) -> EventTransaction:
    """Return what the messages add to `state`; a message before the state's position is there already."""
    events: dict[bytes, list[bytes]] = {}
    last_refused = state.last_refused
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
            last_refused = RefusedEvent(
                partition=message.partition,
                position=message.position,
                reason=error.reason,
                message=error.message,
            )
            continue
        stored += 1
        # A clock that is ahead must not make the events of others late.
        seen_ms = min(event.time_ms, arrived_ms)
        newest[message.partition] = seen_ms if before is None else max(seen_ms, before)
        events.setdefault(event.key, []).append(event.row)
    positions = {**state.positions}
    for partition, position in read.next_positions.items():
        positions[partition] = max(position, positions.get(partition, 0))
    after = StreamState(
        origin=state.origin,
        positions=positions,
        newest_ms=newest,
        stored=stored,
        refused=reasons,
        last_refused=last_refused,
    )
    return EventTransaction(events, after)
