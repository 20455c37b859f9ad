"""Asks Prometheus for rates and latencies of the endpoints, off the event loop."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests import RequestException

_TIMEOUT_S: Final = 5
_WINDOW: Final = "1m"
_CLUSTER: Final = "envoy_cluster_name"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the gateways saw of one Envoy cluster over the last minute."""

    requests_per_s: float
    latency_p99_ms: float | None
    """None while there were no requests to take it from."""


class Prometheus:
    """A Prometheus server; every question has a time limit and an answer that may be empty."""

    def __init__(self, url: str) -> None:
        self._client = PrometheusConnect(url=url, timeout=_TIMEOUT_S)

    async def traffic(self) -> Mapping[str, Traffic]:
        """Traffic by Envoy cluster (`inference/<namespace>/<name>/grpc`); empty when Prometheus is silent."""
        try:
            # The library is synchronous: its calls belong in a worker thread.
            return await asyncio.to_thread(self._traffic)
        except (PrometheusApiClientException, RequestException, ValueError):
            return {}

    def _traffic(self) -> dict[str, Traffic]:
        rates = self._by_cluster(f"sum by ({_CLUSTER}) (rate(envoy_cluster_upstream_rq_total[{_WINDOW}]))")
        p99 = self._by_cluster(
            f"histogram_quantile(0.99, sum by ({_CLUSTER}, le) "
            f"(rate(envoy_cluster_upstream_rq_time_bucket[{_WINDOW}])))"
        )
        return {name: Traffic(rate, p99.get(name)) for name, rate in rates.items()}

    def _by_cluster(self, query: str) -> dict[str, float]:
        samples = self._client.custom_query(query)
        values = {sample["metric"].get(_CLUSTER, ""): float(sample["value"][1]) for sample in samples}
        return {name: value for name, value in values.items() if name and math.isfinite(value)}
