"""The loads that shares are planned from: what a request takes of each Inference, and how it can be answered for less."""

from __future__ import annotations

from typing import Any

from builders.model_access import a_model_access, a_route
from tidegate.api.meta import ObjectKey
from tidegate.planning.access.admitted_shares import ReducedAnswer, RouteLoad, plan_shares
from tidegate.publisher.share_planner import build_loads

CTR, SMALL = ObjectKey("ads", "ctr"), ObjectKey("ads", "small")
PRICED = {"admissionControl": {"mode": "Priced"}}
PRERANK = {"inference": "small", "as": "prerank"}
RANK = {
    "inference": "ctr",
    "as": "rank",
    "default": "0",
    "candidates": {"by": "prerank", "max": 200, "min": 50},
}


def loads_of(route: dict[str, Any], rates: dict[str, float], **spec: Any) -> list[RouteLoad]:
    access = a_model_access("ctr", routes=[route], **{"protection": PRICED, **spec})
    named = {f"access/ads/ctr/default{suffix}": rate for suffix, rate in rates.items()}
    return build_loads(access, {CTR: 1.0, SMALL: 1.0}, named, {})


def test_requests_that_a_fallback_answered_are_offered_to_the_route() -> None:
    route = a_route(fallback={"inference": "small", "valuePercent": 80}, value="5")
    (load,) = loads_of(route, {"": 60.0, "/reduced": 40.0})
    assert load == RouteLoad(
        "access/ads/ctr/default", 100.0, {CTR: 1.0}, 5.0, True, ReducedAnswer({SMALL: 1.0}, 4.0)
    )


def test_a_fallback_without_a_value_gives_no_reduced_answer() -> None:
    (load,) = loads_of(a_route(fallback={"inference": "small"}, value="5"), {"": 60.0})
    assert load.reduced is None


def test_a_pipeline_takes_a_request_of_each_model_and_less_with_fewer_candidates() -> None:
    pipeline = {"models": [PRERANK, RANK], "reducedValuePercent": 90}
    (load,) = loads_of({"name": "default", "pipeline": pipeline, "value": "2"}, {"": 10.0, "/reduced": 5.0})
    assert load.offered_per_s == 15.0
    assert (load.costs, load.value, load.priced) == ({SMALL: 1.0, CTR: 1.0}, 2.0, True)
    assert load.reduced == ReducedAnswer({SMALL: 1.0, CTR: 0.25}, 1.8)


def test_a_pipeline_that_states_no_reduced_value_is_admitted_or_refused() -> None:
    (load,) = loads_of({"name": "default", "pipeline": {"models": [PRERANK, RANK]}}, {"": 10.0})
    assert (load.reduced, load.value) == (None, 1.0)


def test_a_route_without_requests_is_no_load() -> None:
    assert loads_of(a_route(), {}) == []
    assert loads_of(a_route(), {"": float("nan")}) == []


def test_models_that_a_request_is_answered_without_limit_nothing() -> None:
    optional = {"inference": "cvr", "as": "pcvr", "optional": True, "timeout": "20ms", "default": "0"}
    pipeline = {"models": [PRERANK, RANK, optional], "reducedValuePercent": 90}
    (load,) = loads_of({"name": "default", "pipeline": pipeline, "value": "2"}, {"": 10.0})
    assert load.limiting_inferences == {SMALL, CTR}


def test_a_model_behind_another_access_is_not_limited_by_this_one() -> None:
    pipeline = {"models": [{"access": "cvr", "as": "pcvr"}]}
    (load,) = loads_of({"name": "default", "pipeline": pipeline}, {"": 10.0})
    assert (load.costs, load.priced) == ({}, True)
    assert plan_shares([load], {CTR: 1.0, SMALL: 1.0}) == {}
