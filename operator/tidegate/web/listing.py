"""The rows of one kind, worst first: kept in order as objects change, so that a page costs what it shows."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.reports.state import State
from tidegate.web.paging import PAGE_SIZE, page_of
from tidegate.web.rows import Row

_AT_ONCE: Final = 100
"""Rows made before anybody else has a turn: an Inference takes about 0.1 ms to parse."""

_WAITED_FOR: Final = 500
"""Rows that somebody who asks waits for; where more have changed at once, what is shown is a little late."""

_Place: TypeAlias = tuple[int, str, str]
_WELL: Final = min(state.badness for state in State if state.as_it_should_be)
"""From here on, in the order of a list, things are as they should be."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows, and which page of them, from 1."""

    text: str = ""
    """Must be in the namespace, the name, the reason or the detail; case does not count."""
    namespace: str = ""
    page: int = 1
    size: int = PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    rows: tuple[Row, ...]
    total: int
    """Rows of all pages."""
    not_well: int
    """Of those: how many are not as they should be."""
    number: int
    pages: int


class Listing:
    """Follows one catalogue. `within` below are the namespaces that may be seen; None: all."""

    def __init__(self, catalogue: Parsed[Any], row: Callable[[Any], Row]) -> None:
        self._catalogue = catalogue
        self._row = row
        self._rows: dict[ObjectKey, Row] = {}
        self._order: list[_Place] = []
        self._texts: dict[_Place, str] = {}
        """What is searched, in lower case: made once for each row, and not for each search."""
        self._counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
        self._dirty: dict[ObjectKey, None] = dict.fromkeys(catalogue.store.keys())
        self._woken = asyncio.Event()
        catalogue.store.subscribe(self._changed)

    async def keep(self) -> None:
        """Makes rows as objects change, some at a time, so that nobody who asks has to wait for it; a task of the process."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._dirty:
                self._refresh(_AT_ONCE)
                await asyncio.sleep(0)

    @property
    def waiting(self) -> int:
        """Objects that have changed and have no new row yet."""
        return len(self._dirty)

    def namespaces(self) -> tuple[str, ...]:
        """Those that have rows, in order."""
        self._refresh(_WAITED_FOR)
        return tuple(sorted(name for name, counts in self._counts.items() if counts.total()))

    def count(self, within: Collection[str] | None = None) -> tuple[int, int]:
        """How many there are, and how many of them are not as they should be."""
        self._refresh(_WAITED_FOR)
        counts = [self._counts[name] for name in within] if within is not None else self._counts.values()
        total = sum(each.total() for each in counts)
        return total, total - sum(each[state] for each in counts for state in State if state.as_it_should_be)

    def row(self, key: ObjectKey) -> Row | None:
        """One row."""
        self._refresh(_WAITED_FOR)
        return self._rows.get(key)

    def page(self, asked: Asked, within: Collection[str] | None = None) -> Page:
        """The rows that are asked for; the last page for one beyond it."""
        self._refresh(_WAITED_FOR)
        found = self._found(asked, within)
        bad = bisect_left(found, (_WELL,))
        paged = page_of(found, asked.page, asked.size)
        rows = tuple(self._rows[ObjectKey(namespace, name)] for _, namespace, name in paged.items)
        return Page(rows, paged.total, bad, paged.number, paged.pages)

    def _found(self, asked: Asked, within: Collection[str] | None) -> list[_Place]:
        found = self._order
        if asked.text:
            text = asked.text.lower()
            # Few are found: to put them in order costs less than to look up the words of all.
            found = sorted(place for place, words in self._texts.items() if text in words)
        if within is not None:
            found = [place for place in found if not place[1] or place[1] in within]
        if asked.namespace:
            found = [place for place in found if place[1] == asked.namespace]
        return found

    def _changed(self, key: ObjectKey) -> None:
        self._dirty[key] = None
        self._woken.set()

    def _refresh(self, most: int) -> None:
        for key in _first(self._dirty, most):
            del self._dirty[key]
            self._put(key)

    def _put(self, key: ObjectKey) -> None:
        before = self._rows.pop(key, None)
        if before is not None:
            place = _place(before)
            del self._order[bisect_left(self._order, place)], self._texts[place]
            self._counts[key.namespace][before.state] -= 1
        one = self._catalogue.get(key)
        if one is not None:
            self._rows[key] = row = self._row(one)
            place = _place(row)
            insort(self._order, place)
            self._texts[place] = f"{row.namespace}/{row.name}\n{row.reason}\n{row.detail}".lower()
            self._counts[key.namespace][row.state] += 1


def _place(row: Row) -> _Place:
    return row.state.badness, row.namespace, row.name


def _first(keys: Iterable[ObjectKey], most: int) -> list[ObjectKey]:
    return [key for key, _ in zip(keys, range(most), strict=False)]
