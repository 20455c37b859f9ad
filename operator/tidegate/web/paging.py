"""Split a sequence into pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PAGE_SIZE: Final = 50
T = TypeVar("T")


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
