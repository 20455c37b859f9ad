"""A message of the catalogue, and its level."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NO_ACTION: Final = "Nothing."


class MessageLevel(StrEnum):
    """Importance of a message; `--fail-on` uses the same names."""

    INFO = "Info"
    """As intended, or in progress."""
    WARNING = "Warning"
    """May clear by itself, or needs attention soon."""
    ERROR = "Error"
    """Stays until a person acts."""


@dataclass(frozen=True, slots=True)
class CatalogueMessage:
    """A message; its code never changes its meaning, and is not reused after a removal."""

    code: str
    """TG and four digits; the first two are the topic."""
    level: MessageLevel
    meaning: str
    what_to_do: str
