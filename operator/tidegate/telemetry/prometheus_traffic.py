"""Read signals from a Prometheus that scrapes the gateways and the model servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from math import isfinite
from statistics import fmean
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.access.value_classes import ClassTotals, RouteDemands, list_refused, list_unserved
from tidegate.planning.allocator.signals import InferenceMetrics, MetricsScrape
from tidegate.telemetry import expressions
from tidegate.telemetry.gateway_traffic import find_inference
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.prometheus_api import InstantSample, PrometheusApi, PrometheusError

_TIMEOUT_S: Final = 20
# Slightly less than the window of the rates, because ticks are not exact.
_WINDOW: Final = timedelta(seconds=59)
_SCRAPED_WITHIN_S: Final = 60.0
_WHOLE_AFTER: Final = timedelta(seconds=75)
"""The window of the rates, and one scrape interval."""

_QUERIES: Final = (
    expressions.SCRAPE_AGE,
    expressions.GATEWAY_UPTIME,
    expressions.ROUTED,
    expressions.SERVED,
    expressions.LATENCY_P99,
    expressions.UNSERVED,
    expressions.PRICED_OUT,
    expressions.LIMITED,
    expressions.SHED,
    expressions.ROUTE_ANSWERED,
    expressions.ROUTE_SERVED,
    expressions.QUEUE_SECONDS,
    expressions.BUSY_SHARE,
)

Samples = Sequence[InstantSample]
Owners = Mapping[ObjectKey, ObjectKey]
"""The Inference of each serving pod."""


class PrometheusTraffic:
    """SignalSource that queries the rates of the last minute.

    The gateways' series need the label `pod` or `instance`, and Triton's the labels `namespace` and `pod`: Prometheus
    Operator and the usual discovery by annotations set them.
    """

    def __init__(
        self,
        url: str,
        gateways: Callable[[], Sequence[ScrapeTarget]],
        routes: Callable[[], RouteDemands],
        owners: Callable[[], Owners],
        whole_after: timedelta = _WHOLE_AFTER,
    ) -> None:
        """`routes` returns how the requests of each route are attributed to Inferences.

        A gateway younger than `whole_after` counts as silent: its rates lack the requests that it, or its predecessor,
        served earlier in the window.
        """
        self._api = PrometheusApi(url)
        self._source = f"Prometheus {url}"
        self._gateways = gateways
        self._routes = routes
        self._owners = owners
        self._whole_after_s = whole_after.total_seconds()

    async def scrape_signals(self) -> MetricsScrape:
        """Return the rates of the last minute."""
        gateways = self._gateways()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                samples = {expression: await self._api.query(expression) for expression in _QUERIES}
            # In a thread: some hundred thousand samples would block the event loop for too long.
            return await asyncio.to_thread(self._make_look, samples, gateways, self._routes(), self._owners())
        except PrometheusError as error:
            return self._failed_look(str(error))
        except (ValueError, KeyError) as error:
            return self._failed_look(f"its answer cannot be read ({type(error).__name__})")
        except TimeoutError:
            return self._failed_look(f"no answer within {_TIMEOUT_S} s")

    def _failed_look(self, reason: str) -> MetricsScrape:
        return MetricsScrape(self._source, {}, _WINDOW, failure=reason)

    def _make_look(
        self,
        samples: Mapping[str, Samples],
        gateways: Sequence[ScrapeTarget],
        routes: RouteDemands,
        owners: Owners,
    ) -> MetricsScrape:
        scraped = _matching_gateways(
            samples[expressions.SCRAPE_AGE], lambda age_s: age_s <= _SCRAPED_WITHIN_S
        )
        complete = _matching_gateways(
            samples[expressions.GATEWAY_UPTIME], lambda uptime_s: uptime_s >= self._whole_after_s
        )
        silent = _unmatched_gateways(gateways, scraped & complete)
        if gateways and len(_unmatched_gateways(gateways, scraped)) == len(gateways):
            addresses = ", ".join(sorted(gateway.address for gateway in gateways)[:3])
            return self._failed_look(
                f"it has scraped no gateway in the last minute, whose label instance is one of {addresses} "
                "or pod the gateway's"
            )
        offered = _values_by_inference(samples[expressions.ROUTED])
        for key, rate in _attribute_routes(samples[expressions.UNSERVED], routes):
            offered[key] = offered.get(key, 0.0) + rate
        classes, refused = _sum_classes(samples, routes), _values_by_inference(samples[expressions.LIMITED])
        for key, rate in (
            *_attribute_refused(samples[expressions.PRICED_OUT], routes),
            *_attribute_reduced(samples[expressions.ROUTE_ANSWERED], routes),
        ):
            offered[key] = offered.get(key, 0.0) + rate
            refused[key] = refused.get(key, 0.0) + rate
        served = _values_by_inference(samples[expressions.SERVED])
        latency = _values_by_inference(samples[expressions.LATENCY_P99])
        queue, busy = (
            _mean_by_owner(samples[expression], owners)
            for expression in (expressions.QUEUE_SECONDS, expressions.BUSY_SHARE)
        )
        readings = {
            key: InferenceMetrics(
                rate,
                served.get(key),
                latency.get(key),
                queue.get(key),
                busy.get(key),
                refused.get(key),
                classes.get_classes(key),
            )
            for key, rate in offered.items()
        }
        failure = "" if gateways else "no gateway takes traffic"
        return MetricsScrape(self._source, readings, _WINDOW, silent_gateways=silent, failure=failure)


def _matching_gateways(samples: Samples, matches: Callable[[float], bool]) -> set[str]:
    """Return the names and addresses of the gateways whose value matches."""
    return {
        str(name)
        for sample in samples
        if matches(_parse_value(sample))
        for name in (sample["metric"].get("pod"), sample["metric"].get("instance"))
        if name
    }


def _unmatched_gateways(gateways: Sequence[ScrapeTarget], matched: Set[str]) -> tuple[str, ...]:
    """Return the gateways with neither their name nor their address in `matched`."""
    return tuple(
        sorted(gateway.name for gateway in gateways if not {gateway.name, gateway.address} & matched)
    )


def _values_by_inference(samples: Samples) -> dict[ObjectKey, float]:
    # NaN is kept: a meaningless value is not the same as a missing one.
    return {
        ObjectKey(sample["metric"]["namespace"], sample["metric"]["inference"]): _parse_value(sample)
        for sample in samples
        if sample["metric"].get("inference")
    }


def _route_of(sample: InstantSample) -> str:
    """Return the route in a counter of refusals, whose label has the protocol too."""
    return str(sample["metric"].get("route", "")).rpartition("/")[0]


def _attribute_routes(samples: Samples, routes: RouteDemands) -> Iterator[tuple[ObjectKey, float]]:
    """Yield the Inferences of the routes in a counter of unserved requests, with their requests per second."""
    for sample in samples:
        demand = routes.get(_route_of(sample))
        for key, share in demand.by_inference.items() if demand is not None else ():
            yield key, share * _parse_value(sample)


def _attribute_refused(samples: Samples, routes: RouteDemands) -> Iterator[tuple[ObjectKey, float]]:
    """Yield the Inferences whose capacity the requests beyond the admitted shares needed, with these requests per second."""
    for sample in samples:
        yield from list_refused(routes, _route_of(sample), _parse_value(sample))


def _attribute_reduced(samples: Samples, routes: RouteDemands) -> Iterator[tuple[ObjectKey, float]]:
    """Yield the Inferences that had no capacity for what their fallbacks answered, with these requests per second."""
    for sample in samples:
        yield from list_unserved(routes, _access_route(sample), _parse_value(sample))


def _sum_classes(samples: Mapping[str, Samples], routes: RouteDemands) -> ClassTotals:
    totals = ClassTotals(routes)
    for sample in samples[expressions.UNSERVED]:
        totals.add_unserved(_route_of(sample), _parse_value(sample))
    for sample in samples[expressions.SHED]:
        inference = find_inference(sample["metric"].get("envoy_cluster_name", ""))
        if inference is not None:
            totals.add_shed(_route_of(sample), inference, _parse_value(sample))
    for sample in samples[expressions.PRICED_OUT]:
        route = _route_of(sample)
        for inference, rate in _attribute_refused([sample], routes):
            totals.add_shed(route, inference, rate)
    served = {_access_route(sample): _parse_value(sample) for sample in samples[expressions.ROUTE_SERVED]}
    for sample in samples[expressions.ROUTE_ANSWERED]:
        route = _access_route(sample)
        totals.add_answered(route, _parse_value(sample), served.get(route, 0.0))
    return totals


def _access_route(sample: InstantSample) -> str:
    metric = sample["metric"]
    return f"{metric.get('envoy_virtual_host', '')}/{metric.get('envoy_route', '')}"


def _mean_by_owner(samples: Samples, owners: Owners) -> Mapping[ObjectKey, float]:
    """Return the mean over the pods of each Inference."""
    values: defaultdict[ObjectKey, list[float]] = defaultdict(list)
    for sample in samples:
        metric = sample["metric"]
        owner = owners.get(ObjectKey(metric.get("namespace", ""), metric.get("pod", "")))
        if owner is not None and isfinite(_parse_value(sample)):
            values[owner].append(_parse_value(sample))
    return {owner: fmean(pod_values) for owner, pod_values in values.items()}


def _parse_value(sample: InstantSample) -> float:
    return float(sample["value"][1])
