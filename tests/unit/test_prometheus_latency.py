"""What the dashboard is told of an endpoint's traffic: rates summed, latencies of the slowest, nothing where nothing was measured."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.telemetry.prometheus import ClusterTraffic, Prometheus

CTR = "inference/ads/ctr/grpc"
IDLE = "inference/ads/idle/http"


def a_sample(cluster: str, value: str) -> dict[str, Any]:
    return {"metric": {"envoy_cluster_name": cluster}, "value": [0, value]}


async def test_both_latencies_are_asked_for_and_stand_beside_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(query: str) -> list[dict[str, Any]]:
        if "histogram_quantile(0.99," in query:
            return [a_sample(CTR, "18.5"), a_sample(IDLE, "NaN")]
        if "histogram_quantile(0.5," in query:
            return [a_sample(CTR, "6.25"), a_sample(IDLE, "NaN")]
        return [a_sample(CTR, "120"), a_sample(IDLE, "0")]

    prometheus = Prometheus("http://127.0.0.1:1")
    monkeypatch.setattr(prometheus._api, "query", answer)

    assert await prometheus.read_traffic() == {
        CTR: ClusterTraffic(120.0, 18.5, 6.25),
        IDLE: ClusterTraffic(0.0, None, None),
    }
