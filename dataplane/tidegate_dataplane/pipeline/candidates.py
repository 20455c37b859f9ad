"""The rows of a request that a part with a cut gets: those with the highest output of an earlier part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tidegate_dataplane.contract import CandidateCut, TensorSpec
from tidegate_dataplane.pipeline.wire import NUMPY_TYPES, Array, Arrays


class SelectedRows(Mapping[str, Array]):
    """Some rows of a request's tensors, each copied once, when it is first read."""

    def __init__(self, source: Arrays, rows: Array) -> None:
        self._source = source
        self._rows = rows
        self._copies: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        copy = self._copies.get(name)
        if copy is None:
            copy = self._copies[name] = self._source[name][self._rows]
        return copy

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates of one request: `limit` of the positions of its rows, which `ranking` has by score, the highest first."""

    ranking: Array
    limit: int

    @property
    def rows(self) -> Array:
        """Return the positions of the candidates in the order of the rows."""
        return np.sort(self.ranking[: self.limit])

    def spread_answer(self, answer: Array, spec: TensorSpec, filler: str) -> Array:
        """Return the candidates' output for all rows of the request; the others get `filler`."""
        rows = len(self.ranking)
        if rows <= self.limit:
            return answer
        spread = fill_output(spec, filler, rows)
        spread[self.rows] = answer
        return spread

    def keeps_best(self, answer: Array, min_rows: int) -> bool | None:
        """Return whether the best row by the candidates' `answer` would be one of `min_rows` candidates, too.

        None if there are no more candidates than that.
        """
        rows = self.rows
        if len(rows) <= min_rows:
            return None
        best = rows[rank_rows(answer.reshape(len(rows), -1)[:, 0])[0]]
        return bool(np.isin(best, self.ranking[:min_rows]))


def select_candidates(scores: Array, cut: CandidateCut, *, fewest: bool) -> Selection:
    """Return the candidates by `scores` of shape [rows] or [rows, 1]; `fewest`: only as many as the cut allows at least.

    Of equal scores the earlier rows are selected; NaN is the lowest.
    """
    return Selection(rank_rows(scores.reshape(len(scores))), cut.min_rows if fewest else cut.max_rows)


def rank_rows(scores: Array) -> Array:
    """Return the positions of the rows by their score, the highest first."""
    numbers = np.where(np.isnan(scores), -np.inf, scores) if scores.dtype.kind == "f" else scores
    # Of the reversed rows, so that equal scores stay in order once the result is reversed.
    return len(numbers) - 1 - np.argsort(numbers[::-1], kind="stable")[::-1]


def fill_output(spec: TensorSpec, value: str, rows: int) -> Array:
    """Return an output of this many rows, each element the decimal `value`."""
    dtype = np.dtype(NUMPY_TYPES[spec.dtype])
    number = float(value) if dtype.kind == "f" else int(value)
    return np.full((rows, *spec.shape[1:]), number, dtype=dtype)
