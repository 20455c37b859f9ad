"""Define a metric's name, help and labels once, for the process that exports it and for the reference page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

# Triton's Python reads the contract as well, and has no prometheus_client.
if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import GaugeMetricFamily

M = TypeVar("M", bound="Metric")


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of series; `text` is its help, in the exposition and in the reference."""

    TYPE: ClassVar[str] = "untyped"

    name: str
    help_text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterMetric(Metric):
    """A counter; its name ends in _total."""

    TYPE: ClassVar[str] = "counter"

    def register(self, registry: CollectorRegistry) -> Counter:
        """Return the metric, registered in `registry`."""
        from prometheus_client import Counter

        return Counter(self.name, self.help_text, self.labels, registry=registry)


@dataclass(frozen=True, slots=True)
class GaugeMetric(Metric):
    """A gauge."""

    TYPE: ClassVar[str] = "gauge"

    def register(self, registry: CollectorRegistry) -> Gauge:
        """Return the metric, registered in `registry`."""
        from prometheus_client import Gauge

        return Gauge(self.name, self.help_text, self.labels, registry=registry)

    def make_family(self) -> GaugeMetricFamily:
        """Return the family without samples, for collectors that fill it at each scrape."""
        from prometheus_client.core import GaugeMetricFamily

        return GaugeMetricFamily(self.name, self.help_text, labels=self.labels)


@dataclass(frozen=True, slots=True)
class HistogramMetric(Metric):
    """A histogram of durations or sizes."""

    TYPE: ClassVar[str] = "histogram"

    buckets: tuple[float, ...] = ()
    """Upper bounds, without infinity."""

    def register(self, registry: CollectorRegistry) -> Histogram:
        """Return the metric, registered in `registry`."""
        from prometheus_client import Histogram

        return Histogram(self.name, self.help_text, self.labels, registry=registry, buckets=self.buckets)


class MetricCatalog:
    """The metrics of one component, in the order of their definition; their names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._metrics: list[Metric] = []

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def add_counter(self, name: str, text: str, *labels: str) -> CounterMetric:
        """Add a counter and return it; `name` is without the prefix and with _total."""
        return self._add_metric(CounterMetric(f"{self._prefix}{name}", text, labels))

    def add_gauge(self, name: str, text: str, *labels: str) -> GaugeMetric:
        """Add a gauge and return it."""
        return self._add_metric(GaugeMetric(f"{self._prefix}{name}", text, labels))

    def add_histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> HistogramMetric:
        """Add a histogram and return it; `buckets` are upper bounds, without infinity."""
        return self._add_metric(HistogramMetric(f"{self._prefix}{name}", text, labels, tuple(buckets)))

    def _add_metric(self, metric: M) -> M:
        self._metrics.append(metric)
        return metric
