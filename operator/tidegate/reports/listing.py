"""Report objects of one kind as a table, and one change of an object as a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.errors import PermanentError
from tidegate.reports.orders import ListOrder
from tidegate.reports.report import Report, align_columns, format_name
from tidegate.reports.rows import ROWS, AnyRow, build_row
from tidegate.reports.status import format_age


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
        if self.items:
            yield from align_columns(self.table_rows(wide=wide))
        for reason in self.skipped:
            yield f"left out   {reason}"

    def empty_message(self) -> str:
        """Return that there is no such object, and where."""
        place = f" in namespace {self.namespace}" if self.namespace is not None else ""
        return "" if self.items else f"no {self.kind}{place}"

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


class FollowedRows:
    """The rows of one kind while its objects change."""

    def __init__(self, kind: str, order: ListOrder) -> None:
        self._kind, self._order = kind, order
        self._rows = dict[ObjectKey, AnyRow]()

    @property
    def sorted_rows(self) -> tuple[AnyRow, ...]:
        """Return the present rows in their order."""
        return sort_rows(self._rows.values(), self._order)

    def apply_changes(
        self, changed: Mapping[ObjectKey, Mapping[str, Any] | None]
    ) -> tuple[Sequence[ChangeReport], Sequence[str]]:
        """Take over the changed objects, None for a deleted one; return the changes of rows, and why objects are left out.

        The changes are in the order of the list. An object whose row stays the same is no change.
        """
        changes: list[tuple[ChangeType, AnyRow]] = []
        skipped: list[str] = []
        for key, body in changed.items():
            previous = self._rows.get(key)
            if body is None:
                if previous is not None:
                    del self._rows[key]
                    changes.append((ChangeType.DELETED, previous))
                continue
            try:
                row = build_row(ROWS[self._kind][0].parse(body))
            except PermanentError as error:
                skipped.append(f"{self._kind} {key} cannot be read by this version: {error}")
                continue
            if row != previous:
                self._rows[key] = row
                changes.append((ChangeType.ADDED if previous is None else ChangeType.MODIFIED, row))
        order = {
            id(row): place for place, row in enumerate(sort_rows((row for _, row in changes), self._order))
        }
        changes.sort(key=lambda change: order[id(change[1])])
        return [ChangeReport(type=type_, object=row) for type_, row in changes], skipped


class ChangeLines:
    """Lines of one growing table with one head, a line per change."""

    def __init__(self, kind: str, *, wide: bool, namespaced: bool) -> None:
        self._wide, self._namespaced = wide, namespaced
        self._widths = ColumnWidths()
        self._head = [column_titles(kind, wide=wide, namespaced=namespaced)]

    def render_lines(self, changes: Sequence[ChangeReport], now: datetime) -> Iterator[str]:
        """Yield a line per change, and the head before the first of them."""
        rows = [
            row_cells(change.object, now, wide=self._wide, namespaced=self._namespaced) for change in changes
        ]
        if not rows:
            return
        table, self._head = [*self._head, *rows], []
        suffixes = ["   (deleted)" if change.type is ChangeType.DELETED else "" for change in changes]
        self._widths.fit_rows(table)
        for row, suffix in zip(table, ["", *suffixes][-len(table) :], strict=True):
            yield f"{self._widths.format_line(row)}{suffix}"


def _creation_order(row: AnyRow) -> str:
    return row.made.isoformat() if row.made is not None else ""
