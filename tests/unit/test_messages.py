"""The catalogue of messages: every code once, for ever the same, and a page for each."""

from __future__ import annotations

import re
from pathlib import Path

from fixtures.golden import CheckGolden
from tidegate.api.messages.catalogue import PROBLEM_MESSAGES, REASON_MESSAGES, messages_by_name
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.messages.message import NO_ACTION, MessageLevel
from tidegate.api.reasons import Reason

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "messages.txt"


def test_every_reason_and_problem_has_a_message_of_its_own() -> None:
    assert (set(REASON_MESSAGES), set(PROBLEM_MESSAGES)) == (set(Reason), set(ProblemReason))
    codes = [message.code for message in messages_by_name().values()]
    assert len(codes) == len(set(codes)) == len(REASON_MESSAGES) + len(PROBLEM_MESSAGES)
    assert all(re.fullmatch("TG[1-9][0-9]{3}", code) for code in codes)


def test_a_code_never_changes_its_meaning(check_golden: CheckGolden) -> None:
    rows = sorted(f"{message.code} {name}" for name, message in messages_by_name().items())
    check_golden(GOLDEN, "\n".join(rows) + "\n")


def test_no_message_names_an_object_of_one_release() -> None:
    """Objects of the chart are called after the release, which is not always `tidegate`."""
    for name, message in messages_by_name().items():
        assert not re.search(r"tidegate-(gateway|xds|web|controllers|realtime)", message.what_to_do), name


def test_the_advice_about_served_names_does_not_change_an_existing_one() -> None:
    """The API server refuses that change."""
    advice = REASON_MESSAGES[Reason.SERVED_NAME_MISMATCH].what_to_do
    assert advice.startswith("Create another Inference")


def test_a_message_says_what_to_do_unless_nothing_is_wrong() -> None:
    for name, message in messages_by_name().items():
        assert message.meaning.endswith("."), name
        assert message.what_to_do.endswith("."), name
        assert message.what_to_do != NO_ACTION or message.level is MessageLevel.INFO, name
