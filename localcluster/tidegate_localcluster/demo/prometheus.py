"""Read from Prometheus, where there is one, what the data plane counted of the load."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests import RequestException

CATCH_UP_S: Final = 20.0
"""A little more than two scrape intervals of a slow Prometheus."""
POLL_INTERVAL_S: Final = 1.0
QUERY_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class DataPlaneCounters:
    """Totals: requests that Envoy sent to the model, and requests that each version answered (Triton)."""

    envoy: float
    triton: Mapping[str, float]

    def add_requests(self, version: str, requests: int) -> "DataPlaneCounters":
        """Return the totals after `requests` more that `version` answers."""
        counted = self.triton.get(version, 0.0) + requests
        return DataPlaneCounters(self.envoy + requests, {**self.triton, version: counted})


@dataclass(frozen=True, slots=True)
class ObservedLoad:
    """The figures that the client counts, from the data plane's own counters."""

    envoy: int
    triton: Mapping[str, int]
    p50_ms: float | None
    p99_ms: float | None


class LoadMetrics:
    """Counters of one Inference behind the gateway."""

    def __init__(
        self, address: str, namespace: str, inference: str, model: str, *, catch_up_s: float = CATCH_UP_S
    ) -> None:
        """Query Prometheus at `address` (host:port), and wait at most `catch_up_s` for its scrapes."""
        self._catch_up_s = catch_up_s
        self._prometheus = PrometheusConnect(
            url=f"http://{address}", disable_ssl=True, timeout=QUERY_TIMEOUT_S
        )
        self._cluster = f'envoy_cluster_name="inference/{namespace}/{inference}/grpc"'
        self._model = f'model="{model}",namespace="{namespace}"'

    def read_counters(self) -> DataPlaneCounters | None:
        """Return the current totals, or None if Prometheus does not answer."""
        try:
            envoy = self._query_by_version(f"sum(envoy_cluster_upstream_rq_total{{{self._cluster}}})")
            triton = self._query_by_version(
                f"sum by (version) (nv_inference_request_success{{{self._model}}})"
            )
        except (PrometheusApiClientException, RequestException):
            return None
        return DataPlaneCounters(
            envoy=sum(envoy.values()), triton={version: count for version, count in triton.items() if version}
        )

    def observe_since(self, before: DataPlaneCounters, expected: int, seconds: float) -> ObservedLoad | None:
        """Return what was counted since `before`, once a scrape includes `expected` requests.

        Returns None if Prometheus does not answer.
        """
        deadline = time.monotonic() + self._catch_up_s
        while (current := self.read_counters()) is not None:
            envoy = _counter_increase(before.envoy, current.envoy)
            triton = {
                version: _counter_increase(before.triton.get(version, 0.0), count)
                for version, count in current.triton.items()
            }
            if min(envoy, sum(triton.values())) < expected and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL_S)
                continue
            window_s = int(seconds + CATCH_UP_S)
            return ObservedLoad(
                envoy, triton, self._query_quantile(0.5, window_s), self._query_quantile(0.99, window_s)
            )
        return None

    def _query_quantile(self, quantile: float, window_s: int) -> float | None:
        buckets = f"envoy_cluster_upstream_rq_time_bucket{{{self._cluster}}}[{window_s}s]"
        try:
            results = self._query_by_version(
                f"histogram_quantile({quantile}, sum by (le) (increase({buckets})))"
            )
        except (PrometheusApiClientException, RequestException):
            return None
        return next((value for value in results.values() if not math.isnan(value)), None)

    def _query_by_version(self, query: str) -> Mapping[str, float]:
        """Return values by the label `version`, which is empty for a result without it."""
        results = cast(list[dict[str, Any]], self._prometheus.custom_query(query))
        return {str(result["metric"].get("version", "")): float(result["value"][1]) for result in results}


def _counter_increase(before: float, current: float) -> int:
    """Return the increase of a counter; a smaller one was reset, as Triton's are when a model is loaded."""
    return round(current - before if current >= before else current)
