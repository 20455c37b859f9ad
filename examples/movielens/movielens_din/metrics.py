"""Ranking quality of scores against labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def area_under_curve(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """The ROC AUC: the chance that a random positive row is scored above a random negative one, ties counting half.

    Raises ValueError when one of the two classes is missing.
    """
    positive = np.asarray(labels).ravel() > 0
    wins, losses = int(positive.sum()), int((~positive).sum())
    if wins == 0 or losses == 0:
        raise ValueError(f"AUC needs both classes, got {wins} positive and {losses} negative rows")
    _, inverse, counts = np.unique(np.asarray(scores).ravel(), return_inverse=True, return_counts=True)
    highest = np.cumsum(counts)
    ranks = (highest - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - wins * (wins + 1) / 2) / (wins * losses))
