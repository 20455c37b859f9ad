"""When the ingester waits for the target of its dead letters, when it gives letters up, and which events are letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.letter import LetterContent, list_forms
from tidegate_dataplane.contract import DeadLetterCounts, EventDeadLetters, RefusalReason
from tidegate_dataplane.ingester import dead_letters
from tidegate_dataplane.ingester.broker import EventMessage
from tidegate_dataplane.ingester.dead_letters import DeadLetterWriter
from tidegate_dataplane.ingester.transaction import RefusedMessage

ORDER = EventDeadLetters(source="clicks", target="dead", reasons=(RefusalReason.MALFORMED,))
MISSING = BrokerError("there is no topic dead", refused=True)
AWAY = BrokerError("it is away", refused=False)


class ScriptedTarget:
    """Fails as often as the test says, and then takes everything."""

    def __init__(
        self, *, openings: Sequence[Exception] = (), writes: Sequence[Exception | None] = ()
    ) -> None:
        self.openings = list(openings)
        self.writes = list(writes)
        self.written: list[int] = []

    async def open_target(self) -> None:
        if self.openings:
            raise self.openings.pop(0)

    async def publish_letter(self, refused: RefusedMessage) -> None:
        error = self.writes.pop(0) if self.writes else None
        if error is not None:
            raise error
        self.written.append(refused.message.position)

    async def close_target(self) -> None:
        pass


def refused(position: int, reason: RefusalReason = RefusalReason.MALFORMED, **changes: Any) -> RefusedMessage:
    message = EventMessage("0", position, changes.pop("arrived_s", 1_000.0), b"{")
    return RefusedMessage(message, reason, "it is no JSON", "", changes.pop("is_aged", False))


async def stream_answers() -> None:
    """The stream can be read."""


async def stream_is_away() -> None:
    raise AWAY


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAUSE_S", 0.0)


async def test_only_the_reasons_of_the_order_are_letters_and_no_event_that_was_read_late() -> None:
    target = ScriptedTarget()
    writer = DeadLetterWriter(ORDER, target, hold_s=0)
    items = [
        refused(1),
        refused(2, RefusalReason.TOO_LATE),
        refused(3, is_aged=True),
        refused(4, arrived_s=499.0),
        refused(5, arrived_s=500.0),
    ]
    assert await writer.write_letters(items, 500.0, stream_answers) == DeadLetterCounts(written=2)
    assert target.written == [1, 5]


async def test_a_target_that_comes_back_gets_the_letters_that_it_has_not() -> None:
    target = ScriptedTarget(openings=[MISSING, MISSING], writes=[None, MISSING, None])
    writer = DeadLetterWriter(ORDER, target, hold_s=3_600)
    counts = await writer.write_letters([refused(1), refused(2), refused(3)], 0, stream_answers)
    assert counts == DeadLetterCounts(written=3)
    assert sorted(target.written) == [1, 2, 3]
    assert (writer.message, writer.failing_s) == ("", 0.0)


async def test_a_target_that_stays_away_is_given_up_and_is_not_asked_for_each_letter() -> None:
    target = ScriptedTarget(openings=[MISSING] * 10)
    writer = DeadLetterWriter(ORDER, target, hold_s=0)
    for position in (1, 2, 3):
        counts = await writer.write_letters([refused(position)], 0, stream_answers)
        assert counts == DeadLetterCounts(failed=1)
    assert len(target.openings) == 9
    assert writer.message == MISSING.message


@pytest.mark.parametrize("hold_s", [0, 3_600])
async def test_a_broker_that_is_away_as_a_whole_fails_no_letter(hold_s: float) -> None:
    target = ScriptedTarget(writes=[AWAY])
    writer = DeadLetterWriter(ORDER, target, hold_s=hold_s)
    with pytest.raises(BrokerError, match="it is away"):
        await writer.write_letters([refused(1)], 0, stream_is_away)
    assert await writer.write_letters([refused(1)], 0, stream_answers) == DeadLetterCounts(written=1)


async def test_letters_of_a_transaction_that_the_store_refused_are_not_written_again() -> None:
    target = ScriptedTarget()
    writer = DeadLetterWriter(ORDER, target, hold_s=0)
    for _ in range(3):
        counts = await writer.write_letters([refused(1), refused(2)], 0, stream_answers)
        assert counts == DeadLetterCounts(written=2)
    assert target.written == [1, 2]

    writer.confirm_commit()
    await writer.write_letters([refused(1)], 0, stream_answers)
    assert target.written == [1, 2, 1]


async def test_a_letter_that_crashes_the_client_is_counted_and_holds_nothing_up() -> None:
    target = ScriptedTarget(writes=[KeyError("x")])
    writer = DeadLetterWriter(ORDER, target, hold_s=0)
    assert await writer.write_letters([refused(1)], 0, stream_answers) == DeadLetterCounts(failed=1)
    assert writer.message == "a dead letter cannot be sent: KeyError"


async def test_a_target_that_crashes_the_client_is_named_and_holds_nothing_up() -> None:
    writer = DeadLetterWriter(ORDER, ScriptedTarget(openings=[KeyError("x")] * 2), hold_s=0)
    await writer.check_target(is_busy=False)
    assert "opening the dead letters fails with KeyError" in writer.message
    assert await writer.write_letters([refused(1)], 0, stream_answers) == DeadLetterCounts(failed=1)


def test_the_forms_of_a_letter_lose_the_senders_headers_first_and_then_halves_of_the_body() -> None:
    content = LetterContent(b"x" * 3_000, {"trace": "t"}, {"Tidegate-Reason": "Malformed"})
    forms = [(len(form.body), sorted(form.headers)) for form in list_forms(content, can_cut=True)]
    assert forms == [
        (3_000, ["Tidegate-Reason", "trace"]),
        (3_000, ["Tidegate-Reason"]),
        (1_500, ["Tidegate-Body-Bytes", "Tidegate-Reason"]),
        (1_024, ["Tidegate-Body-Bytes", "Tidegate-Reason"]),
    ]
    assert len(list(list_forms(content, can_cut=False))) == 2
