"""What a ModelAccess says about itself: only what proxies have acknowledged and targets really have."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.model_access import a_model_access, a_route
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.model_access import AccessObserved, plan_model_access
from tidegate.planning.access.proxies import ProxyView
from tidegate.planning.plan import ReconcilePlan
from tidegate.routing import hosts
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint
from tidegate.routing.refusals import RoutingRefusal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_plan(
    access: ModelAccess,
    *,
    endpoints: dict[str, int] | None = None,
    proxies: list[ProxyView] | None = None,
    others: tuple[ModelAccess, ...] = (),
    callers: tuple[RoutingRefusal, ...] = (),
) -> ReconcilePlan:
    backends = {}
    for name, count in (endpoints if endpoints is not None else {"ctr": 1}).items():
        key = BackendKey(BackendKind.INFERENCE, "ads", name)
        backends[key] = Backend(key, "ctr", tuple(Endpoint(f"10.0.0.{index}") for index in range(count)))
    routing = plan_access(access, backends, hosts.find_host_owners((access, *others)), None)
    return plan_model_access(AccessObserved(access, NOW, routing, proxies, callers, gateway="gateway:8080"))


def ready(plan: ReconcilePlan, kind: str = "Ready") -> tuple[str, str]:
    items: Any = plan.status["conditions"]
    return next((item["status"], item["reason"]) for item in items if item["type"] == kind)


def test_ready_when_every_proxy_runs_this_generation_and_every_route_answers() -> None:
    access = a_model_access(metadata={"generation": 4})
    plan = a_plan(access, proxies=[ProxyView("a", 4), ProxyView("b", 5)])

    assert ready(plan) == ("True", "Programmed")
    assert plan.requeue_after is None


@pytest.mark.parametrize(
    ("proxies", "reason"),
    [
        (None, "XdsUnreachable"),
        ([], "NoProxies"),
        ([ProxyView("a", 4), ProxyView("b", 3)], "WaitingForProxies"),
        ([ProxyView("a", 4), ProxyView("b", None)], "WaitingForProxies"),
        ([ProxyView("a", 4), ProxyView("b", 3, nack="bad route")], "ProxyRejected"),
    ],
)
def test_not_programmed_says_why_and_looks_again(proxies: list[ProxyView] | None, reason: str) -> None:
    plan = a_plan(a_model_access(metadata={"generation": 4}), proxies=proxies)

    assert ready(plan, "Programmed") == ("False", reason)
    assert ready(plan)[0] == "False"
    assert plan.requeue_after is not None


def test_not_ready_before_every_proxy_has_the_endpoints_that_the_pods_already_are() -> None:
    plan = a_plan(a_model_access(), proxies=[ProxyView("a", 1), ProxyView("b", 1, has_endpoints=False)])

    assert ready(plan, "Programmed") == ("True", "Programmed")
    assert ready(plan) == ("False", "WaitingForProxies")
    assert "not every connected proxy has its endpoints yet" in str(plan.status["conditions"])
    assert plan.requeue_after is not None


def test_a_rolling_restart_of_the_gateways_writes_no_status() -> None:
    before = [ProxyView(f"old-{number}", 1) for number in range(4)]
    status = a_plan(a_model_access(), proxies=before).status
    for number in range(4):
        new = [ProxyView(f"new-{each}", 1) for each in range(number)]
        connected = ProxyView(f"new-{number}", None, has_endpoints=False)
        for proxies in (
            [*before[number:], *new, connected],
            [*before[number:], *new, ProxyView(connected.node, 1)],
            [*before[number + 1 :], *new, ProxyView(connected.node, 1)],
        ):
            plan = a_plan(a_model_access(status=dict(status)), proxies=proxies)
            assert plan.status == status
            assert plan.requeue_after is None


def test_while_a_change_comes_to_one_gateway_after_the_other_the_status_says_the_same() -> None:
    changed = a_model_access(metadata={"generation": 2})
    said = [
        a_plan(changed, proxies=[ProxyView(str(each), 2 if each < there else 1) for each in range(3)]).status
        for there in range(3)
    ]
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize(
    "proxies",
    [
        [ProxyView("new", None, has_endpoints=False)],
        [ProxyView("a", 1), ProxyView("new", None, nack="bad route", has_endpoints=False)],
    ],
    ids=["it is the only one", "it refuses what it gets"],
)
def test_a_gateway_that_has_just_come_counts_where(proxies: list[ProxyView]) -> None:
    status = a_plan(a_model_access(), proxies=[ProxyView("old", 1)]).status
    assert ready(a_plan(a_model_access(status=dict(status)), proxies=proxies))[0] == "False"


def test_target_that_does_not_exist_is_named() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "gone")])
    plan = a_plan(access, proxies=[ProxyView("a", 1)])

    assert ready(plan) == ("False", "TargetNotFound")
    assert ready(plan, "Stalled") == ("False", "Reconciled")


def test_weight_of_a_target_without_endpoints_goes_to_the_others_and_the_route_stays_ready() -> None:
    access = a_model_access(routes=[a_route("default", "ctr", "sleepy")])
    plan = a_plan(access, endpoints={"ctr": 2, "sleepy": 0}, proxies=[ProxyView("a", 1)])

    routes: Any = plan.status["routes"]
    weights = {target["inference"]: target["weight"] for target in routes[0]["targets"]}
    assert weights == {"ctr": 100, "sleepy": 0}
    assert ready(plan) == ("True", "Programmed")
    assert ready(plan, "TargetsReady") == ("False", "TargetNotReady")


def test_route_that_nobody_answers_is_not_ready() -> None:
    plan = a_plan(a_model_access(), endpoints={"ctr": 0}, proxies=[ProxyView("a", 1, has_endpoints=False)])

    assert ready(plan) == ("False", "TargetNotReady")
    assert plan.requeue_after is None


def test_route_whose_only_ready_target_has_no_weight_is_not_ready() -> None:
    route = a_route("default", "ctr")
    route["targets"] = [{"inference": "ctr", "weight": 1}, {"inference": "spare", "weight": 0}]
    plan = a_plan(
        a_model_access(routes=[route]), endpoints={"ctr": 0, "spare": 1}, proxies=[ProxyView("a", 1)]
    )

    assert ready(plan) == ("False", "TargetNotReady")


def test_host_of_an_older_access_is_refused_and_only_the_user_can_mend_it() -> None:
    older = a_model_access(
        "older", hosts=["ctr.example.com"], metadata={"creationTimestamp": "2025-01-01T00:00:00Z"}
    )
    newer = a_model_access("newer", hosts=["ctr.example.com"])
    plan = a_plan(newer, proxies=[ProxyView("a", 1)], others=(older,))

    assert ready(plan) == ("False", "HostConflict")
    assert ready(plan, "Stalled")[0] == "True"
    assert str(ObjectKey("ads", "older")) in str(plan.status["conditions"])


def test_mirror_and_fallback_show_and_are_to_have_pods() -> None:
    route = a_route(mirror=[{"inference": "shadow", "percent": 5}], fallback={"inference": "small"})
    access = a_model_access(routes=[route])
    proxies = [ProxyView("a", 1)]

    plan = a_plan(access, endpoints={"ctr": 1, "shadow": 2, "small": 3}, proxies=proxies)
    assert ready(plan, "TargetsReady") == ("True", "TargetsReady")
    (shown,) = plan.status["routes"]  # type: ignore[misc]
    assert shown["mirror"] == [{"inference": "shadow", "percent": 5, "endpoints": 2}]
    assert shown["fallback"] == {"inference": "small", "serving": False, "endpoints": 3}

    # Requests are answered without them, so the access stays ready.
    plan = a_plan(access, endpoints={"ctr": 1, "shadow": 0, "small": 0}, proxies=proxies)
    assert ready(plan, "TargetsReady") == ("False", "TargetNotReady")
    assert ready(plan) == ("True", "Programmed")


def test_a_fallback_that_serves_keeps_the_access_ready_and_says_so() -> None:
    access = a_model_access(routes=[a_route(fallback={"inference": "small"})])
    plan = a_plan(access, endpoints={"ctr": 0, "small": 1}, proxies=[ProxyView("a", 1)])
    assert ready(plan) == ("True", "Programmed")
    (shown,) = plan.status["routes"]  # type: ignore[misc]
    assert shown["fallback"]["serving"]
    assert shown["targets"] == [{"inference": "ctr", "weight": 0, "endpoints": 0}]


def test_a_missing_mirror_is_named() -> None:
    access = a_model_access(routes=[a_route(mirror=[{"inference": "shadow"}])])
    plan = a_plan(access, endpoints={"ctr": 1}, proxies=[ProxyView("a", 1)])
    assert ready(plan) == ("False", "TargetNotFound")


def test_an_expression_that_is_too_large_stalls_by_name_and_the_targets_stay_ready() -> None:
    match = {"headers": [{"name": "x-a", "regex": "a{200}"}]}
    access = a_model_access(routes=[a_route("some", match=match), a_route()])
    plan = a_plan(access, proxies=[ProxyView("a", 1)])
    assert ready(plan) == ("False", "InvalidSpec")
    assert ready(plan, "Stalled")[0] == "True"
    assert ready(plan, "TargetsReady") == ("True", "TargetsReady")
    items: Any = plan.status["conditions"]
    (message,) = {item["message"] for item in items if item["type"] == "Ready"}
    assert "spec.routes[some].match.headers[x-a].regex: the expression takes 204 instructions" in message


def test_what_only_the_xds_servers_know_of_its_callers_is_said() -> None:
    access = a_model_access(auth={"apiKeys": {"secret": "callers"}})
    part = "spec.auth.apiKeys.secret: callers"
    refusal = RoutingRefusal(access.key, Reason.CREDENTIALS_NOT_READABLE, part, "there is no Secret callers")
    closed = a_plan(access, proxies=[ProxyView("a", 1, has_endpoints=False)], callers=(refusal,))
    items: Any = closed.status["conditions"]
    said = next(item for item in items if item["type"] == "Ready")
    assert (said["status"], said["reason"]) == ("False", "CredentialsNotReadable")
    assert said["message"] == f"{part}: there is no Secret callers"
    assert ready(closed, "Programmed") == ("True", "Programmed")
    assert closed.requeue_after is None

    # By itself this process says nothing of Secrets, which it does not read.
    assert ready(a_plan(access, proxies=[ProxyView("a", 1)])) == ("True", "Programmed")
