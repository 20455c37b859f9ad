"""Keep the rows of one kind sorted while objects change, worst first: a page costs only the rows that it shows."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.kube.typed_cache import TypedCache
from tidegate.reports.rows import ListRow, build_list_row
from tidegate.reports.state import ObjectState

PAGE_SIZE: Final = 50
_BATCH_SIZE: Final = 100
"""Rows to build before other tasks run: parsing an Inference takes about 0.1 ms."""

_MAX_ROWS_PER_READ: Final = 500
"""Rows that a read builds before it returns; if more objects have changed, the result is slightly stale."""

_SortKey: TypeAlias = tuple[int, str, str]
SortOrder: TypeAlias = Literal[
    "state",
    "-state",
    "name",
    "-name",
    "tier",
    "-tier",
    "pool",
    "-pool",
    "requests",
    "-requests",
    "p99",
    "-p99",
]
"""A column to sort rows by; with a minus the largest comes first. `state` has the worst first."""
SORT_ORDERS: Final[tuple[SortOrder, ...]] = get_args(SortOrder)
Measures: TypeAlias = Mapping[tuple[str, str], float]
"""Requests per second or p99, by namespace and name; absent where unknown."""
_NO_MEASURES: Final[Measures] = MappingProxyType({})
_TIERS: Final = {tier.value: number for number, tier in enumerate(Tier)}
T = TypeVar("T")
_FIRST_HEALTHY: Final = min(state.rank for state in ObjectState if state.healthy)
"""The badness from which on rows are healthy."""


class Plural(StrEnum):
    """Plural of a kind that the dashboard shows."""

    INFERENCES = "inferences"
    ACCESSES = "modelaccesses"
    FEATURES = "featurecomputes"
    POOLS = "computepools"
    OVERRIDES = "computeoverrides"
    DECISIONS = "allocationdecisions"


ENDPOINTS: Final[Mapping[str, str]] = {Plural.INFERENCES: "inference", Plural.FEATURES: "features"}
"""The prefix of a kind's Envoy clusters."""


@dataclass(frozen=True, slots=True)
class ItemPage(Generic[T]):
    """One page of a longer sequence."""

    items: Sequence[T]
    total: int
    """Items of all pages."""
    number: int
    """The number of this page, from 1."""
    pages: int


