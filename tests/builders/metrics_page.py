"""Values from a page in Prometheus' text format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def metric(page: str, name: str, /, **labels: str) -> float:
    """The sum of the samples of that name with at least these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
