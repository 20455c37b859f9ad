"""Colour the states and levels in tables on a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import typer

_COLOURS: Final = {
    "Stalled": typer.colors.RED,
    "NotReady": typer.colors.RED,
    "Error": typer.colors.RED,
    "NACKED": typer.colors.RED,
    "Degraded": typer.colors.YELLOW,
    "Deleting": typer.colors.YELLOW,
    "Warning": typer.colors.YELLOW,
    "STALE": typer.colors.YELLOW,
    "Progressing": typer.colors.CYAN,
    "Releasing": typer.colors.CYAN,
    "Ready": typer.colors.GREEN,
    "SYNCED": typer.colors.GREEN,
}
"""Colours by the values of ObjectState and MessageLevel, and by the states of proxies."""
# Only whole cells: the same words also occur within messages and as types of conditions.
_CELL: Final = re.compile(rf"(^|  |: )({'|'.join(_COLOURS)})(?=  |$| since )")


def uses_colours(environment: Mapping[str, str], *, terminal: bool) -> bool:
    """Return whether output may have colours: on a terminal that shows them, unless $NO_COLOR is set."""
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def colour_states(line: str) -> str:
    """Return a line of a table with the escape sequences that colour its states."""
    return _CELL.sub(lambda match: match[1] + typer.style(match[2], fg=_COLOURS[match[2]]), line)
