"""What a metric is called, means and is labelled by: said once, for the process that shows it and for the page that lists it."""

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
    """One family of series. `text` is its help, and what the reference says of it."""

    TYPE: ClassVar[str] = "untyped"

    name: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterMetric(Metric):
    """Something that is counted; its name ends in _total."""

    TYPE: ClassVar[str] = "counter"

    def on(self, registry: CollectorRegistry) -> Counter:
        """Shown by `registry`."""
        from prometheus_client import Counter

        return Counter(self.name, self.text, self.labels, registry=registry)


@dataclass(frozen=True, slots=True)
class GaugeMetric(Metric):
    """Something that is so many now."""

    TYPE: ClassVar[str] = "gauge"

    def on(self, registry: CollectorRegistry) -> Gauge:
        """Shown by `registry`."""
        from prometheus_client import Gauge

        return Gauge(self.name, self.text, self.labels, registry=registry)

    def family(self) -> GaugeMetricFamily:
        """Without samples yet, for those who collect when they are asked."""
        from prometheus_client.core import GaugeMetricFamily

        return GaugeMetricFamily(self.name, self.text, labels=self.labels)


@dataclass(frozen=True, slots=True)
class HistogramMetric(Metric):
    """How long something took, or how large it was."""

    TYPE: ClassVar[str] = "histogram"

    buckets: tuple[float, ...] = ()
    """Upper bounds, without infinity."""

    def on(self, registry: CollectorRegistry) -> Histogram:
        """Shown by `registry`."""
        from prometheus_client import Histogram

        return Histogram(self.name, self.text, self.labels, registry=registry, buckets=self.buckets)


class Catalog:
    """The metrics of one part, in the order in which they are defined; their names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._metrics: list[Metric] = []

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics)

    def counter(self, name: str, text: str, *labels: str) -> CounterMetric:
        """Defines a counter; `name` is without the prefix and with _total."""
        return self._with(CounterMetric(f"{self._prefix}{name}", text, labels))

    def gauge(self, name: str, text: str, *labels: str) -> GaugeMetric:
        """Defines a gauge."""
        return self._with(GaugeMetric(f"{self._prefix}{name}", text, labels))

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> HistogramMetric:
        """Defines a histogram; `buckets` are upper bounds, without infinity."""
        return self._with(HistogramMetric(f"{self._prefix}{name}", text, labels, tuple(buckets)))

    def _with(self, metric: M) -> M:
        self._metrics.append(metric)
        return metric
