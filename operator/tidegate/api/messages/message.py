"""What one message of the catalogue has."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NOTHING: Final = "Nothing."


class Level(StrEnum):
    """How much it matters; the names are those of `--fail-on`."""

    INFO = "Info"
    """As it is meant to be, or on its way there."""
    WARNING = "Warning"
    """It may pass by itself, or somebody has to look at it before long."""
    ERROR = "Error"
    """It stays until somebody does something."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its code never changes its meaning, and is not used again when it is gone."""

    code: str
    """TG and four digits; the first two say of what."""
    level: Level
    meaning: str
    what_to_do: str
