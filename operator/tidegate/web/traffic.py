"""Read the traffic of each endpoint from Prometheus periodically, and keep the last result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from tidegate.reports.rows import ListRow
from tidegate.telemetry.prometheus import ClusterTraffic

REFRESH_S: Final = 5.0

Column: TypeAlias = Literal["requests", "p99"]
TrafficSource: TypeAlias = Callable[[], Awaitable[Mapping[str, ClusterTraffic]]]


class TrafficBoard:
    """The last result of `source`, by Envoy cluster; empty without a source."""

    def __init__(self, source: TrafficSource | None) -> None:
        self._source = source
        self._traffic: Mapping[str, ClusterTraffic] = {}
        self._measures: dict[tuple[str, Column], Mapping[tuple[str, str], float]] = {}
        """Of the last result, as lists need them."""

    @property
    def is_configured(self) -> bool:
        """Return whether a source is configured."""
        return self._source is not None

    async def refresh_forever(self, notify: Callable[[], None]) -> None:
        """Read the source periodically, and call `notify` after each change; a task of the process."""
        while True:
            if await self.refresh_traffic():
                notify()
            await asyncio.sleep(REFRESH_S)

    async def refresh_traffic(self) -> bool:
        """Read the source once, and return whether the result has changed."""
        previous = self._traffic
        self._traffic = await self._source() if self._source is not None else {}
        self._measures.clear()
        return self._traffic != previous

    def get_traffic(self, endpoint: str) -> ClusterTraffic | None:
        """Return the sum of gRPC and REST of `inference/<namespace>/<name>`, with the higher of the latencies."""
        names = (f"{endpoint}/grpc", f"{endpoint}/http")
        protocols = [self._traffic[name] for name in names if name in self._traffic]
        if not protocols:
            return None
        p99s_ms = [traffic.latency_p99_ms for traffic in protocols if traffic.latency_p99_ms is not None]
        p50s_ms = [traffic.latency_p50_ms for traffic in protocols if traffic.latency_p50_ms is not None]
        return ClusterTraffic(
            sum(traffic.requests_per_s for traffic in protocols),
            max(p99s_ms, default=None),
            max(p50s_ms, default=None),
        )

    def list_measures(self, endpoint: str, column: Column) -> Mapping[tuple[str, str], float]:
        """Return requests per second or p99 in milliseconds by namespace and name; `endpoint` is the kind's prefix."""
        measures = self._measures.get((endpoint, column))
        if measures is None:
            measures = self._measures[endpoint, column] = dict(self._measure_endpoints(endpoint, column))
        return measures

    def _measure_endpoints(self, endpoint: str, column: Column) -> Iterator[tuple[tuple[str, str], float]]:
        for name in {cluster.rpartition("/")[0] for cluster in self._traffic}:
            prefix, _, key = name.partition("/")
            namespace, _, object_name = key.partition("/")
            traffic = self.get_traffic(name) if prefix == endpoint else None
            if traffic is None:
                continue
            value = traffic.requests_per_s if column == "requests" else traffic.latency_p99_ms
            if value is not None:
                yield (namespace, object_name), value

    def add_traffic(self, row: ListRow, endpoint: str) -> ListRow:
        """Return the row with its traffic, if known."""
        traffic = self.get_traffic(f"{endpoint}/{row.namespace}/{row.name}")
        if traffic is None:
            return row
        return row.model_copy(
            update={"requests_per_second": traffic.requests_per_s, "latency_p99_ms": traffic.latency_p99_ms}
        )
