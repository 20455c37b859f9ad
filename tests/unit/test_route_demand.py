"""Which Inferences the requests of a route are for, as the recording rules get it from the controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from builders.model_access import a_model_access, a_route, model_access_body
from tidegate.exporters.route_demand import RouteDemandMetrics
from tidegate.planning.access.value_classes import RouteDemands, index_routes
from tidegate.routing.route_targets import is_priced
from tidegate_controllers.signals import make_route_index
from tidegate_controllers.stores import Stores

PRICED: Mapping[str, Any] = {"protection": {"admissionControl": {"mode": "Priced"}}}
TARGETS = [{"inference": "ctr", "weight": 1}, {"inference": "cvr", "weight": 3}]
FALLBACK = {"inference": "small", "valuePercent": 75}


def collect_ratios(routes: RouteDemands, *, is_leading: bool = True) -> Mapping[tuple[str, ...], float]:
    """Return the exported ratios by route, outcome, namespace and inference."""
    registry = CollectorRegistry()
    registry.register(RouteDemandMetrics(lambda: routes, lambda: is_leading))
    return {
        tuple(sample.labels[label] for label in ("route", "outcome", "namespace", "inference")): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_refused_and_reduced_requests_are_for_the_targets_by_weight() -> None:
    access = a_model_access("ctr", routes=[a_route(targets=TARGETS, fallback=FALLBACK, value="2")], **PRICED)
    name = "access/ads/ctr/default"
    assert collect_ratios(index_routes([access])) == {
        (name, "refused", "ads", "ctr"): 0.25,
        (name, "refused", "ads", "cvr"): 0.75,
        (f"{name}/reduced", "reduced", "ads", "ctr"): 0.25,
        (f"{name}/reduced", "reduced", "ads", "cvr"): 0.75,
    }


def test_a_refused_request_of_a_pipeline_is_for_each_inference_that_it_needs() -> None:
    models = [
        {"inference": "ctr", "as": "pctr"},
        {"inference": "ctr", "as": "second"},
        {"inference": "cvr", "as": "pcvr", "optional": True, "timeout": "20ms", "default": "0"},
    ]
    access = a_model_access("scene", routes=[{"name": "home", "pipeline": {"models": models}}], **PRICED)
    assert collect_ratios(index_routes([access])) == {("access/ads/scene/home", "refused", "ads", "ctr"): 1.0}


def test_only_the_leader_tells() -> None:
    routes = index_routes([a_model_access("ctr", routes=[a_route()], **PRICED)])
    assert collect_ratios(routes)
    assert collect_ratios(routes, is_leading=False) == {}


def test_routes_that_are_not_priced_are_left_out_and_strangers_get_no_demand() -> None:
    stores = Stores()
    bodies = (
        model_access_body("ctr", routes=[a_route()], **PRICED),
        model_access_body("unpriced", routes=[a_route()], protection={"admissionControl": {}}),
        model_access_body("stranger", "shop", routes=[a_route(targets=[{"inference": "ads/ctr"}])], **PRICED),
    )
    for body in bodies:
        stores.accesses.observe("ADDED", body)
    priced = make_route_index(stores, is_priced)
    assert collect_ratios(priced()) == {("access/ads/ctr/default", "refused", "ads", "ctr"): 1.0}
    assert priced().keys() == {"access/ads/ctr/default", "access/shop/stranger/default"}
    assert "access/ads/unpriced/default" in make_route_index(stores)()
