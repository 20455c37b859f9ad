"""Read quantiles from histograms on a metrics page, as Prometheus' histogram_quantile does."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf

from prometheus_client.parser import text_string_to_metric_families


def read_quantile(page: str, name: str, labels: Mapping[str, str], share: float) -> float | None:
    """Return the value below which this share of the observations lies, linear within a bucket; None without observations.

    Beyond the last finite bound, that bound is returned.
    """
    counts = sorted(
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"{name}_bucket" and labels.items() <= sample.labels.items()
    )
    if not counts or not counts[-1][1]:
        return None
    rank = share * counts[-1][1]
    for (lower, below), (upper, count) in pairwise([(0.0, 0.0), *counts]):
        if count >= rank:
            return (
                lower if upper == inf else lower + (upper - lower) * (rank - below) / max(count - below, 1e-9)
            )
    return None
