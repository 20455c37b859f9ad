"""What Prometheus saw of the load, as far as it can be reached."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from prometheus_api_client.exceptions import PrometheusApiClientException
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests import RequestException

CATCH_UP_S: Final = 20.0
"""Two scrapes of an unhurried Prometheus, and some."""
POLL_INTERVAL_S: Final = 1.0
QUERY_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals: requests that Envoy sent to the model, and those that each version answered (Triton)."""

    envoy: float
    triton: Mapping[str, float]

    def after(self, version: str, requests: int) -> "Counters":
        """What they will be once these further requests, answered by `version`, are counted."""
        counted = self.triton.get(version, 0.0) + requests
        return Counters(self.envoy + requests, {**self.triton, version: counted})


@dataclass(frozen=True, slots=True)
class Observed:
    """The same figures as the client counted, from the data plane's own counters."""

    envoy: int
    triton: Mapping[str, int]
    p50_ms: float | None
    p99_ms: float | None


class LoadMetrics:
    """The counters of one Inference behind the gateway."""

    def __init__(
        self, address: str, namespace: str, inference: str, model: str, *, catch_up_s: float = CATCH_UP_S
    ) -> None:
        """Ask Prometheus at `address` (host:port), and wait `catch_up_s` at most for it to see what happened."""
        self._catch_up_s = catch_up_s
        self._prometheus = PrometheusConnect(
            url=f"http://{address}", disable_ssl=True, timeout=QUERY_TIMEOUT_S
        )
        self._cluster = f'envoy_cluster_name="inference/{namespace}/{inference}/grpc"'
        self._model = f'model="{model}",namespace="{namespace}"'

    def counters(self) -> Counters | None:
        """Totals now; None when Prometheus does not answer."""
        try:
            envoy = self._query(f"sum(envoy_cluster_upstream_rq_total{{{self._cluster}}})")
            triton = self._query(f"sum by (version) (nv_inference_request_success{{{self._model}}})")
        except (PrometheusApiClientException, RequestException):
            return None
        return Counters(
            envoy=sum(envoy.values()), triton={version: count for version, count in triton.items() if version}
        )

    def since(self, before: Counters, expected: int, seconds: float) -> Observed | None:
        """What was counted since `before`, once a scrape has seen `expected` requests; None without Prometheus."""
        deadline = time.monotonic() + self._catch_up_s
        while (now := self.counters()) is not None:
            envoy = _growth(before.envoy, now.envoy)
            triton = {
                version: _growth(before.triton.get(version, 0.0), count)
                for version, count in now.triton.items()
            }
            if min(envoy, sum(triton.values())) < expected and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL_S)
                continue
            window_s = int(seconds + CATCH_UP_S)
            return Observed(envoy, triton, self._quantile(0.5, window_s), self._quantile(0.99, window_s))
        return None

    def _quantile(self, quantile: float, window_s: int) -> float | None:
        buckets = f"envoy_cluster_upstream_rq_time_bucket{{{self._cluster}}}[{window_s}s]"
        try:
            found = self._query(f"histogram_quantile({quantile}, sum by (le) (increase({buckets})))")
        except (PrometheusApiClientException, RequestException):
            return None
        return next((value for value in found.values() if not math.isnan(value)), None)

    def _query(self, query: str) -> Mapping[str, float]:
        """Value by the label `version`, which is empty where a result has none."""
        found = cast(list[dict[str, Any]], self._prometheus.custom_query(query))
        return {str(one["metric"].get("version", "")): float(one["value"][1]) for one in found}


def _growth(before: float, now: float) -> int:
    """How far a counter came; one that is smaller than before began anew, as Triton's do when a model is loaded."""
    return round(now - before if now >= before else now)
