"""What a ModelAccess says when a process of one of its pipelines ended while it served."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.fleet import a_backend
from builders.model_access import a_model_access
from builders.pipeline import some_callees
from builders.pods import a_pod, a_report
from tidegate.planning import runner_ends
from tidegate.planning.model_access import AccessObserved, plan_model_access
from tidegate.planning.pipelines import PipelinePods, PipelinesObserved, plan_pipelines
from tidegate.planning.plan import Plan
from tidegate.planning.proxies import ProxyView
from tidegate.resources.settings import ServingSettings
from tidegate.routing import hosts
from tidegate.routing.access_rules import plan_access
from tidegate_dataplane.contract import RunnerEnd

SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCENE = a_model_access(
    "scene", routes=[{"name": "home", "pipeline": {"models": [{"inference": "ctr", "as": "pctr"}]}}]
)


def a_plan(*, killed_for_memory: bool | None, conditions: list[dict[str, Any]] | None = None) -> Plan:
    """The access with one pod, one of whose processes ended of late (None: none did)."""
    access = SCENE.parse({**SCENE.dump(), "status": {"conditions": conditions or []}})
    pod = replace(a_pod("scene-0", source="any", ready=False), memory_limit="512Mi")
    end = None if killed_for_memory is None else RunnerEnd(version=1, killed_for_memory=killed_for_memory)
    there = PipelinePods(pods=(pod,), reports={pod.uid: a_report(1, ended=end)})
    observed = PipelinesObserved({"home": there}, some_callees(), gateway="gateway:8080")
    pipelines = plan_pipelines(access, observed, SETTINGS)
    ctr = a_backend("ctr", "10.0.0.1")
    routing = plan_access(access, {ctr.key: ctr}, hosts.claim((access,)), None)
    return plan_model_access(
        AccessObserved(access, NOW, routing, [ProxyView("a", 1)], gateway="gateway:8080", pipelines=pipelines)
    )


def ready(plan: Plan) -> dict[str, Any]:
    items: Any = plan.status["conditions"]
    return next(item for item in items if item["type"] == "Ready")


@pytest.mark.parametrize(
    ("killed_for_memory", "reason", "says"),
    [
        (
            True,
            "OutOfMemory",
            "limit of 512Mi while it served; raise spec.routes[home].pipeline.resources.memory",
        ),
        (False, "PodFailing", "ended while it served, and the model is loaded anew"),
    ],
)
def test_the_end_of_a_process_is_named_with_the_way_out(
    killed_for_memory: bool, reason: str, says: str
) -> None:
    plan = a_plan(killed_for_memory=killed_for_memory)

    assert (ready(plan)["status"], ready(plan)["reason"]) == ("False", reason)
    assert ready(plan)["message"].startswith(
        "pipeline of route home: pod scene-0: the process that runs version 1"
    )
    assert says in ready(plan)["message"]
    assert [event.reason for event in plan.events] == [reason]
    assert plan.requeue_after is not None
    assert plan.requeue_after <= runner_ends.LOOK_AGAIN
    # Said once.
    items: Any = plan.status["conditions"]
    assert a_plan(killed_for_memory=killed_for_memory, conditions=items).events == ()


def test_a_pod_that_is_not_ready_for_another_reason_is_no_end() -> None:
    plan = a_plan(killed_for_memory=None)
    assert ready(plan)["reason"] not in {"OutOfMemory", "PodFailing"}
    assert plan.events == ()
