"""docs/reference/metrics.md names every metric that our processes export, and no other; and all are named as Prometheus wants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builders.process_registries import SHOWN
from tidegate.reference.metrics import SECTIONS, metrics_page
from tidegate_dataplane.contract.metrics import Metric

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
METRICS = [metric for section in SECTIONS for metric in section.metrics]
FOREIGN_UNITS = re.compile(
    r"_(ms|us|ns|millis\w*|micros\w*|minutes?|hours?|days?|kb|mb|gb|kib|mib|gib|percent\w*|pct)(_|$)"
)


def listed(process: str) -> dict[str, str]:
    """Name and type of all that the committed page lists below a process's heading."""
    [below] = re.findall(rf"^## {process}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \|", below, re.MULTILINE))


@pytest.mark.parametrize("process", SHOWN)
def test_the_page_lists_what_a_process_shows_and_nothing_else(process: str) -> None:
    assert listed(process) == SHOWN[process]


def test_no_process_is_left_out_of_the_page_or_of_this_test() -> None:
    assert {section.process for section in SECTIONS} == {*SHOWN, "Gateways"}


def test_the_page_is_what_make_generate_writes() -> None:
    assert PAGE.read_text() == metrics_page()


@pytest.mark.parametrize(
    "metric", METRICS, ids=[f"{metric.name}-{place}" for place, metric in enumerate(METRICS)]
)
def test_names_and_helps_are_as_prometheus_wants_them(metric: Metric) -> None:
    assert wrong_with(metric) == []


def wrong_with(metric: Metric) -> list[str]:
    """What a reader of Prometheus' conventions would object to."""
    found = []
    if not re.fullmatch(r"(tidegate|envoy_tidegate)(_[a-z0-9]+)+", metric.name):
        found.append("not in snake case with our prefix")
    if metric.name.startswith("tidegate_") and (metric.TYPE == "counter") != metric.name.endswith("_total"):
        found.append("_total is for counters, and for each of them")
    if FOREIGN_UNITS.search(metric.name):
        found.append("a unit that is no base unit")
    if metric.TYPE == "histogram" and not metric.name.endswith(("_seconds", "_bytes")):
        found.append("a histogram without its unit")
    if "timestamp" in metric.name and not metric.name.endswith("_timestamp_seconds"):
        found.append("a time that is not in seconds since 1970")
    if not metric.text.endswith("."):
        found.append("a help that is no sentence")
    if {"le", "quantile", "job", "instance"} & {
        *metric.labels
    } and metric.name != "tidegate_inference_slo_bucket_share":
        found.append("a label that Prometheus gives a meaning to")
    return found


def test_the_conventions_are_looked_at() -> None:
    bad = Metric("tidegate_Queue_ms", "no sentence", ("instance",))
    assert len(wrong_with(bad)) == 4
