"""Values from a page in Prometheus' text format."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from tidegate.reference.metrics import METRIC_SECTIONS


def metric(page: str, name: str, /, **labels: str) -> float:
    """The sum of the samples of that name with at least these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def listed(process: str) -> set[str]:
    """Families of metrics that the reference has of a process."""
    return {
        each.name for section in METRIC_SECTIONS if section.process == process for each in section.metrics
    }


def shown(page: str) -> set[str]:
    """Families of ours, with samples or without; not when each series began, which prometheus_client says beside them."""
    families = re.findall(r"^# TYPE (tidegate_\w+) (\w+)$", page, re.MULTILINE)
    counters = {name.removesuffix("_total") for name, _ in families if name.endswith("_total")}
    histograms = {name for name, kind in families if kind == "histogram"}
    began = {f"{name}_created" for name in counters | histograms}
    return {name for name, _ in families} - began
