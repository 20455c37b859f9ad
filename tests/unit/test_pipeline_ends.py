"""What a ModelAccess says when a process of one of its pipelines ended while it served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.fleet import a_backend
from builders.model_access import a_model_access
from builders.pipeline import some_callees
from builders.pods import a_pod, a_report
from tidegate.api.model_access import ModelAccess
from tidegate.api.reasons import Reason
from tidegate.planning.access.model_access import AccessObserved, plan_model_access
from tidegate.planning.access.pipelines import PipelinePods, PipelinesObserved, plan_pipelines
from tidegate.planning.access.proxies import ProxyView
from tidegate.planning.inference.serving_status import RUNNER_REQUEUE
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodProblem, PodView
from tidegate.resources.serving import find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate.routing import hosts
from tidegate.routing.access_rules import plan_access
from tidegate.routing.fleet import Backend
from tidegate.routing.pipelines import pipeline_key
from tidegate_dataplane.contract import RunnerEnd

SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", gateway="gateway:8080")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
END = RunnerEnd(version=1, killed_for_memory=False)


def a_scene(replicas: int = 1) -> ModelAccess:
    pipeline = {"models": [{"inference": "ctr", "as": "pctr"}], "replicas": replicas}
    return a_model_access("scene", routes=[{"name": "home", "pipeline": pipeline}])


def plan_with(
    pods: Sequence[PodView], ends: Sequence[RunnerEnd | None], conditions: Sequence[dict[str, Any]] = ()
) -> ReconcilePlan:
    """The access with these pods, and what each agent says of a process that ended of late; all run the template of today."""
    access = a_scene(len(pods))
    access = access.parse({**access.dump(), "status": {"conditions": list(conditions)}})
    reports = {pod.uid: a_report(1, ended=end) for pod, end in zip(pods, ends, strict=True)}
    bare = plan_pipelines(access, PipelinesObserved({}, some_callees()), SETTINGS)
    template = find_template_hash(bare.apply)
    there = PipelinePods(pods=[replace(pod, template=template) for pod in pods], reports=reports)
    observed = PipelinesObserved({"home": there}, some_callees())
    pipelines = plan_pipelines(access, observed, SETTINGS)
    ctr = a_backend("ctr", "10.0.0.1")
    home = Backend(pipeline_key(access.key, "home"), "home", ctr.endpoints)
    routing = plan_access(access, {ctr.key: ctr, home.key: home}, hosts.find_host_owners((access,)), None)
    proxies = [ProxyView("a", 1)]
    return plan_model_access(
        AccessObserved(access, NOW, routing, proxies, gateway="gateway:8080", pipelines=pipelines)
    )


def a_plan(*, killed_for_memory: bool | None, conditions: Sequence[dict[str, Any]] = ()) -> ReconcilePlan:
    """The access with one pod, one of whose processes ended of late (None: none did)."""
    pod = replace(a_pod("scene-0", source="any", ready=False), memory_limit="512Mi")
    end = None if killed_for_memory is None else RunnerEnd(version=1, killed_for_memory=killed_for_memory)
    return plan_with([pod], [end], conditions)


def ready(plan: ReconcilePlan) -> dict[str, Any]:
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
    assert plan.requeue_after <= RUNNER_REQUEUE
    # Said once.
    items: Any = plan.status["conditions"]
    assert a_plan(killed_for_memory=killed_for_memory, conditions=items).events == ()


def test_a_pod_that_is_not_ready_for_another_reason_is_no_end() -> None:
    plan = a_plan(killed_for_memory=None)
    assert ready(plan)["reason"] not in {"OutOfMemory", "PodFailing"}
    assert plan.events == ()


def test_an_end_is_over_when_the_pod_is_ready_again() -> None:
    pods = [a_pod("scene-0", source="any"), a_pod("scene-1", source="any")]
    plan = plan_with(pods, [END, None])
    assert (ready(plan)["status"], plan.events) == ("True", ())


def test_an_end_does_not_hide_what_keeps_a_pod_from_running() -> None:
    trouble = PodProblem(Reason.IMAGE_PULL, "no such image")
    pods = [
        a_pod("scene-0", source="any", ready=False),
        a_pod("scene-1", source="any", ready=False, trouble=trouble),
    ]
    said = [ready(plan_with(pods, [end, None])) for end in (END, None)]
    assert {(one["reason"], one["message"]) for one in said} == {
        ("ImagePull", "pipeline of route home: pod scene-1: no such image")
    }


def test_an_end_in_a_ready_pod_is_not_named_for_another_that_is_not_ready() -> None:
    pods = [a_pod("scene-0", source="any"), a_pod("scene-1", source="any", ready=False)]
    plan = plan_with(pods, [END, None])
    assert ready(plan)["reason"] == "WaitingForReplicas"
    assert plan.events == ()
