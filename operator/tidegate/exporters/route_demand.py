"""Exports which Inferences the requests of a route are for, so that rules can count requests that no Envoy cluster counts."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.planning.access.value_classes import RouteDemands, list_demand_shares
from tidegate_dataplane.contract.metrics import MetricCatalog

ROUTES: Final = MetricCatalog("tidegate_route_")
_RATIO = ROUTES.add_gauge(
    "demand_ratio",
    "Demand for the Inference per request of the route that the gateways refused by its price (outcome refused), or that a "
    "fallback answered because the targets had no capacity (outcome reduced); only for ModelAccesses with "
    "spec.protection.admissionControl.mode Priced.",
    "route",
    "outcome",
    "namespace",
    "inference",
)


class RouteDemandMetrics(Collector):
    """Reads the routes on each scrape. Only the leader exports, or a request would count once per replica."""

    def __init__(self, priced_routes: Callable[[], RouteDemands], leading: Callable[[], bool]) -> None:
        """`priced_routes` returns how the requests of the priced routes are attributed to Inferences."""
        self._priced_routes = priced_routes
        self._leading = leading

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the family, without samples if this process does not lead."""
        family = _RATIO.make_family()
        for share in list_demand_shares(self._priced_routes()) if self._leading() else ():
            labels = (share.route, share.outcome.value, share.inference.namespace, share.inference.name)
            family.add_metric(labels, share.ratio)
        yield family
