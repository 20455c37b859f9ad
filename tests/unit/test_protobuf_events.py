"""Events in Protobuf: the same rows as in JSON, and what is refused."""

from __future__ import annotations

import pytest

from builders.events import MINUTE, USER, Click, clicks
from builders.feature_compute import feature_compute_body
from builders.live_features import live_features_spec, stream_source
from builders.protobuf import CLICK_NUMBERS, encode_click, encode_field
from tidegate.api.feature_compute import FeatureCompute
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_plan import compile_plan
from tidegate_dataplane.contract import Entity, EntityKeyType, EventField, EventFieldType, RefusalReason
from tidegate_dataplane.event_store.rows import encode_text
from tidegate_dataplane.ingester.parse import EventParser
from tidegate_dataplane.ingester.refusal import EventRefusedError

NOW = 1_795_000_000_000
PARSER = EventParser(clicks(protobuf_numbers=CLICK_NUMBERS), USER)
GOOD = Click(7, NOW - MINUTE, 5, 1, 2.5, "hömepage")


@pytest.mark.parametrize(
    "click",
    [
        GOOD,
        Click(0, NOW, 0, 0, 0.0, ""),
        Click(-1, NOW, -(2**63), 2**63 - 1, -1e300, "x" * 10_000),
    ],
)
def test_a_message_has_the_row_that_its_json_has(click: Click) -> None:
    event = PARSER.parse_event(encode_click(click.message))
    assert (event.key, event.time_ms, event.row) == (click.key, click.ts, click.row)


def test_other_fields_and_their_order_make_no_difference() -> None:
    fields = [encode_field(CLICK_NUMBERS[name], value) for name, value in GOOD.message.items()]
    body = encode_field(99, "other") + b"".join(reversed(fields)) + encode_field(100, 1.5)
    assert PARSER.parse_event(body).row == GOOD.row


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b"\xff", RefusalReason.MALFORMED, "it is no Protobuf of these fields"),
        (encode_click(GOOD.message)[:-1], RefusalReason.MALFORMED, "it is no Protobuf of these fields"),
        (b'{"user_id": 7}', RefusalReason.MALFORMED, "it is no Protobuf of these fields"),
        (
            encode_click({**GOOD.message, "page": b"\xff\xfe"}),
            RefusalReason.MALFORMED,
            "it is no Protobuf of these fields",
        ),
        (
            encode_click({**GOOD.message, "price": 3}),
            RefusalReason.WRONG_TYPE,
            "price has another type there than declared: field 17 has wire type 0",
        ),
        (
            encode_click({**GOOD.message, "item_id": "5"}),
            RefusalReason.WRONG_TYPE,
            "item_id has another type there than declared: field 3 has wire type 2",
        ),
        (
            encode_click({**GOOD.message, "price": float("nan")}),
            RefusalReason.WRONG_TYPE,
            "price is nan; it must be a number that float64 can hold",
        ),
    ],
    ids=["no tag", "cut", "json", "no utf-8", "number for a double", "string for a number", "nan"],
)
def test_what_is_no_event_is_refused(body: bytes, reason: RefusalReason, message: str) -> None:
    with pytest.raises(EventRefusedError) as refused:
        PARSER.parse_event(body)
    assert refused.value.reason is reason
    assert message in refused.value.message


def test_an_empty_message_is_an_event_of_1970() -> None:
    event = PARSER.parse_event(b"")
    with pytest.raises(EventRefusedError, match="1970-01-01T00:00:00") as refused:
        PARSER.check_time(event.time_ms, None, arrived_ms=NOW, now_ms=NOW)
    assert refused.value.reason is RefusalReason.EXPIRED


def test_a_key_may_be_a_string_and_names_may_be_those_that_protobuf_does_not_allow() -> None:
    entity = Entity(name="user", key="class", type=EntityKeyType.STRING)
    stream = clicks(
        event_time="at-ms",
        fields=(EventField(name="message", type=EventFieldType.INT64),),
        protobuf_numbers={"class": 1, "at-ms": 2, "message": 3},
    )
    body = encode_field(1, "ä") + encode_field(2, NOW) + encode_field(3, 9)
    event = EventParser(stream, entity).parse_event(body)
    assert (event.key, event.time_ms) == (encode_text("ä".encode()), NOW)


def plan_with(**numbers: int) -> FeatureCompute:
    spec = live_features_spec()
    spec["sources"][1] = stream_source(protobuf={"numbers": numbers})
    return FeatureCompute.parse(feature_compute_body(**spec))


def test_the_plan_has_the_numbers_and_another_hash_than_json() -> None:
    [stream] = compile_plan(plan_with(**CLICK_NUMBERS)).streams
    assert stream.protobuf_numbers == CLICK_NUMBERS
    spec = live_features_spec()
    [of_json] = compile_plan(FeatureCompute.parse(feature_compute_body(**spec))).streams
    assert of_json.protobuf_numbers is None
    assert "protobufNumbers" not in of_json.model_dump_json(by_alias=True)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            {"user_id": 1, "ts": 2, "item_id": 3, "click": 4, "price": 5},
            "has no number for 'page'; give one to user_id, ts, item_id, click, price, page",
        ),
        ({**CLICK_NUMBERS, "color": 9}, "'color' is not a field of the stream; its fields are user_id, ts,"),
        ({**CLICK_NUMBERS, "page": 4}, "'click' and 'page' both have 4"),
        ({**CLICK_NUMBERS, "page": 19_500}, "19500 of 'page' is reserved by Protobuf"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        compile_plan(plan_with(**numbers))
    assert message in str(refused.value)
    assert "spec.sources[1].stream.protobuf.numbers" in str(refused.value)
