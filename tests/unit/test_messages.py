"""The catalogue of messages: every code once, for ever the same, and a page for each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures.golden import CheckGolden
from tidegate.api.messages.catalogue import OF_PROBLEMS, OF_REASONS, by_name
from tidegate.api.messages.message import NOTHING, Level
from tidegate.api.messages.problem import Problem
from tidegate.api.reasons import Reason
from tidegate.reference.messages import message_pages, reasons_page

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "messages.txt"


def test_every_reason_and_problem_has_a_message_of_its_own() -> None:
    assert (set(OF_REASONS), set(OF_PROBLEMS)) == (set(Reason), set(Problem))
    codes = [message.code for message in by_name().values()]
    assert len(codes) == len(set(codes)) == len(OF_REASONS) + len(OF_PROBLEMS)
    assert all(re.fullmatch("TG[1-9][0-9]{3}", code) for code in codes)


def test_a_code_never_changes_its_meaning(check_golden: CheckGolden) -> None:
    rows = sorted(f"{message.code} {name}" for name, message in by_name().items())
    check_golden(GOLDEN, "\n".join(rows) + "\n")


@pytest.mark.parametrize("name", by_name())
def test_a_message_says_what_to_do_unless_nothing_is_wrong(name: str) -> None:
    message = by_name()[name]
    assert message.meaning.endswith(".")
    assert message.what_to_do.endswith(".")
    if message.what_to_do == NOTHING:
        assert message.level is Level.INFO


def test_each_code_has_a_page_and_a_row_that_leads_there() -> None:
    pages, table = message_pages(), reasons_page()
    for name, message in by_name().items():
        assert f"# {message.code}: {name}\n" in pages[f"{message.code}.md"]
        assert f"| `{name}` | [{message.code}](messages/{message.code}.md) |" in table
