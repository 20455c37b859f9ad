"""Summarise a feature's column in batches, in bounded memory: a sample, frequent ids, moments, a histogram."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tidegate.planning.features.drift import Counts, IdBins, Ids, NumberBins, Numbers

SAMPLE_SIZE: Final = 100_000
ID_CAPACITY: Final = 65_536


class ValueSample:
    """A uniform sample of numbers: all of them until there are more than `size`."""

    def __init__(self, random: np.random.Generator, size: int = SAMPLE_SIZE) -> None:
        """Draw with `random`."""
        self._random = random
        self._size = size
        self._priorities: Numbers = np.empty(0)
        self.values: Numbers = np.empty(0)

    def add_values(self, values: Numbers) -> None:
        """Add a batch: the values with the smallest random priorities stay."""
        priorities = np.concatenate((self._priorities, self._random.random(len(values))))
        merged = np.concatenate((self.values, values))
        if len(merged) > self._size:
            chosen = np.argpartition(priorities, self._size)[: self._size]
            priorities, merged = priorities[chosen], merged[chosen]
        self._priorities, self.values = priorities, merged


class IdCounter:
    """Counts of ids, exact until there are more than `capacity` different ones.

    Beyond that, the (capacity / 2 + 1)-th largest count is subtracted from all, and ids whose count is not positive are
    dropped: the mergeable summary of Misra and Gries (Agarwal et al., "Mergeable summaries", PODS 2012). An id with more
    than 2 / capacity of all values stays.
    """

    def __init__(self, capacity: int = ID_CAPACITY) -> None:
        """Hold at most `capacity` ids between two batches."""
        self._capacity = capacity
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._counts: Counts = np.empty(0, dtype=np.int64)
        self.is_exact = True
        self.distinct = 0
        """Number of different ids; a lower bound unless `is_exact`."""

    def add_values(self, values: Ids) -> None:
        """Add a batch."""
        ids, counts = np.unique(values, return_counts=True)
        merged, places = np.unique(np.concatenate((self._ids, ids)), return_inverse=True)
        sums: Counts = np.zeros(len(merged), dtype=np.int64)
        np.add.at(sums, places, np.concatenate((self._counts, counts)))
        self.distinct = max(self.distinct, len(merged))
        if len(merged) > self._capacity:
            self.is_exact = False
            sums -= np.partition(sums, -(self._capacity // 2) - 1)[-(self._capacity // 2) - 1]
            merged, sums = merged[sums > 0], sums[sums > 0]
        self._ids, self._counts = merged, sums

    def select_frequent(self, count: int) -> Ids:
        """Return the most frequent ids, ascending; of equally frequent ones the smallest."""
        order = np.lexsort((self._ids, -self._counts))[:count]
        return np.sort(self._ids[order])


@dataclass(slots=True)
class ColumnProfile:
    """Profile of one column over a set of rows, with the bins of the training set."""

    bins: NumberBins | IdBins
    default: float | None
    """The column's default value, in the column's type; None if it has no default."""
    row_count: int = 0
    missing_count: int = 0
    """Nulls, and numbers that are not finite."""
    default_count: int = 0
    value_count: int = 0
    mean: float = 0.0
    """Not finite if the sum of the values exceeds float64."""
    ids: IdCounter = field(default_factory=IdCounter)
    bin_counts: Counts = field(init=False)
    _squared_deviations: float = 0.0
    """Sum of the squared distances from the mean."""

    def __post_init__(self) -> None:
        self.bin_counts = np.zeros(len(self.bins.bin_labels), dtype=np.int64)

    @property
    def standard_deviation(self) -> float:
        """Return the standard deviation of all values; not finite if their squares exceed float64."""
        return float(np.sqrt(self._squared_deviations / self.value_count)) if self.value_count else 0.0

    def add_batch(self, values: Numbers | Ids, *, row_count: int, missing_count: int) -> None:
        """Add a batch of rows.

        `values` has no missing values, and one value for each element of a list column: int64 for bins of ids, float64 for
        bins of numbers, shape [values].
        """
        self.row_count += row_count
        self.missing_count += missing_count
        if not len(values):
            return
        if self.default is not None:
            self.default_count += int(np.count_nonzero(values == self.default))
        if isinstance(self.bins, IdBins):
            identifiers = values.astype(np.int64)
            self.bin_counts += self.bins.count_values(identifiers)
            self.ids.add_values(identifiers)
            self.value_count += len(values)
            return
        numbers = values.astype(np.float64)
        self.bin_counts += self.bins.count_values(numbers)
        self._add_moments(numbers)

    def _add_moments(self, numbers: Numbers) -> None:
        """Merge mean and squared deviations as in Chan, Golub and LeVeque, "Updating formulae", 1979."""
        total = self.value_count + len(numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(np.mean(numbers))
            self._squared_deviations += float(np.sum((numbers - mean) ** 2))
        shift = mean - self.mean
        self._squared_deviations += shift * shift * self.value_count * len(numbers) / total
        self.mean += shift * len(numbers) / total
        self.value_count = total
