"""Report objects of one kind as a table, and one change of an object as a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from tidegate.api.meta import ApiModel
from tidegate.reports.get_rows import ROWS, AnyRow
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.reports.status import format_age


class ListOrder(StrEnum):
    """The order of a list."""

    NAME = "name"
    STATE = "state"
    """The worst first; decisions and overrides have no state and are sorted by name."""
    AGE = "age"
    """The newest first."""


class ListReport(Report):
    """Objects of one kind."""

    kind: str
    namespace: str | None
    """Absent if the list has all namespaces, or the kind has none."""
    at: datetime
    items: tuple[AnyRow, ...]
    skipped: tuple[str, ...]
    """What could not be read, and why."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a table, with the namespace where there may be several."""
        if not self.items:
            place = f" in namespace {self.namespace}" if self.namespace is not None else ""
            yield f"no {self.kind}{place}"
        else:
            yield from align_columns(self.table_rows(wide=wide))
        for reason in self.skipped:
            yield f"left out   {reason}"

    def object_names(self) -> Iterator[str]:
        """Yield the objects' names."""
        return (format_name(self.kind, row.name) for row in self.items)

    def table_rows(self, *, wide: bool) -> list[list[str]]:
        """Return the head and one row per object."""
        namespaced = self.namespace is None
        return [
            column_titles(self.kind, wide=wide, namespaced=namespaced),
            *(row_cells(row, self.at, wide=wide, namespaced=namespaced) for row in self.items),
        ]


class ChangeType(StrEnum):
    """The change of an object."""

    ADDED = "Added"
    """It is new, or existed when the watch began."""
    MODIFIED = "Modified"
    DELETED = "Deleted"


class ChangeReport(ApiModel):
    """One change of one object; several changes within a moment count as one."""

    type: ChangeType
    object: AnyRow


def sort_rows(rows: Iterable[AnyRow], order: ListOrder) -> tuple[AnyRow, ...]:
    """Sort the rows in that order, and equal ones by namespace and name."""
    by_name = sorted(rows, key=lambda row: (row.namespace or "", row.name))
    if order is ListOrder.STATE:
        return tuple(sorted(by_name, key=lambda row: row.rank))
    if order is ListOrder.AGE:
        return tuple(sorted(by_name, key=lambda row: _creation_order(row), reverse=True))
    return tuple(by_name)


def column_titles(kind: str, *, wide: bool, namespaced: bool) -> list[str]:
    """Return the titles of the columns; `namespaced` adds the namespace."""
    row = ROWS[kind][1]
    return [*(["NAMESPACE"] if namespaced else []), "NAME", *row.HEAD, "AGE", *(row.WIDE if wide else ())]


def row_cells(row: AnyRow, now: datetime, *, wide: bool, namespaced: bool) -> list[str]:
    """Return the cells of one row under these titles."""
    age_text = "-" if row.made is None else format_age(now - row.made)
    namespace_cells = [row.namespace or "-"] if namespaced else []
    return [*namespace_cells, row.name, *row.cells(), age_text, *(row.wide_cells() if wide else ())]


class ColumnWidths:
    """The column widths of lines that are written one after the other; a column never gets narrower."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def fit_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Widen the columns to fit these rows."""
        for row in rows:
            widths = [*self._widths, *([0] * (len(row) - len(self._widths)))]
            self._widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]

    def format_line(self, row: Sequence[str]) -> str:
        """Format the row as a line."""
        self.fit_rows([row])
        return "   ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths, strict=True)).rstrip()


def _creation_order(row: AnyRow) -> str:
    return row.made.isoformat() if row.made is not None else ""
