"""`tidegate why modelaccess/NAME`: the first stage that does not follow the newest spec."""

from __future__ import annotations

from typing import Any

import pytest

from builders.model_access import a_model_access, a_route
from builders.release import ERRORS
from tidegate.api.model_access import ModelAccess
from tidegate.reports.access_explanation import StageState, explain_access

REASONS = {"TargetsReady": "TargetsReady", "Programmed": "Programmed", "Ready": "Reconciled"}


def a_condition(
    condition_type: str, status: str = "True", *, generation: int = 4, **fields: str
) -> dict[str, Any]:
    return {
        "type": condition_type,
        "status": status,
        "reason": fields.get("reason", REASONS[condition_type]),
        "message": fields.get("message", "as it is"),
        "observedGeneration": generation,
        "lastTransitionTime": "2026-06-01T12:00:00Z",
    }


def an_access(
    *conditions: dict[str, Any], observed: int = 4, in_effect: list[dict[str, Any]] | None = None, **spec: Any
) -> ModelAccess:
    given = {condition["type"]: condition for condition in conditions}
    all_conditions = [given.get(name) or a_condition(name) for name in REASONS]
    status = {"observedGeneration": observed, "conditions": all_conditions, "routes": in_effect or []}
    return a_model_access(metadata={"generation": 4}, status=status, **spec)


def test_nothing_is_behind_when_every_stage_runs_the_generation() -> None:
    explanation = explain_access(an_access())
    assert explanation.behind is None
    assert {stage.state for stage in explanation.stages} == {StageState.DONE}
    assert "  every stage runs this generation" in explanation.render_lines(wide=False)


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        (3, 'have reconciled generation 3 and not 4; "tidegate doctor" shows whether a leader runs'),
        (-1, 'have not reconciled the object yet; "tidegate doctor" shows whether a leader runs'),
    ],
)
def test_controllers_that_have_not_seen_the_spec_are_named_first(observed: int, message: str) -> None:
    stale = [a_condition(name, "False", generation=3) for name in REASONS]
    explanation = explain_access(an_access(*stale, observed=observed))
    assert explanation.behind == "controllers"
    states = {stage.name: (stage.state, stage.message) for stage in explanation.stages}
    assert states["controllers"] == (StageState.BEHIND, message)
    assert states["gateways"] == (StageState.UNKNOWN, "not judged for this generation yet")


def test_a_gateway_that_rejects_the_generation_is_named_with_its_words() -> None:
    rejected = a_condition(
        "Programmed", "False", reason="ProxyRejected", message="proxy gw-1: unknown cluster"
    )
    not_ready = a_condition("Ready", "False", reason="ProxyRejected")
    explanation = explain_access(an_access(rejected, not_ready))
    assert explanation.behind == "gateways"
    lines = list(explanation.render_lines(wide=False))
    assert "  gateways    behind   ProxyRejected: proxy gw-1: unknown cluster" in lines
    assert lines[-1] == "  look at: gateways"


def test_a_condition_of_an_older_generation_does_not_count() -> None:
    explanation = explain_access(an_access(a_condition("Programmed", generation=3)))
    assert explanation.behind == "gateways"


ROUTE = {"name": "default", "targets": [{"inference": "v3", "weight": 90, "endpoints": 2}, {"inference": "v4", "weight": 10, "endpoints": 1}]}  # fmt: skip


def test_a_release_that_decides_the_weights_is_named() -> None:
    targets = [{"inference": "v3", "weight": 50}, {"inference": "v4", "weight": 50}]
    access = an_access(
        in_effect=[ROUTE],
        routes=[{"name": "default", "targets": targets}],
        release={"route": "default", "target": "v4", "steps": [10], "interval": "5m", "checks": [ERRORS]},
    )
    assert explain_access(access).notes == (
        "route default: the release of v4 decides the weights (v3 gets 90% and not 50%, v4 gets 10% and not 50%); "
        '"tidegate release status" shows its step',
    )


def test_weights_of_another_scale_are_the_same_shares() -> None:
    spec = [
        {"name": "default", "targets": [{"inference": "v3", "weight": 9}, {"inference": "v4", "weight": 1}]}
    ]
    assert explain_access(a_model_access(status={"routes": [ROUTE]}, routes=spec)).notes == ()


def test_targets_without_pods_and_the_fallback_that_answers_are_noted() -> None:
    route = {
        "name": "default",
        "targets": [{"inference": "v3", "weight": 100, "endpoints": 0}],
        "fallback": {"inference": "v2", "serving": True, "endpoints": 1},
    }
    access = a_model_access(status={"routes": [route]}, routes=[a_route("default", "v3")])
    assert explain_access(access).notes == (
        "route default: the fallback v2 answers in place of targets without a ready pod",
        "route default: target v3 has no ready pod, so its share goes to the others",
    )
