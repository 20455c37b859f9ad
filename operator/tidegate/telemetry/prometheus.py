"""Query Prometheus for the request rates and latencies of Envoy clusters."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.routing.envoy_names import cluster_name, parse_cluster_name
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError

_WINDOW: Final = "1m"
_CLUSTER: Final = "envoy_cluster_name"


@dataclass(frozen=True, slots=True)
class ClusterTraffic:
    """Traffic of one Envoy cluster in the last minute, as the gateways counted it."""

    requests_per_s: float
    latency_p99_ms: float | None
    """None without requests."""
    latency_p50_ms: float | None = None
    """None without requests."""


class Prometheus:
    """A Prometheus server; queries have a timeout, and an empty result if the server does not respond."""

    def __init__(self, url: str) -> None:
        self._api = PrometheusApi(url)

    async def read_traffic(self) -> Mapping[str, ClusterTraffic]:
        """Return the traffic by Envoy cluster (`inference/<namespace>/<name>/grpc`); empty if Prometheus does not respond."""
        try:
            return await self._query_traffic()
        except (PrometheusError, ValueError):
            return {}

    async def query_value(self, query: str) -> float | None:
        """Return the single number that `query` yields, which may be NaN.

        None if it yields no series or several, or if Prometheus does not respond.
        """
        try:
            samples = await self._api.query(query)
            return float(samples[0]["value"][1]) if len(samples) == 1 else None
        except (PrometheusError, ValueError):
            return None

    async def _query_traffic(self) -> dict[str, ClusterTraffic]:
        rates = await self._query_by_cluster(
            f"sum by ({_CLUSTER}) (rate(envoy_cluster_upstream_rq_total[{_WINDOW}]))"
        )
        p99, p50 = await self._query_latency(0.99), await self._query_latency(0.5)
        total: defaultdict[str, float] = defaultdict(float)
        for name, rate in rates:
            total[name] += rate
        return {name: ClusterTraffic(rate, p99.get(name), p50.get(name)) for name, rate in total.items()}

    async def _query_latency(self, quantile: float) -> dict[str, float]:
        """Return milliseconds by cluster; if several clusters count for one Inference, those of the slowest."""
        latencies: dict[str, float] = {}
        for name, latency in await self._query_by_cluster(
            f"histogram_quantile({quantile:g}, sum by ({_CLUSTER}, le) "
            f"(rate(envoy_cluster_upstream_rq_time_bucket[{_WINDOW}])))"
        ):
            latencies[name] = max(latency, latencies.get(name, 0.0))
        return latencies

    async def _query_by_cluster(self, query: str) -> list[tuple[str, float]]:
        """Return values by cluster; those of a release's cluster count for the Inference."""
        samples = await self._api.query(query)
        values = ((sample["metric"].get(_CLUSTER, ""), float(sample["value"][1])) for sample in samples)
        return [(_backend_cluster(name), value) for name, value in values if name and math.isfinite(value)]


def _backend_cluster(cluster: str) -> str:
    """Return the Inference's own cluster for a release's cluster of it, and any other name unchanged."""
    pool, protocol = parse_cluster_name(cluster) or (None, None)
    if protocol is None or not isinstance(pool, AccessPoolKey) or pool.role is not PoolRole.RELEASE:
        return cluster
    backend = BackendKey(BackendKind.INFERENCE, pool.inference_key.namespace, pool.inference_key.name)
    return cluster_name(backend, protocol)
