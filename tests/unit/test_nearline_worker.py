"""The pure half of near-line work: what a message says, which one goes next, and what becomes of a failure."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from tidegate_dataplane.agent.nearline import message
from tidegate_dataplane.agent.nearline.broker import StreamMessage
from tidegate_dataplane.agent.nearline.failure_policy import (
    DeadLetter,
    FaultOrigin,
    Redeliver,
    is_suspect,
    is_unfinished,
    judge_failure,
)
from tidegate_dataplane.agent.nearline.message import (
    DeadlineField,
    InferenceRequest,
    InferenceTensor,
    MalformedError,
    ResultOrigin,
    parse_message,
    render_result,
)
from tidegate_dataplane.agent.nearline.window import Delivery, DeliveryWindow

FIELD = DeadlineField(field="deadline")
ID_HEADER = "Nats-Msg-Id"


def a_body(**changes: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.25]}
    tensor |= changes.pop("tensor", {})
    return json.dumps({"id": "m", "inputs": [tensor], **changes}).encode()


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ({}, np.array([[0.5, 1.25]], np.float32)),
        ({"data": [[0.5, 1.25]]}, np.array([[0.5, 1.25]], np.float32)),
        ({"datatype": "INT64", "data": [1, 2**62]}, np.array([[1, 2**62]], np.int64)),
        ({"datatype": "UINT64", "data": [1, 2**64 - 1]}, np.array([[1, 2**64 - 1]], np.uint64)),
        ({"datatype": "BOOL", "data": [True, False]}, np.array([[True, False]])),
        ({"datatype": "FP16", "data": [1, 2]}, np.array([[1, 2]], np.float16)),
        ({"datatype": "BYTES", "data": ["a", "ü"]}, np.array([[b"a", "ü".encode()]], np.object_)),
        ({"shape": [0, 2], "data": []}, np.zeros((0, 2), np.float32)),
    ],
)
def test_tensors_are_what_the_json_says(tensor: dict[str, Any], expected: Any) -> None:
    (found,) = parse_message(a_body(tensor=tensor), {}, FIELD, ID_HEADER).inputs
    assert found.array.dtype == expected.dtype
    assert np.array_equal(found.array, expected)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xff", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (a_body(inputs=[]), "it has no inputs"),
        (a_body(id=""), "it has no id"),
        (a_body(id=7), "it has no id"),
        (a_body(id=".a"), "its id '.a' must be"),
        (a_body(id="a.."), "its id 'a..' must be"),
        (a_body(id="a..b"), "no two together"),
        (a_body(id="a."), "no dot at either end"),
        (a_body(tensor={"name": "\ud800"}), "is no text in UTF-8"),
        (a_body(tensor={"datatype": "\ud800"}), "is no text in UTF-8"),
        # Seen by numpy, it would be 40 GB: each of the short ones takes as much as the long one.
        (a_body(tensor={"data": ["a" * 100_000, *["b"] * 100_000]}), "of another type"),
        (a_body(tensor={"data": [1, 10**30]}), "outside what 64 bits can say"),
        (a_body(tensor={"datatype": "INT64", "data": [1, 10**30]}), "outside -9223372036854775808"),
        (a_body(tensor={"datatype": "INT8", "data": [[1], [True]]}), "no whole numbers"),
        (a_body(tensor={"shape": [1, 2**70]}), "input x is no FP32 of shape"),
        (a_body(id="a" * 201), "must be at most 200"),
        (a_body(tensor={"shape": [1, 3]}), "input x is no FP32 of shape"),
        (a_body(tensor={"shape": [-1, 2]}), "input x has no shape"),
        (a_body(tensor={"datatype": "INT8", "data": [1, 300]}), "outside -128 to 127"),
        (a_body(tensor={"datatype": "INT8", "data": [1, 1.5]}), "no whole numbers"),
        (a_body(tensor={"datatype": "BF16"}), "its type must be one of"),
        (a_body(tensor={"data": [[1], [1, 2]]}), "input x is no FP32"),
        (a_body(tensor={"datatype": "BYTES", "data": ["a", 1]}), "no text"),
        (a_body(deadline="2026-01-01T00:00:00"), "no time zone"),
        (a_body(deadline="soon"), "its deadline 'soon'"),
        (a_body(deadline=[1]), "its deadline"),
    ],
)
def test_what_can_never_be_answered_says_why(body: bytes, said: str) -> None:
    with pytest.raises(MalformedError, match=said.replace("[", r"\[")):
        parse_message(body, {}, FIELD, ID_HEADER)


def test_whatever_reading_a_message_raises_is_that_messages_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(message, "_parse_tensor", out_of_memory)
    with pytest.raises(MalformedError, match="it cannot be read: MemoryError"):
        parse_message(a_body(), {}, FIELD, ID_HEADER)
    nothing: Any = None
    with pytest.raises(MalformedError, match="its result has no form in JSON"):
        render_result(
            InferenceRequest("m", None, ()),
            (InferenceTensor("y", "FP32", nothing),),
            "3",
            ResultOrigin("", "", ""),
            made_at=datetime.now(UTC),
        )


def test_deadlines_are_read_in_both_spellings_and_only_where_they_are_said_to_be() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    for spelled in ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", moment, str(moment)):
        assert parse_message(a_body(deadline=spelled), {}, FIELD, ID_HEADER).deadline_s == moment
    header = DeadlineField(header="x-until")
    assert (
        parse_message(a_body(deadline="soon"), {"x-until": str(moment)}, header, ID_HEADER).deadline_s
        == moment
    )
    assert parse_message(a_body(deadline="soon"), {}, DeadlineField(), ID_HEADER).deadline_s is None


def test_a_result_says_whether_it_is_late_and_writes_what_json_has_no_numbers_for() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    outputs = (InferenceTensor("y", "FP32", np.array([[np.nan, np.inf, 1.5]], np.float32)),)
    origin = ResultOrigin("ads/ctr", "ctr-0", "ctr")
    late = json.loads(
        render_result(InferenceRequest("m", at.timestamp() - 1, ()), outputs, "3", origin, made_at=at)
    )
    assert late["late"]
    assert late["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": ["NaN", "Infinity", 1.5]}
    ]
    assert not json.loads(render_result(InferenceRequest("m", None, ()), outputs, "3", origin, made_at=at))[
        "late"
    ]


def a_delivery(sequence: int, deadline_s: float | None = None, *, suspect: bool = False) -> Delivery:
    return Delivery(
        StreamMessage(b"", {}, sequence, 1, None), InferenceRequest(f"m{sequence}", deadline_s, ()), suspect
    )


async def test_the_earliest_deadline_goes_first_then_the_streams_order() -> None:
    window = DeliveryWindow(8)
    window.put([a_delivery(1), a_delivery(2, 50.0), a_delivery(3), a_delivery(4, 10.0)])
    taken = [await window.take() for _ in range(4)]
    assert [each.sequence for each in taken if each] == [4, 2, 1, 3]
    assert window.free_slots == 4
    for each in taken:
        assert each is not None
        window.release(each)
    assert window.free_slots == 8


async def test_a_suspect_goes_next_and_has_nothing_beside_it() -> None:
    window = DeliveryWindow(8)
    window.put([a_delivery(1), a_delivery(2)])
    first = await window.take()
    assert first is not None
    window.put([a_delivery(3, suspect=True)])
    waiting = asyncio.ensure_future(window.take())
    await asyncio.sleep(0)
    assert not waiting.done()  # another is being asked
    window.release(first)
    suspect = await waiting
    assert suspect is not None
    assert suspect.sequence == 3
    beside = asyncio.ensure_future(window.take())
    await asyncio.sleep(0)
    assert not beside.done()
    window.release(suspect)
    last = await beside
    assert last is not None
    assert last.sequence == 2


async def test_a_closed_window_gives_back_what_was_not_asked_and_wakes_who_waits() -> None:
    window = DeliveryWindow(8)
    window.put([a_delivery(1), a_delivery(2), a_delivery(3)])
    asked = await window.take()
    assert [each.sequence for each in window.close()] == [2, 3]
    assert await window.take() is None
    assert list(window.open_deliveries) == [asked]


@pytest.mark.parametrize(
    ("fault", "delivered", "expected"),
    [
        (FaultOrigin.MESSAGE, 1, Redeliver(1)),
        (FaultOrigin.MESSAGE, 2, Redeliver(2)),
        (FaultOrigin.MESSAGE, 3, "Refused"),
        (
            FaultOrigin.UNCLEAR,
            3,
            Redeliver(4),
        ),  # its neighbours may be at fault: it is asked once more, alone
        (FaultOrigin.UNCLEAR, 4, "Refused"),
        (FaultOrigin.SERVER, 3, Redeliver(4)),
        (FaultOrigin.SERVER, 12, Redeliver(30)),
    ],
)
def test_a_failure_is_tried_again_as_long_as_it_may_be_anothers(
    fault: FaultOrigin, delivered: int, expected: Redeliver | str
) -> None:
    what = judge_failure(fault, "no", delivered, 3)
    assert (what.reason if isinstance(what, DeadLetter) else what) == expected


def test_what_was_delivered_too_often_is_asked_alone_and_in_the_end_not_at_all() -> None:
    assert [is_suspect(count, 3) for count in (3, 4)] == [False, True]
    assert [is_unfinished(count, 3) for count in (103, 104)] == [False, True]
