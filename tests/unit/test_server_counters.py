"""Counters of our models among the metrics of their server."""

from __future__ import annotations

from collections import Counter

from builders.waiting import wait_until
from tidegate_dataplane.sampling.server_counters import ServerCounters

exported: Counter[tuple[str, ...]] = Counter()


class PretendedFamily:
    """A MetricFamily of the Python backend."""

    COUNTER = 0

    def __init__(self, name: str, description: str, kind: int) -> None:
        self._name = name

    def Metric(self, labels: dict[str, str]) -> PretendedMetric:  # noqa: N802 - the backend's name
        return PretendedMetric((self._name, *labels.values()))


class PretendedMetric:
    """One of its metrics."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key

    def increment(self, value: int) -> None:
        exported[self._key] += value


def test_counts_are_exported_without_another_request_and_the_last_ones_at_the_end() -> None:
    totals = {"a": 2}
    counters = ServerCounters(
        PretendedFamily, "m", {"keys": "Keys"}, lambda: [("keys", {"origin": "a"}, totals["a"])]
    )
    counters.export_soon()
    wait_until(lambda: exported["keys", "m", "a"] == 2, "the count is exported")

    totals["a"] = 5
    counters.stop_exporting()

    assert exported == {("keys", "m", "a"): 5}