def select_page(items: Sequence[T], number: int, size: int = PAGE_SIZE) -> ItemPage[T]:
    """Return the page with that number, or the last page if the number is too high; `size` is at least 1."""
    pages = max(-(-len(items) // size), 1)
    number = min(max(number, 1), pages)
    return ItemPage(items[(number - 1) * size : number * size], len(items), number, pages)


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A query for rows, and for one page of them, counted from 1."""

    text: str = ""
    """Text in the namespace, the name, the reason, the detail or a label like team=ads; case-insensitive."""
    namespace: str = ""
    page: int = 1
    size: int = PAGE_SIZE
    order: SortOrder = "state"


@dataclass(frozen=True, slots=True)
class RowPage:
    """One page of a list."""

    rows: tuple[ListRow, ...]
    total: int
    """Rows of all pages."""
    not_well: int
    """Unhealthy rows of all pages."""
    number: int
    pages: int


class Listing:
    """The sorted rows of one cache. Parameters `within` are the namespaces that the user may list; None: all."""

    def __init__(self, catalogue: TypedCache[Any]) -> None:
        self._catalogue = catalogue
        self._rows: dict[ObjectKey, ListRow] = {}
        self._order: list[_SortKey] = []
        self._texts: dict[_SortKey, str] = {}
        """Lower-case text for searches, built once for each row instead of for each search."""
        self._counts: defaultdict[str, Counter[ObjectState]] = defaultdict(Counter)
        self._dirty: dict[ObjectKey, None] = dict.fromkeys(catalogue.store.keys())
        self._has_changes = asyncio.Event()
        catalogue.store.subscribe(self._mark_dirty)

    async def refresh_forever(self) -> None:
        """Build rows in batches as objects change, so that reads need not wait; a task of the process."""
        while True:
            await self._has_changes.wait()
            self._has_changes.clear()
            while self._dirty:
                self._refresh_rows(_BATCH_SIZE)
                await asyncio.sleep(0)

    @property
    def pending_rows(self) -> int:
        """Return the number of changed objects whose row is not built yet."""
        return len(self._dirty)

    def list_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces that have rows, sorted."""
        self._refresh_rows(_MAX_ROWS_PER_READ)
        return tuple(sorted(name for name, counts in self._counts.items() if counts.total()))

    def count_rows(self, within: Collection[str] | None = None) -> tuple[int, int]:
        """Return the number of rows, and of unhealthy rows."""
        self._refresh_rows(_MAX_ROWS_PER_READ)
        counts = [self._counts[name] for name in within] if within is not None else self._counts.values()
        total = sum(states.total() for states in counts)
        healthy = sum(states[state] for states in counts for state in ObjectState if state.healthy)
        return total, total - healthy

    def get_row(self, key: ObjectKey) -> ListRow | None:
        """Return the row of an object."""
        self._refresh_rows(_MAX_ROWS_PER_READ)
        return self._rows.get(key)

    def get_page(
        self,
        query: RowQuery,
        within: Collection[str] | None = None,
        measures: Measures = _NO_MEASURES,
    ) -> RowPage:
        """Return one page of the rows that match; the last page if the number is too high.

        Requests and p99 sort by `measures`; rows without a value come last.
        """
        self._refresh_rows(_MAX_ROWS_PER_READ)
        keys = self._select_keys(query, within)
        unhealthy = bisect_left(keys, (_FIRST_HEALTHY,))
        if query.order != "state":
            keys = self._sort_keys(keys, query.order, measures)
        selected = select_page(keys, query.page, query.size)
        rows = tuple(self._rows[ObjectKey(namespace, name)] for _, namespace, name in selected.items)
        return RowPage(rows, selected.total, unhealthy, selected.number, selected.pages)

    def _select_keys(self, query: RowQuery, within: Collection[str] | None) -> list[_SortKey]:
        keys = self._order
        if query.text:
            text = query.text.lower()
            # Few rows match: sorting them costs less than looking up the texts of all rows in order.
            keys = sorted(key for key, row_text in self._texts.items() if text in row_text)
        if within is not None:
            keys = [key for key in keys if not key[1] or key[1] in within]
        if query.namespace:
            # The namespace that a viewer has chosen stays in links, and ComputePools have none.
            keys = [key for key in keys if key[1] in {"", query.namespace}]
        return keys

    def _sort_keys(self, keys: list[_SortKey], order: SortOrder, measures: Measures) -> list[_SortKey]:
        """Return keys in another order than by state; equal ones stay in the order by state."""
        column, reverse = order.removeprefix("-"), order.startswith("-")
        match column:
            case "state":
                return keys[::-1]
            case "name":
                return sorted(keys, key=lambda key: (key[2], key[1]), reverse=reverse)
            case "tier":
                return sorted(keys, key=lambda key: _tier_rank(self._row_of(key)), reverse=reverse)
            case "pool":
                return sorted(keys, key=lambda key: self._row_of(key).pool, reverse=reverse)
            case _:
                return _sort_by_measure(keys, measures, reverse=reverse)

    def _row_of(self, key: _SortKey) -> ListRow:
        return self._rows[ObjectKey(key[1], key[2])]

    def _mark_dirty(self, key: ObjectKey) -> None:
        self._dirty[key] = None
        self._has_changes.set()

    def _refresh_rows(self, limit: int) -> None:
        for key in list(islice(self._dirty, limit)):
            del self._dirty[key]
            self._replace_row(key)

    def _replace_row(self, key: ObjectKey) -> None:
        old_row = self._rows.pop(key, None)
        if old_row is not None:
            sort_key = _sort_key(old_row)
            del self._order[bisect_left(self._order, sort_key)], self._texts[sort_key]
            self._counts[key.namespace][old_row.state] -= 1
        resource = self._catalogue.get(key)
        if resource is not None:
            self._rows[key] = row = build_list_row(resource)
            sort_key = _sort_key(row)
            insort(self._order, sort_key)
            labels = "\n".join(f"{name}={value}" for name, value in resource.metadata.labels.items())
            self._texts[sort_key] = (
                f"{row.namespace}/{row.name}\n{row.reason}\n{row.detail}\n{labels}".lower()
            )
            self._counts[key.namespace][row.state] += 1


def _sort_by_measure(keys: list[_SortKey], measures: Measures, *, reverse: bool) -> list[_SortKey]:
    """Return keys by their measures; those without one come last."""
    values = [measures.get(key[1:]) for key in keys]
    measured = [(value, key) for value, key in zip(values, keys, strict=True) if value is not None]
    if not measured:
        return keys
    measured.sort(key=lambda pair: pair[0], reverse=reverse)
    unmeasured = (key for value, key in zip(values, keys, strict=True) if value is None)
    return [*(key for _, key in measured), *unmeasured]


def _tier_rank(row: ListRow) -> int:
    """Return the place of the row's tier in the order of tiers; rows without one come last."""
    return _TIERS.get(row.tier, len(_TIERS))


def _sort_key(row: ListRow) -> _SortKey:
    return row.state.rank, row.namespace, row.name
