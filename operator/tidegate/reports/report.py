"""Define the interface of reports, and format columns of text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.api.meta import GROUP, ApiModel


class Report(ApiModel):
    """One answer: JSON and YAML contain all of its fields, always."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON: camelCase, null for absent fields, times as RFC 3339."""
        return self.model_dump(mode="json", by_alias=True)

    @abstractmethod
    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the report as lines of text."""

    def empty_message(self) -> str:
        """Return what to write to stderr instead of a table without rows; empty if there are rows."""
        return ""

    @abstractmethod
    def object_names(self) -> Iterator[str]:
        """Yield the objects of the report, as kubectl takes them."""


class VersionReport(Report):
    """The version of the command line."""

    version: str

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the version alone."""
        yield self.version

    def object_names(self) -> Iterator[str]:
        """Yield nothing: a version has no objects."""
        return iter(())


def format_name(kind: str, name: str) -> str:
    """Format an object of ours as `kubectl … -o name` does."""
    return f"{kind.lower()}.{GROUP}/{name}"


def format_count(count: int | None) -> str:
    """Format a number; `-` if it is unknown."""
    return "-" if count is None else str(count)


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned cells; no cell is cut, so that grep finds whole values."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
