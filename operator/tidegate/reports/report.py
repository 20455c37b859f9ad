"""What every report can do, and columns of text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.api.meta import GROUP, ApiModel


class Report(ApiModel):
    """One answer: its fields are what JSON and YAML have, all of them always there."""

    def serialised(self) -> dict[str, Any]:
        """As JSON spells it: camelCase, null for what is absent, times as RFC 3339."""
        return self.model_dump(mode="json", by_alias=True)

    @abstractmethod
    def lines(self, *, wide: bool) -> Iterator[str]:
        """As text."""

    @abstractmethod
    def names(self) -> Iterator[str]:
        """The objects that it is about, as kubectl takes them."""


def named(kind: str, name: str) -> str:
    """An object of ours as `kubectl … -o name` has it."""
    return f"{kind.lower()}.{GROUP}/{name}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows with their cells below each other; nothing is cut, so that what is found by grep is whole."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
