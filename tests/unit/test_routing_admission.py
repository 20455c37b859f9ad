"""Which share of failures each route's requests may have before they are refused, and where nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from builders.fleet import a_backend, a_fleet
from builders.model_access import a_model_access, a_route
from builders.release import a_release, released
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.routing.ir import AccessPoolKey, AdmissionLimit, RouteRule
from tidegate.routing.planner import plan_routing
from tidegate.routing.route_targets import admission_limits

CTR = ObjectKey("ads", "ctr")


def valued(*values: str | None, percent: int = 5) -> ModelAccess:
    routes = [
        a_route(
            f"r{number}",
            match={"headers": [{"name": "x-number", "exact": str(number)}]},
            **({"value": value} if value is not None else {}),
        )
        for number, value in enumerate(values)
    ]
    return a_model_access(routes=routes, protection={"admissionControl": {"maxFailurePercent": percent}})


def rules(*parts: ModelAccess | Backend) -> tuple[RouteRule, ...]:
    return plan_routing(a_fleet(*parts)).accesses[CTR].host.rules


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        (["1"], 5, [5]),
        (["3.0", "1.0"], 5, [80, 5]),
        (["2", "3", "1"], 5, [20, 80, 5]),
        # Only their order counts, and how they are written does not.
        (["100", "1", "1.0"], 5, [80, 5, 5]),
        # A route without a value has that of the Inference.
        (["0.5", None], 2, [2, 80]),
        (["2", "8", None], 5, [5, 80, 20]),
    ],
)
def test_the_lowest_value_is_refused_first(
    values: list[str | None], percent: int, expected: list[float]
) -> None:
    worth = "1" if len(values) < 3 else "4"
    found = admission_limits(valued(*values, percent=percent), {"ctr": a_backend("ctr", value=worth)})
    assert [found[f"r{number}", "ctr"].failure_percent for number in range(len(values))] == expected


def test_targets_of_one_route_differ_as_their_inferences_do() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "cvr")], protection={"admissionControl": {}})
    (rule,) = rules(access, a_backend("ctr", "10.0.0.1"), a_backend("cvr", "10.0.0.2", value="3"))
    limits = {str(target.backend): target.admission for target in rule.targets}
    assert {name: limit and limit.failure_percent for name, limit in limits.items()} == {
        "Inference ads/ctr": 10,
        "Inference ads/cvr": 80,
    }


def test_a_new_value_of_an_inference_changes_the_limits_before_it() -> None:
    translator = IncrementalTranslator()
    access = valued("2", None)
    translator.put_access(CTR, access)
    for worth, expected in (("1", [80, 5]), ("1", None), ("3", [5, 80])):
        backend = a_backend("ctr", "10.0.0.1", value=worth)
        translator.put_backend(backend.key, backend)
        planned = translator.take_change().hosts.get(HostKey(HostKind.ACCESS, CTR))
        limits = planned and [rule.targets[0].admission for rule in planned.host.rules]
        assert (limits and [limit and limit.failure_percent for limit in limits]) == expected


def test_without_it_nothing_is() -> None:
    (rule,) = rules(a_model_access(protection={"maxConcurrent": 5}), a_backend("ctr", "10.0.0.1"))
    assert [target.admission for target in rule.targets] == [None]


def test_the_fallback_that_answers_for_a_route_is_protected_alike() -> None:
    route = a_route(fallback={"inference": "small"})
    access = a_model_access(routes=[route], protection={"admissionControl": {}})
    (rule,) = rules(access, a_backend("ctr"), a_backend("small", "10.0.0.1"))
    assert [target.admission for target in rule.targets] == [AdmissionLimit(10)]


@pytest.mark.parametrize(("phase", "judged"), [("Progressing", True), ("Promoted", False)])
def test_what_a_release_still_judges_is_let_through(phase: str, judged: bool) -> None:
    access = a_release(steps=[50])
    body = access.dump()
    body["spec"]["protection"] = {"admissionControl": {}}
    access = released(ModelAccess.parse(body), phase=phase, step=1)
    (rule,) = rules(access, a_backend("v3", "10.0.0.1"), a_backend("v4", "10.0.0.2"))
    found = {
        target.backend.inference: target.admission
        for target in rule.targets
        if isinstance(target.backend, AccessPoolKey)
    }
    assert found["v3"] is not None
    assert (found["v4"] is None) is judged


@pytest.mark.parametrize("way", [{}, {"sticky": {"header": "x-user-id"}}], ids=["weights", "sticky"])
def test_a_fallback_is_protected_beside_what_is_judged(way: dict[str, Any]) -> None:
    access = a_release(steps=[50], route={"fallback": {"inference": "small"}} | way)
    body = access.dump()
    body["spec"]["protection"] = {"admissionControl": {}}
    access = released(ModelAccess.parse(body), phase="Progressing", step=1)
    backends = (a_backend("v3"), a_backend("v4", "10.0.0.2"), a_backend("small", "10.0.0.3"))
    (rule,) = rules(access, *backends)
    found = {
        target.backend.inference: target.admission
        for target in rule.targets
        if isinstance(target.backend, AccessPoolKey)
    }
    assert found == {"small": AdmissionLimit(10), "v4": None}


def test_a_pipeline_is_a_target_too() -> None:
    pipeline = {"models": [{"inference": "ctr", "as": "pctr"}], "modelName": "scene"}
    routes = [{"name": "scene", "value": "2", "pipeline": pipeline}]
    access = a_model_access(routes=routes, protection={"admissionControl": {}})
    plans = plan_routing(a_fleet(access, a_backend("ctr", "10.0.0.1"))).accesses[CTR]
    assert [target.admission for target in plans.host.rules[0].targets] == [AdmissionLimit(10)]
    # Its own calls come from requests that were let in.
    assert plans.parts_host is not None
    assert {target.admission for rule in plans.parts_host.rules for target in rule.targets} == {None}
