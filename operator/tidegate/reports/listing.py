"""Report objects of one kind as a table, and one change of an object as a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, columns, named
from tidegate.reports.rows import ROWS, AnyRow
from tidegate.reports.status import age


class Sort(StrEnum):
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

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a table, with the namespace where there may be several."""
        if not self.items:
            place = f" in namespace {self.namespace}" if self.namespace is not None else ""
            yield f"no {self.kind}{place}"
        else:
            yield from columns(self.table(wide=wide))
        for reason in self.skipped:
            yield f"left out   {reason}"

    def names(self) -> Iterator[str]:
        """Yield the objects' names."""
        return (named(self.kind, row.name) for row in self.items)

    def table(self, *, wide: bool) -> list[list[str]]:
        """Return the head and one row per object."""
        namespaced = self.namespace is None
        return [
            head(self.kind, wide=wide, namespaced=namespaced),
            *(cells(row, self.at, wide=wide, namespaced=namespaced) for row in self.items),
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


def listed(rows: Iterable[AnyRow], by: Sort) -> tuple[AnyRow, ...]:
    """Sort the rows in that order, and equal ones by namespace and name."""
    by_name = sorted(rows, key=lambda row: (row.namespace or "", row.name))
    if by is Sort.STATE:
        return tuple(sorted(by_name, key=lambda row: row.badness))
    if by is Sort.AGE:
        return tuple(sorted(by_name, key=lambda row: _made(row), reverse=True))
    return tuple(by_name)


def head(kind: str, *, wide: bool, namespaced: bool) -> list[str]:
    """Return the titles of the columns; `namespaced` adds the namespace."""
    row = ROWS[kind][1]
    return [*(["NAMESPACE"] if namespaced else []), "NAME", *row.HEAD, "AGE", *(row.WIDE if wide else ())]


def cells(row: AnyRow, at: datetime, *, wide: bool, namespaced: bool) -> list[str]:
    """Return the cells of one row under these titles."""
    age_text = "-" if row.made is None else age(at - row.made)
    namespace_cells = [row.namespace or "-"] if namespaced else []
    return [*namespace_cells, row.name, *row.cells(), age_text, *(row.wide_cells() if wide else ())]


class Widths:
    """The column widths of lines that are written one after the other; a column never gets narrower."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def fit(self, rows: Sequence[Sequence[str]]) -> None:
        """Widen the columns to fit these rows."""
        for row in rows:
            widths = [*self._widths, *([0] * (len(row) - len(self._widths)))]
            self._widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]

    def line(self, row: Sequence[str]) -> str:
        """Format the row as a line."""
        self.fit([row])
        return "   ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths, strict=True)).rstrip()


def _made(row: AnyRow) -> str:
    return row.made.isoformat() if row.made is not None else ""
