"""Compare the distributions of a feature in two sets of rows by the population stability index (PSI).

PSI = sum over the bins of (p - q) * ln(p / q), with p and q the shares of the two sets in a bin. It is symmetric, 0 for
equal shares and otherwise positive: the divergence J of Kullback and Leibler ("On information and sufficiency", Annals of
Mathematical Statistics 22, 1951). The name, ten bins of equal shares, and the bounds 0.1 and 0.25 are those of credit
scoring (Siddiqi, "Credit Risk Scorecards", Wiley, 2006). For two sets of the same distribution its mean is
(bins - 1) * (1 / n + 1 / m) (Yurdakul and Naranjo, "Statistical properties of the population stability index", Journal of
Risk Model Validation 14, 2020).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

BIN_COUNT: Final = 10
TOP_IDS: Final = 20
PSEUDO_COUNT: Final = 0.5
"""Added to the count of each bin of both sets, so that the logarithm of an empty bin exists."""
SHIFTED_PSI: Final = 0.1
DRIFTED_PSI: Final = 0.25
CHANCE_FACTOR: Final = 2
"""A PSI shows a change from this multiple of the mean PSI by chance."""
_LABEL_DIGITS: Final = range(6, 18)
"""Significant digits of the bounds in labels; 17 distinguish all float64."""

Numbers: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.int64]
Counts: TypeAlias = NDArray[np.int64]


class DriftState(StrEnum):
    """How far a feature has moved away from training."""

    STABLE = "Stable"
    """PSI is below 0.1."""
    SHIFTED = "Shifted"
    """PSI is from 0.1 to below 0.25."""
    DRIFTED = "Drifted"
    """PSI is 0.25 or more."""
    TOO_FEW = "TooFew"
    """PSI is 0.1 or more, and less than twice its mean by chance in sets of these sizes."""
    UNKNOWN = "Unknown"
    """One of the sets has no values of the feature."""


@dataclass(frozen=True, slots=True)
class NumberBins:
    """Bins of numbers: the first bin ends at the first edge, the last bin begins above the last edge.

    An interval includes its upper edge. `edges` is ascending, shape [bins - 1].
    """

    edges: Numbers

    @property
    def bin_labels(self) -> tuple[str, ...]:
        """Return a text for each bin, with as many digits as make the texts different."""
        labels: tuple[str, ...] = ("any",)
        for digits in _LABEL_DIGITS if len(self.edges) else ():
            labels = tuple(self._format_labels(digits))
            if len(set(labels)) == len(labels):
                break
        return labels

    def _format_labels(self, digits: int) -> Iterator[str]:
        below = np.nextafter(self.edges, -np.inf)
        for place, edge in enumerate(self.edges):
            if place and self.edges[place - 1] == below[place]:
                yield f"= {edge:.{digits}g}"
            elif place + 1 < len(self.edges) and edge == below[place + 1]:
                yield f"< {self.edges[place + 1]:.{digits}g}"
            else:
                yield f"<= {edge:.{digits}g}"
        yield f"> {self.edges[-1]:.{digits}g}"

    def count_values(self, values: Numbers) -> Counts:
        """Return how many of the finite `values` are in each bin, shape [bins]."""
        places = np.searchsorted(self.edges, values, side="left")
        return np.bincount(places, minlength=len(self.edges) + 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class IdBins:
    """A bin for each of some ids, and a last bin for all others; `ids` is ascending, shape [bins - 1]."""

    ids: Ids

    @property
    def bin_labels(self) -> tuple[str, ...]:
        """Return a text for each bin."""
        return (*map(str, self.ids.tolist()), "others")

    def count_values(self, values: Ids) -> Counts:
        """Return how many of the `values` are in each bin, shape [bins]."""
        if not len(self.ids):
            return np.array([len(values)], dtype=np.int64)
        places = np.minimum(np.searchsorted(self.ids, values), len(self.ids) - 1)
        places = np.where(self.ids[places] == values, places, len(self.ids))
        return np.bincount(places, minlength=len(self.ids) + 1).astype(np.int64)


def make_number_bins(training: Numbers) -> NumberBins:
    """Return bins that hold about equal shares of finite values of the training set, at most ten.

    A value that equals several deciles gets a bin of its own, so that smaller values do not share its bin.
    """
    if not len(training):
        return NumberBins(np.empty(0))
    shares = np.arange(1, BIN_COUNT) / BIN_COUNT
    edges, repetitions = np.unique(np.quantile(training, shares, method="inverted_cdf"), return_counts=True)
    below = np.nextafter(edges[repetitions > 1], -np.inf)
    return NumberBins(np.unique(np.concatenate((edges, below))))


def compute_psi(training: Counts, recent: Counts) -> float:
    """Return the PSI of two sets from their counts in the same bins, shape [bins]; 0 or more.

    Raises ValueError if the bins differ, or if one of the sets is empty.
    """
    if training.shape != recent.shape or training.ndim != 1:
        message = f"counts have shapes {training.shape} and {recent.shape}: want the same bins"
        raise ValueError(message)
    if not training.sum() or not recent.sum():
        message = "one of the sets has no values"
        raise ValueError(message)
    p, q = (_smooth_shares(counts) for counts in (training, recent))
    return float(np.sum((p - q) * np.log(p / q)))


def estimate_chance_psi(training: Counts, recent: Counts) -> float:
    """Return the PSI that two sets of these sizes have on average if nothing has changed."""
    return float((len(training) - 1) * (1 / training.sum() + 1 / recent.sum()))


def exceeds_chance(psi: float, chance_psi: float) -> bool:
    """Return whether a PSI is clearly above its mean by chance."""
    return psi >= CHANCE_FACTOR * chance_psi


def judge_psi(psi: float | None, chance_psi: float | None) -> DriftState:
    """Return the state by the usual bounds and the mean PSI by chance; Unknown without a PSI."""
    if psi is None or chance_psi is None:
        return DriftState.UNKNOWN
    if psi >= SHIFTED_PSI and not exceeds_chance(psi, chance_psi):
        return DriftState.TOO_FEW
    if psi >= DRIFTED_PSI:
        return DriftState.DRIFTED
    return DriftState.SHIFTED if psi >= SHIFTED_PSI else DriftState.STABLE


def _smooth_shares(counts: Counts) -> Numbers:
    smoothed = counts + PSEUDO_COUNT
    shares: Numbers = smoothed / smoothed.sum()
    return shares
