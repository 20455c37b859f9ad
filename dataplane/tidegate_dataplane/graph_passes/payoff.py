"""Judge whether a rewritten graph pays, at random requests and at those of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tidegate_dataplane.graph_passes.proof import mean_speedup
from tidegate_dataplane.graph_passes.samples import Request

MIN_SPEEDUP: Final = 0.97
"""A pass is left out if it is slower than this at any measured request."""
MIN_UNSHARED_SPEEDUP: Final = 0.9
"""The same for a graph that shares rows, at requests that have little to share: few rows, or rows that differ."""
MIN_SHARED_ROWS: Final = 8
"""Requests with fewer have little to share: what is computed once costs as much as the operations that repeat it."""
MAX_CLIENT_SHAPES: Final = 3
"""Shapes of clients' requests that are measured; each takes as long as one number of rows."""


@dataclass(frozen=True, slots=True)
class ClientSpeedup:
    """How many times faster a graph answers one request of a client."""

    rows: int
    ratio: float
    can_share: bool
    """Whether it has at least `MIN_SHARED_ROWS` rows, and equal ones of all shared inputs."""


def choose_requests(requests: Sequence[Request]) -> list[Request]:
    """Return one request of each of the most frequent shapes, the most frequent first; of equals, the first in `requests`."""
    shapes = [_describe_shape(request) for request in requests]
    first = dict(zip(reversed(shapes), reversed(requests), strict=True))
    return [first[shape] for shape, _ in Counter(shapes).most_common(MAX_CLIENT_SHAPES)]


def count_rows(request: Request) -> int:
    """Return the rows of a request; 1 if no input has any."""
    return max((len(array) for array in request.values() if array.ndim), default=1)


def has_equal_rows(request: Request, names: Sequence[str]) -> bool:
    """Return whether each of the named inputs has the same values in all of its rows."""
    arrays = [array for name, array in request.items() if name in names and array.ndim]
    return all(bool(np.all(array == array[:1])) for array in arrays)


def explain_slowness(
    speedups: Mapping[int, float], clients: Sequence[ClientSpeedup] = (), *, shares_rows: bool = False
) -> str:
    """Return why a graph with these speed-ups is not used; empty if it pays.

    `speedups` are those of random requests, by rows. With `shares_rows`, a request that has little to share is none to be
    faster at.
    """
    judged = {
        rows: ratio for rows, ratio in speedups.items() if rows >= MIN_SHARED_ROWS or not shares_rows
    } or speedups
    for rows, ratio in sorted(speedups.items(), key=lambda entry: entry[1]):
        if ratio < (MIN_SPEEDUP if rows in judged else MIN_UNSHARED_SPEEDUP):
            return f"slower at {rows} rows: {ratio:.2f}x"
    ratios = list(judged.values())
    for client in clients:
        is_judged = client.can_share or not shares_rows
        if client.ratio < (MIN_SPEEDUP if is_judged else MIN_UNSHARED_SPEEDUP):
            return f"slower at a client's request of {client.rows} rows: {client.ratio:.2f}x"
        ratios.extend([client.ratio] if is_judged else [])
    mean = mean_speedup(ratios)
    return "" if mean > 1.0 else f"no faster: {mean:.2f}x"


def explain_unshared_slowness(ratio: float) -> str:
    """Return why a graph that shares rows is not used, from its speed-up where they differ; empty if it is fast enough."""
    return (
        f"slower where the rows of shared inputs differ: {ratio:.2f}x" if ratio < MIN_UNSHARED_SPEEDUP else ""
    )


def _describe_shape(request: Request) -> Hashable:
    return tuple(sorted((name, array.shape) for name, array in request.items()))
