"""What answers of a Prometheus are taken for: partial sums and missing series are no figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.value_classes import RouteDemand, RouteDemands
from tidegate.planning.allocator.signals import ClassRates, InferenceMetrics, MetricsScrape
from tidegate.telemetry import expressions
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.prometheus_traffic import PrometheusTraffic

CTR = ObjectKey("ads", "ctr")
OF_CTR = {"namespace": "ads", "inference": "ctr"}
GATEWAYS = (ScrapeTarget("a", "10.0.0.1:9901"), ScrapeTarget("b", "10.0.0.2:9901"))


def a_sample(value: float, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [0, str(value)]}


def of_gateways(**values: float) -> list[dict[str, Any]]:
    return [a_sample(value, pod=pod, instance=f"of {pod}") for pod, value in values.items()]


async def look(
    monkeypatch: pytest.MonkeyPatch,
    ages_s: Mapping[str, float],
    routes: RouteDemands | None = None,
    **series: list[dict[str, Any]],
) -> MetricsScrape:
    found = {
        expressions.SCRAPE_AGE: of_gateways(a=3, b=3),
        expressions.GATEWAY_UPTIME: of_gateways(**ages_s),
        expressions.ROUTED: [a_sample(10, **OF_CTR)],
        **{getattr(expressions, name.upper()): samples for name, samples in series.items()},
    }
    source = PrometheusTraffic("http://127.0.0.1:1", lambda: GATEWAYS, lambda: routes or {}, dict)

    async def answer(query: str) -> list[dict[str, Any]]:
        return found.get(query, [])

    monkeypatch.setattr(source._api, "query", answer)
    return await source.scrape_signals()


@pytest.mark.parametrize(("age_s", "silent"), [(0, ("b",)), (74, ("b",)), (75, ()), (9_000, ())])
async def test_a_gateway_is_silent_until_its_rates_are_of_the_whole_window(
    monkeypatch: pytest.MonkeyPatch, age_s: float, silent: tuple[str, ...]
) -> None:
    seen = await look(monkeypatch, {"a": 9_000, "b": age_s})
    assert (seen.silent_gateways, seen.failure) == (silent, "")
    assert seen.by_key[CTR].offered_per_s == 10.0


async def test_gateways_that_are_all_new_are_silent_and_were_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = await look(monkeypatch, {"a": 20, "b": 20})
    assert (seen.silent_gateways, seen.failure) == (("a", "b"), "")


async def test_a_series_that_is_missing_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"a": 9_000.0, "b": 9_000.0}
    assert (await look(monkeypatch, old)).by_key[CTR] == InferenceMetrics(10.0)
    served = await look(monkeypatch, old, served=[a_sample(0, **OF_CTR)])
    assert served.by_key[CTR] == InferenceMetrics(10.0, 0.0)


async def test_requests_that_a_pipeline_refuses_are_demand_in_prometheus_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The 10 per second are its calls for the requests that it answered, which its route counts, too."""
    name = "access/ads/scene/home"
    seen = await look(
        monkeypatch,
        {"a": 9_000.0, "b": 9_000.0},
        {name: RouteDemand({}, 2.0, sheds=True, required=frozenset({CTR}))},
        priced_out=[a_sample(3, route=f"{name}/refused-grpc")],
        unserved=[a_sample(5, route=f"{name}/grpc")],
        route_answered=[a_sample(10, envoy_virtual_host="access/ads/scene", envoy_route="home")],
    )
    assert (seen.by_key[CTR].offered_per_s, seen.by_key[CTR].refused_per_s) == (13.0, 3.0)
    assert seen.by_key[CTR].classes == (ClassRates(2.0, True, 3.0, 0.0, 3.0),)
