"""Metrics of every process of the operator image: its version, whether it leads, what it writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

from tidegate import __version__
from tidegate.kube.store import ObjectStore
from tidegate.kube.writes import ApiWrite
from tidegate_dataplane.contract.metrics import MetricCatalog

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15)

PROCESS: Final = MetricCatalog("tidegate_")
_BUILD = PROCESS.add_gauge(
    "build_info",
    "Always 1; the labels name the process (controllers, xds or web) and its version.",
    "process",
    "version",
)
WRITES: Final = MetricCatalog("tidegate_api_")
_WRITES = WRITES.add_counter(
    "writes_total",
    "Writes to the API server by result: ok, conflict, gone, refused (rejected), unavailable (no response, or overloaded).",
    "verb",
    "resource",
    "result",
)
_WRITE_SECONDS = WRITES.add_histogram(
    "write_seconds", "Duration of one write to the API server, answered or not.", "verb", buckets=_SECONDS
)
LEADING: Final = MetricCatalog("tidegate_")
_LEADER = LEADING.add_gauge(
    "leader", "1 if the process is the one controllers process that may write, else 0."
)


CACHES: Final = MetricCatalog("tidegate_cache_")
_LEFT_OUT = CACHES.add_gauge(
    "objects_left_out",
    "Objects that the process could not read because of an unexpected exception; it uses their previous state, or none. "
    "The log names them in object_left_out.",
    "kind",
)


class ProcessMetrics:
    """Metrics of this process, besides prometheus_client's own: memory, CPU, open files, start."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        ProcessCollector(registry=registry)
        _BUILD.register(registry).labels(process, __version__).set(1)
        self._writes = _WRITES.register(registry)
        self._write_seconds = _WRITE_SECONDS.register(registry)

    def count_write(self, write: ApiWrite) -> None:
        """Count a write; the observer that clients are given."""
        self._writes.labels(write.verb, write.resource, write.result).inc()
        self._write_seconds.labels(write.verb).observe(write.seconds)


def show_left_out(
    registry: CollectorRegistry,
    stores: Iterable[ObjectStore],
    collections: Mapping[str, Collection[object]] = MappingProxyType({}),
) -> None:
    """Export the number of left-out objects of each kind in `stores`; it is read on every scrape.

    `collections` have what is left out elsewhere, by the value of the label `kind`.
    """
    by_kind: dict[str, list[ObjectStore]] = {}
    for store in stores:
        by_kind.setdefault(store.kind.kind, []).append(store)
    gauge = _LEFT_OUT.register(registry)
    for kind, stores in by_kind.items():
        gauge.labels(kind).set_function(partial(_count_left_out, stores))
    for kind, left_out in collections.items():
        gauge.labels(kind).set_function(partial(len, left_out))


def _count_left_out(stores: Sequence[ObjectStore]) -> float:
    return float(sum(len(store.left_out) for store in stores))


def show_leader(registry: CollectorRegistry, leading: Callable[[], bool]) -> None:
    """Export whether this process leads; it is read on every scrape."""
    _LEADER.register(registry).set_function(lambda: float(leading()))
