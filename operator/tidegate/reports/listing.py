"""Many objects of one kind, as a table; and one change of one of them, as a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, columns, named
from tidegate.reports.rows import ROWS, AnyRow
from tidegate.reports.status import age


class Sort(StrEnum):
    """What a list is sorted by."""

    NAME = "name"
    STATE = "state"
    """The worst first; decisions and overrides have none, and go by name."""
    AGE = "age"
    """The newest first."""


class ListReport(Report):
    """Objects of one kind."""

    kind: str
    namespace: str | None
    """Absent: all of them, or the kind has none."""
    at: datetime
    items: tuple[AnyRow, ...]
    skipped: tuple[str, ...]
    """What could not be read, and why."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """A table; the namespace is in it where there may be several."""
        if not self.items:
            place = f" in namespace {self.namespace}" if self.namespace is not None else ""
            yield f"no {self.kind}{place}"
        else:
            yield from columns(self.table(wide=wide))
        for each in self.skipped:
            yield f"left out   {each}"

    def names(self) -> Iterator[str]:
        """Those of all."""
        return (named(self.kind, each.name) for each in self.items)

    def table(self, *, wide: bool) -> list[list[str]]:
        """The head, and a row for each."""
        namespaced = self.namespace is None
        return [
            head(self.kind, wide=wide, namespaced=namespaced),
            *(cells(each, self.at, wide=wide, namespaced=namespaced) for each in self.items),
        ]


class ChangeType(StrEnum):
    """What happened to an object."""

    ADDED = "Added"
    """It is new, or was there when the watch began."""
    MODIFIED = "Modified"
    DELETED = "Deleted"


class ChangeReport(ApiModel):
    """One change of one object; what happened several times within a moment is one."""

    type: ChangeType
    object: AnyRow


def listed(rows: Iterable[AnyRow], by: Sort) -> tuple[AnyRow, ...]:
    """In that order, and by namespace and name among equals."""
    named_ = sorted(rows, key=lambda each: (each.namespace or "", each.name))
    if by is Sort.STATE:
        return tuple(sorted(named_, key=lambda each: each.badness))
    if by is Sort.AGE:
        return tuple(sorted(named_, key=lambda each: _made(each), reverse=True))
    return tuple(named_)


def head(kind: str, *, wide: bool, namespaced: bool) -> list[str]:
    """The titles of the columns. `namespaced`: with that of the namespace."""
    row = ROWS[kind][1]
    return [*(["NAMESPACE"] if namespaced else []), "NAME", *row.HEAD, "AGE", *(row.WIDE if wide else ())]


def cells(row: AnyRow, at: datetime, *, wide: bool, namespaced: bool) -> list[str]:
    """What is below them for one object."""
    old = "-" if row.made is None else age(at - row.made)
    place = [row.namespace or "-"] if namespaced else []
    return [*place, row.name, *row.cells(), old, *(row.wide_cells() if wide else ())]


class Widths:
    """Keeps the cells of lines below each other that are written one after the other; a column never gets narrower."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def fit(self, rows: Sequence[Sequence[str]]) -> None:
        """Makes room for these."""
        for row in rows:
            known = [*self._widths, *([0] * (len(row) - len(self._widths)))]
            self._widths = [max(width, len(cell)) for width, cell in zip(known, row, strict=True)]

    def line(self, row: Sequence[str]) -> str:
        """The row as a line."""
        self.fit([row])
        return "   ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths, strict=True)).rstrip()


def _made(row: AnyRow) -> str:
    return row.made.isoformat() if row.made is not None else ""
