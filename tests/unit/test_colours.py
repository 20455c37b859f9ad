"""Colours of states on a terminal."""

from __future__ import annotations

import pytest

from tidegate.api.messages.message import MessageLevel
from tidegate.cli.colours import _COLOURS, colour_states, uses_colours
from tidegate.reports.state import ObjectState

RED, GREEN, RESET = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@pytest.mark.parametrize(
    ("environment", "terminal", "coloured"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm"}, False, False),
    ],
)
def test_only_a_terminal_shows_colours(environment: dict[str, str], terminal: bool, coloured: bool) -> None:
    assert uses_colours(environment, terminal=terminal) is coloured


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ctr   Ready   2/2", f"ctr   {GREEN}Ready{RESET}   2/2"),
        ("Inference ads/ctr: Ready since 2026", f"Inference ads/ctr: {GREEN}Ready{RESET} since 2026"),
        ("Error    TG1202 Inference", f"{RED}Error{RESET}    TG1202 Inference"),
        ("ctr   Stalled", f"ctr   {RED}Stalled{RESET}"),
        ("unhealthy  Ready False", "unhealthy  Ready False"),
        ("NAME   READY", "NAME   READY"),
        ("it is Ready   now", "it is Ready   now"),
        ("NotReadyYet   x", "NotReadyYet   x"),
    ],
)
def test_only_whole_cells_are_coloured(line: str, expected: str) -> None:
    assert colour_states(line) == expected


def test_every_state_and_level_that_is_not_normal_has_a_colour() -> None:
    assert {*map(str, ObjectState), *map(str, MessageLevel)} - set(_COLOURS) == {MessageLevel.INFO.value}
