"""Asks Prometheus for rates and latencies of the endpoints."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.routing.envoy.clusters import cluster_name, parse_cluster_name
from tidegate.routing.fleet import BackendKey, BackendKind
from tidegate.routing.ir import AccessPoolKey, PoolRole
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError

_WINDOW: Final = "1m"
_CLUSTER: Final = "envoy_cluster_name"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateways saw of one Envoy cluster over the last minute."""

    requests_per_s: float
    latency_p99_ms: float | None
    """None while there were no requests to take it from."""
    latency_p50_ms: float | None = None
    """The same of one of two requests."""


class Prometheus:
    """A Prometheus server; every question has a time limit and an answer that may be empty."""

    def __init__(self, url: str) -> None:
        self._api = PrometheusApi(url)

    async def traffic(self) -> Mapping[str, Traffic]:
        """Traffic by Envoy cluster (`inference/<namespace>/<name>/grpc`); empty when Prometheus is silent."""
        try:
            return await self._traffic()
        except (PrometheusError, ValueError):
            return {}

    async def value(self, query: str) -> float | None:
        """The one number that `query` gives, NaN included; None when it gives none or several, or Prometheus is silent."""
        try:
            samples = await self._api.query(query)
            return float(samples[0]["value"][1]) if len(samples) == 1 else None
        except (PrometheusError, ValueError):
            return None

    async def _traffic(self) -> dict[str, Traffic]:
        rates = await self._by_cluster(
            f"sum by ({_CLUSTER}) (rate(envoy_cluster_upstream_rq_total[{_WINDOW}]))"
        )
        p99, p50 = await self._slowest(0.99), await self._slowest(0.5)
        total: defaultdict[str, float] = defaultdict(float)
        for name, rate in rates:
            total[name] += rate
        return {name: Traffic(rate, p99.get(name), p50.get(name)) for name, rate in total.items()}

    async def _slowest(self, quantile: float) -> dict[str, float]:
        """Milliseconds by cluster; of several that count for one, the slowest."""
        found: dict[str, float] = {}
        for name, latency in await self._by_cluster(
            f"histogram_quantile({quantile:g}, sum by ({_CLUSTER}, le) "
            f"(rate(envoy_cluster_upstream_rq_time_bucket[{_WINDOW}])))"
        ):
            found[name] = max(latency, found.get(name, 0.0))
        return found

    async def _by_cluster(self, query: str) -> list[tuple[str, float]]:
        """Values by cluster; what a release has of an Inference counts for the Inference."""
        samples = await self._api.query(query)
        values = ((sample["metric"].get(_CLUSTER, ""), float(sample["value"][1])) for sample in samples)
        return [(_backend(name), value) for name, value in values if name and math.isfinite(value)]


def _backend(cluster: str) -> str:
    """The Inference's own cluster, for that which a release has of it; any other name stays."""
    pool, protocol = parse_cluster_name(cluster) or (None, None)
    if protocol is None or not isinstance(pool, AccessPoolKey) or pool.role is not PoolRole.RELEASE:
        return cluster
    backend = BackendKey(BackendKind.INFERENCE, pool.access.namespace, pool.inference)
    return cluster_name(backend, protocol)
