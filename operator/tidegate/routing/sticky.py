"""The assignment of users to the targets of a sticky route: intervals on one line.

A user is a fixed point on the line (Envoy's hash of a header, modulo `LINE_LENGTH`); a target is the interval as long as its share.
The length of the line and the order of the targets never change, so a change of weights moves boundaries:
exactly the users between the old boundary and the new one change, all of them in one direction.
Without a memory of earlier weights no layout can do that for every pair of three targets (ADR 18).
So the order is predictable for users: by name, with numbers in a name compared by value.

A target without a pod lends its interval to the others, by their weights; no other users move, and its users return with its pods.
A candidate of a release borrows no interval: without another target, the interval stays with the target without a pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

LINE_LENGTH: Final = 1_000_000_000
"""Much more than the largest sum of weights (16 targets of 1,000,000), so that the smallest weight has users too."""

_NUMBER: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class StickyShare:
    """The weight of one target, whether it has a pod, and whether it may borrow from a target without one."""

    name: str
    weight: int
    has_pods: bool
    may_borrow: bool = True


@dataclass(frozen=True, slots=True)
class StickyInterval:
    """Consecutive points that belong to one target."""

    name: str
    length: int


def divide_line(shares: Sequence[StickyShare]) -> tuple[StickyInterval, ...]:
    """Divide the line between the targets, in order; at least one share must have a pod and a weight."""
    ordered = sorted(shares, key=lambda share: _natural_sort_key(share.name))
    takers = [share for share in ordered if share.has_pods and share.may_borrow and share.weight]
    pieces: list[StickyInterval] = []
    for share, length in _split_by_weight(LINE_LENGTH, ordered):
        owners = [share] if share.has_pods else takers or [share]
        pieces += [StickyInterval(owner.name, part) for owner, part in _split_by_weight(length, owners)]
    return tuple(_join_neighbours(piece for piece in pieces if piece.length))


def _natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts v9 before v10."""
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in _NUMBER.split(name) if part
    ] + [(-1, 0, name)]


def _split_by_weight(length: int, shares: Sequence[StickyShare]) -> Iterator[tuple[StickyShare, int]]:
    """Split `length` by weight.

    Each boundary is rounded separately, so that it moves only when its share of the line does.
    """
    total = sum(share.weight for share in shares)
    ends = [length * up_to // total if total else 0 for up_to in accumulate(share.weight for share in shares)]
    for share, begin, end in zip(shares, [0, *ends], ends, strict=False):
        yield share, end - begin


def _join_neighbours(pieces: Iterator[StickyInterval]) -> Iterator[StickyInterval]:
    for name, run in groupby(pieces, key=lambda piece: piece.name):
        yield StickyInterval(name, sum(piece.length for piece in run))
