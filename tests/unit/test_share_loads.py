"""The loads that shares are planned from: what a request takes of each Inference, and how it can be answered for less."""

from __future__ import annotations

from typing import Any

import pytest

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
        "access/ads/ctr/default", 100.0, {CTR: 1.0}, 5.0, True, (ReducedAnswer({SMALL: 1.0}, 4.0),)
    )


def test_a_fallback_without_a_value_gives_no_reduced_answer() -> None:
    (load,) = loads_of(a_route(fallback={"inference": "small"}, value="5"), {"": 60.0})
    assert load.reduced == ()


def test_a_pipeline_takes_a_request_of_each_model_and_less_with_fewer_candidates() -> None:
    pipeline = {"models": [PRERANK, RANK], "reducedValuePercent": 90}
    (load,) = loads_of({"name": "default", "pipeline": pipeline, "value": "2"}, {"": 10.0, "/reduced": 5.0})
    assert load.offered_per_s == 15.0
    assert (load.costs, load.value, load.priced) == ({SMALL: 1.0, CTR: 1.0}, 2.0, True)
    assert load.reduced == (ReducedAnswer({SMALL: 1.0, CTR: 0.25}, 1.8),)


FINAL = {
    "inference": "final",
    "as": "final",
    "default": "0",
    "candidates": {"by": "rank", "max": 40, "min": 20},
}
FINAL_KEY = ObjectKey("ads", "final")


def test_a_pipeline_of_several_cuts_can_shorten_each_of_them_alone() -> None:
    rank, final = (
        {**model, "candidates": {**model["candidates"], "reducedValuePercent": 97}} for model in (RANK, FINAL)
    )
    pipeline = {"models": [PRERANK, rank, final], "reducedValuePercent": 90}
    rates = {"": 10.0, "/reduced": 5.0, "/reduced/rank": 3.0, "/reduced/final": 2.0, "/reduced/other": 9.0}
    (load,) = loads_of({"name": "default", "pipeline": pipeline, "value": "2"}, rates)
    assert load.offered_per_s == 20.0
    assert load.reduced == (
        ReducedAnswer({SMALL: 1.0, CTR: 0.25, FINAL_KEY: 0.5}, 1.8),
        ReducedAnswer({SMALL: 1.0, CTR: 0.25, FINAL_KEY: 1.0}, pytest.approx(1.94), "/reduced/rank"),
        ReducedAnswer({SMALL: 1.0, CTR: 1.0, FINAL_KEY: 0.5}, pytest.approx(1.94), "/reduced/final"),
    )
    name = "access/ads/ctr/default"
    # Each stage is shortened only while its own model lacks capacity; both are where both do.
    assert plan_shares([load], {SMALL: 100, CTR: 10, FINAL_KEY: 100}) == {
        name: pytest.approx(1 / 3),
        f"{name}/reduced": pytest.approx(1 / 3),
    }
    assert plan_shares([load], {SMALL: 100, CTR: 100, FINAL_KEY: 16}) == {
        name: pytest.approx(0.6),
        f"{name}/reduced": pytest.approx(0.6),
        f"{name}/reduced/rank": pytest.approx(0.6),
    }
    assert plan_shares([load], {SMALL: 100, CTR: 10, FINAL_KEY: 13}) == {name: pytest.approx(0.3)}
    # A little less than that one stage needs is refused, where fewer candidates for both would lose more.
    assert plan_shares([load], {SMALL: 100, CTR: 10, FINAL_KEY: 19.9}) == {
        name: pytest.approx(0.335, abs=0.002),
        f"{name}/reduced": pytest.approx(0.335, abs=0.002),
        f"{name}/reduced/rank": pytest.approx(0.995),
        f"{name}/reduced/final": pytest.approx(0.995),
    }
    # Nothing is gained by fewer candidates where the model that lacks capacity gets all rows anyway.
    assert plan_shares([load], {SMALL: 10, CTR: 100, FINAL_KEY: 100}) == {
        name: pytest.approx(0.5),
        **{f"{name}/reduced{part}": pytest.approx(0.5) for part in ("", "/rank", "/final")},
    }


def test_cuts_that_cannot_be_told_apart_are_not_shortened_alone() -> None:
    optional = {**FINAL, "optional": True, "timeout": "20ms"}
    behind = {"access": "other", **{name: part for name, part in FINAL.items() if name != "inference"}}
    again = {**FINAL, "inference": "ctr"}
    for models in ([PRERANK, RANK], *([PRERANK, RANK, last] for last in (optional, behind, again))):
        pipeline = {"models": models, "reducedValuePercent": 90}
        (load,) = loads_of({"name": "default", "pipeline": pipeline, "value": "2"}, {"": 10.0})
        assert [answer.suffix for answer in load.reduced] == ["/reduced"]


def test_a_pipeline_that_states_no_reduced_value_is_admitted_or_refused() -> None:
    (load,) = loads_of({"name": "default", "pipeline": {"models": [PRERANK, RANK]}}, {"": 10.0})
    assert (load.reduced, load.value) == ((), 1.0)


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
