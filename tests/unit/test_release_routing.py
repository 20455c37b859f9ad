"""Who answers on the route of a release while some of its targets have no pod."""

from __future__ import annotations

from typing import Any

import pytest

from builders.fleet import a_backend
from builders.release import ERRORS, LATENCY, a_release, released
from tidegate.api.model_access import ModelAccess
from tidegate.routing import hosts
from tidegate.routing.access_rules import AccessPlan, PlannedRoute, plan_access
from tidegate.routing.release import release_key, share_in_effect

THREE = {
    "targets": [{"inference": name, "weight": weight} for name, weight in (("v2", 1), ("v3", 99), ("v4", 0))]
}
FALLBACK = {"fallback": {"inference": "small"}}
STICKY = {"sticky": {"header": "x-user-id"}}


def planned(access: ModelAccess, *awake: str) -> AccessPlan:
    backends = [
        a_backend(name, *(["10.0.0.1"] if name in awake else [])) for name in access.spec.inference_names
    ]
    return plan_access(access, {one.key: one for one in backends}, hosts.find_host_owners([access]), None)


def sent(plan: AccessPlan) -> dict[str, float]:
    """The share of requests that each pool gets, in percent."""
    rule = plan.host.rules[0]
    total = sum(target.weight for target in rule.targets)
    shares: dict[str, float] = {}
    for target in rule.targets:
        name = getattr(target.backend, "inference", "") or getattr(target.backend, "name", "")
        shares[name] = shares.get(name, 0.0) + 100 * target.weight / total
    return {name: round(share, 2) for name, share in shares.items() if share}


def weights(route: PlannedRoute) -> dict[str, int]:
    return {target.inference: target.weight for target in route.targets}


@pytest.mark.parametrize("way", [{}, STICKY], ids=["weights", "sticky"])
@pytest.mark.parametrize(
    ("status", "awake", "shares"),
    [
        ({"weight": 100, "step": 5}, ("v2", "v3"), {"v2": 1, "v3": 99}),
        ({"phase": "Promoted"}, ("v2", "v3"), {"v2": 1, "v3": 99}),
        ({"phase": "Promoted"}, ("v2", "v3", "v4"), {"v4": 100}),
        ({"phase": "Promoted"}, ("v4",), {"v4": 100}),
        ({"step": 3}, ("v2", "v3"), {"v2": 1, "v3": 99}),
        ({"step": 3}, ("v2", "v4"), {"v2": 75, "v4": 25}),
        ({"step": 3}, ("v4",), {"v2": 0.75, "v3": 74.25, "v4": 25}),
        ({"step": 5}, ("v4",), {"v4": 100}),
    ],
)
def test_who_has_no_pod_gives_its_share_to_the_stable_targets_alone(
    way: dict[str, Any], status: dict[str, Any], awake: tuple[str, ...], shares: dict[str, float]
) -> None:
    plan = planned(released(a_release(route=THREE | way), **status), *awake)
    assert (sent(plan), plan.unavailable_reason) == (shares, None)


@pytest.mark.parametrize("way", [{}, STICKY], ids=["weights", "sticky"])
def test_for_stable_targets_without_a_pod_the_fallback_answers(way: dict[str, Any]) -> None:
    plan = planned(released(a_release(route=THREE | FALLBACK | way), step=3), "v4", "small")
    assert sent(plan) == {"v4": 25, "small": 75}
    # The real share of the target can be read from the status.
    assert (
        weights(plan.routes[0])["v4"] * 3
        == sum(weights(plan.routes[0]).values()) - weights(plan.routes[0])["v4"]
    )
    assert plan.routes[0].fallback is not None
    assert plan.routes[0].fallback.serving


@pytest.mark.parametrize("status", [{"step": 5}, {"step": 1}, {"phase": "Promoted"}, {"phase": "RolledBack"}])
def test_without_any_pod_the_route_says_so_or_the_fallback_answers(status: dict[str, Any]) -> None:
    assert planned(released(a_release(), **status)).unavailable_reason is not None
    plan = planned(released(a_release(route=FALLBACK), **status), "small")
    assert (sent(plan), plan.unavailable_reason) == ({"small": 100}, None)


def test_a_stable_target_that_is_deleted_leaves_its_share_to_nobody() -> None:
    access = released(a_release(route={"sticky": {"header": "x-user-id"}}), step=1)
    v4 = a_backend("v4", "10.0.0.1")
    plan = plan_access(access, {v4.key: v4}, hosts.find_host_owners([access]), None)
    assert sent(plan) == {"v3": 99, "v4": 1}
    assert [refusal.reason for refusal in plan.refusals] == ["TargetNotFound"]


def test_a_target_that_was_taken_back_never_answers_for_the_stable_ones() -> None:
    plan = planned(released(a_release(), phase="RolledBack"), "v4")
    assert plan.unavailable_reason is not None


def test_the_key_of_a_release_stays_the_same_from_version_to_version() -> None:
    """Pinned: another one would let every ended release start over at an upgrade."""
    assert release_key(a_release()) == "20a107dfc01989d7-60dfcf4633009969"
    assert (
        release_key(a_release(interval="2m", onFailure="Rollback", steps=[1, 5, 25, 50, 100]))
        == "20a107dfc01989d7-60dfcf4633009969"
    )


def test_the_order_of_targets_is_no_other_release() -> None:
    turned = {"targets": list(reversed(THREE["targets"]))}
    assert release_key(a_release(route=turned)) == release_key(a_release(route=THREE))
    assert release_key(a_release(route=THREE)) != release_key(a_release())


@pytest.mark.parametrize(
    "fields", [{"interval": "5m"}, {"checks": [ERRORS, LATENCY]}, {"onFailure": "Pause"}]
)
def test_what_is_promoted_stays_so_while_its_checks_are_edited(fields: dict[str, Any]) -> None:
    def edited(phase: str) -> ModelAccess:
        before = released(a_release(), phase=phase)
        return a_release(**fields).model_copy(update={"status": before.status})

    assert share_in_effect(edited("Promoted")) == 100
    assert share_in_effect(edited("Progressing")) == 0


def test_an_unknown_phase_gives_the_target_nothing() -> None:
    body = released(a_release(), phase="Promoted").dump()
    body["status"]["release"]["phase"] = "Draining"
    access = ModelAccess.parse(body)
    assert share_in_effect(access) == 0
    assert access.status.release is not None
    assert access.status.release.phase == "RolledBack"
