"""Events that no feature may see: each is refused by reason and field, and changes neither the others nor the newest time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.events import DAY, HOUR, MINUTE, USER, Click, clicks
from tidegate_dataplane.contract import EventField, EventFieldType, EventStream, RefusalReason
from tidegate_dataplane.event_store.state import StreamState
from tidegate_dataplane.ingester.broker import EventMessage, ReadMessages
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.transaction import EventTransaction, sort_messages

NOW = 1_790_000_000_000
"""An hour in 2026, in milliseconds."""
GOOD = Click(1, NOW - MINUTE, 5, 1, 2.5, "home")
LATER = Click(2, NOW - 30_000, 6, 0, 1.5, "cart")
LAST = Click(1, NOW - MINUTE - 20_000, 7, 1, 0.5, "home")
"""Out of order, and within the lateness of a minute behind LATER."""
YEAR_2100 = 4_102_444_800_000


def changed(**fields: object) -> bytes:
    return json.dumps({**GOOD.message, **fields}).encode()


def without(field: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.message.items() if name != field}).encode()


def sort_bodies(*bodies: bytes, stream: EventStream | None = None) -> EventTransaction:
    """What a stream stores that has these messages; all arrived now."""
    messages = [EventMessage("0", number, NOW / 1000, body) for number, body in enumerate(bodies)]
    parser = EventParser(stream or clicks(), USER)
    return sort_messages(StreamState(), ReadMessages(messages, {"0": len(bodies)}), parser, NOW)


def encode(event: Click) -> bytes:
    return json.dumps(event.message).encode()


BAD: list[tuple[str, bytes, RefusalReason, str]] = [
    ("missing key", without("user_id"), RefusalReason.MISSING_FIELD, "user_id"),
    ("key that is null", changed(user_id=None), RefusalReason.MISSING_FIELD, "user_id"),
    ("missing time", without("ts"), RefusalReason.MISSING_FIELD, "ts"),
    ("key of the wrong type", changed(user_id="1"), RefusalReason.WRONG_TYPE, "user_id"),
    ("field of the wrong type", changed(price="cheap"), RefusalReason.WRONG_TYPE, "price"),
    ("fraction for a whole number", changed(item_id=1.5), RefusalReason.WRONG_TYPE, "item_id"),
    ("number beyond 64 bits", changed(item_id=2**63), RefusalReason.WRONG_TYPE, "item_id"),
    ("NaN", changed(price=float("nan")), RefusalReason.MALFORMED, ""),
    ("infinite", changed(price=float("inf")), RefusalReason.MALFORMED, ""),
    ("NaN as a time", changed(ts=float("nan")), RefusalReason.MALFORMED, ""),
    ("infinite by overflow", encode(GOOD).replace(b"2.5", b"1e999"), RefusalReason.WRONG_TYPE, "price"),
    ("year 1970", changed(ts=0), RefusalReason.EXPIRED, "ts"),
    ("year 1970 as text", changed(ts="1970-01-01T00:00:00Z"), RefusalReason.EXPIRED, "ts"),
    ("before 1970", changed(ts=-(10**15)), RefusalReason.EXPIRED, "ts"),
    ("seconds for milliseconds", changed(ts=NOW // 1000), RefusalReason.EXPIRED, "ts"),
    ("older than the ttl", changed(ts=NOW - 7 * DAY), RefusalReason.EXPIRED, "ts"),
    ("year 2100", changed(ts=YEAR_2100), RefusalReason.IN_THE_FUTURE, "ts"),
    ("year 2100 as text", changed(ts="2100-01-01T00:00:00+00:00"), RefusalReason.IN_THE_FUTURE, "ts"),
    ("largest time", changed(ts=2**63 - 1), RefusalReason.IN_THE_FUTURE, "ts"),
    ("clock that jumps ahead", changed(ts=NOW + HOUR), RefusalReason.IN_THE_FUTURE, "ts"),
    ("clock that jumps back", changed(ts=NOW - HOUR), RefusalReason.TOO_LATE, "ts"),
    ("later than lateness", changed(ts=LATER.ts - MINUTE - 1), RefusalReason.TOO_LATE, "ts"),
    (
        "schema with a field renamed",
        without("price")[:-1] + b', "cost": 2.5}',
        RefusalReason.MISSING_FIELD,
        "price",
    ),
    ("schema with a field nested", changed(price={"amount": 2.5}), RefusalReason.WRONG_TYPE, "price"),
    ("schema in another format", b"\x00\x00\x00\x00\x07\x02\x0a", RefusalReason.MALFORMED, ""),
    ("several events in one message", f"[{json.dumps(GOOD.message)}]".encode(), RefusalReason.MALFORMED, ""),
    ("nothing", b"", RefusalReason.MALFORMED, ""),
]


@pytest.mark.parametrize(("body", "reason", "field"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_event_is_refused_by_reason_and_field_and_changes_nothing_else(
    body: bytes, reason: RefusalReason, field: str
) -> None:
    good = [encode(event) for event in (GOOD, LATER, LAST)]

    found = sort_bodies(*good[:2], body, good[2])
    expected = sort_bodies(*good)

    (refused,) = found.refused
    assert (refused.reason, refused.field, refused.message.position) == (reason, field, 2)
    assert found.after.refused == {reason: 1}
    assert found.events == expected.events == {GOOD.key: [GOOD.row, LAST.row], LATER.key: [LATER.row]}
    # Never dragged back, and never ahead.
    assert found.after.newest_ms == expected.after.newest_ms == {"0": LATER.ts}
    assert (found.after.stored, found.after.positions) == (3, {"0": 4})


@pytest.mark.parametrize("ahead_ms", [1, 59_999])
def test_a_clock_a_little_ahead_does_not_drag_the_newest_time_ahead_of_now(ahead_ms: int) -> None:
    ahead = Click(3, NOW + ahead_ms, 1, 1, 1.0, "home")

    found = sort_bodies(encode(ahead), encode(LATER))

    assert found.after.refused == {}
    assert found.after.newest_ms == {"0": NOW}
    assert found.after.stored == 2


def test_a_stream_whose_first_event_is_bad_has_no_newest_time() -> None:
    found = sort_bodies(changed(ts=YEAR_2100), changed(ts=0), b"{")

    assert found.after.newest_ms == {}
    assert found.events == {}
    assert found.after.positions == {"0": 3}


@pytest.mark.parametrize(
    "fields",
    [{"colour": "red"}, {"nested": {"a": [1, 2]}}, {"user_ID": 9, "TS": 0}],
    ids=["added", "added and nested", "added with another case"],
)
def test_a_schema_that_grows_in_the_stream_changes_no_row(fields: dict[str, Any]) -> None:
    assert sort_bodies(changed(**fields)) == sort_bodies(changed())


def test_a_field_that_a_new_plan_declares_is_missing_in_old_events_alone() -> None:
    stream = clicks(fields=(*clicks().fields, EventField(name="colour", type=EventFieldType.INT64)))

    found = sort_bodies(changed(), changed(colour=4), stream=stream)

    assert found.after.refused == {RefusalReason.MISSING_FIELD: 1}
    assert found.after.stored == 1
