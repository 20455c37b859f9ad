"""Planning the sample log: what agents are told, what pods need, and what the status says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from builders.inference import an_inference, find_config_map
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.resources.inference import build_inference_objects, hash_source
from tidegate.resources.serving import find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport, SampleProblem, SampleReport

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
NATS = {"url": "nats://nats.ads:4222", "subject": "samples.ctr"}


def logging(sample: str = "0.1", **sink: Any) -> dict[str, Any]:
    return {"sample": sample, "sink": sink or {"nats": NATS}}


def template(inference: Inference) -> str:
    return find_template_hash(build_inference_objects(inference, SETTINGS, ""))


def a_plan(
    inference: Inference, *reports: AgentReport, config_map: dict[str, Any] | None = None
) -> ReconcilePlan:
    pods = [
        a_pod(f"p{number}", source=hash_source(inference), template=template(inference))
        for number in range(len(reports))
    ]
    return plan_inference(
        InferenceObserved(
            inference,
            NOW,
            epoch=3,
            pods=pods,
            reports={pod.uid: report for pod, report in zip(pods, reports, strict=True)},
            config_maps=[config_map] if config_map else [],
        ),
        SETTINGS,
    )


def said(plan: ReconcilePlan) -> tuple[str, str, str] | None:
    items: Any = plan.status["conditions"]
    found = next((item for item in items if item["type"] == "SamplesLogged"), None)
    return (found["status"], found["reason"], found["message"]) if found else None


def test_an_object_without_a_log_says_nothing_of_it_anywhere() -> None:
    plan = a_plan(an_inference(), a_report(1))

    assert said(plan) is None
    assert "samples" not in find_config_map(plan)["data"]["desired.json"]
    assert plan.requeue_after is None


def test_another_share_or_server_needs_no_new_pod_and_a_claim_or_secret_does() -> None:
    without = template(an_inference())
    assert template(an_inference(logging=logging("0.01"))) == without
    assert template(an_inference(logging=logging("1", files={"uri": "s3://samples/ctr"}))) == without
    assert template(an_inference(logging=logging(files={"uri": "pvc://samples/ctr"}))) != without
    assert template(an_inference(logging=logging(nats={**NATS, "secretName": "nats"}))) != without


def test_only_a_pod_that_writes_samples_to_a_claim_leaves_the_owners_of_its_files_alone() -> None:
    def policy(**spec: Any) -> str | None:
        plan = a_plan(an_inference(**spec))
        pods = next(item for item in plan.apply if item["kind"] == "Deployment")["spec"]["template"]["spec"]
        found: str | None = pods["securityContext"].get("fsGroupChangePolicy")
        return found

    assert policy(logging=logging(files={"uri": "pvc://samples/ctr"})) == "OnRootMismatch"
    assert policy(logging=logging()) is None
    assert policy() is None


def test_a_changed_share_is_ordered_at_once_from_everybody_and_changes_no_version() -> None:
    before = a_plan(an_inference(replicas=3, logging=logging("0.1")))
    inference = an_inference(replicas=3, logging=logging("0.2"), metadata={"generation": 2})
    plan = a_plan(inference, *[a_report(1)] * 3, config_map=find_config_map(before))

    assert [order.desired_state.samples.share for order in plan.orders if order.desired_state.samples] == [
        0.2
    ] * 3
    assert '"share":0.2' in find_config_map(plan)["data"]["desired.json"].replace(" ", "")
    assert plan.status["swap"] is None if "swap" in plan.status else True


def test_a_version_that_goes_back_goes_back_with_the_log_of_the_spec() -> None:
    before = a_plan(an_inference(logging=logging("0.1")))
    inference = an_inference(model={"version": "2"}, logging=logging("0.2"), metadata={"generation": 2})
    plan = a_plan(inference, a_report(1), config_map=find_config_map(before))

    (order,) = plan.orders
    assert (
        order.desired_state.version,
        order.desired_state.samples and order.desired_state.samples.share,
    ) == (2, 0.2)
    started = find_config_map(plan)["data"]["desired.json"].replace(" ", "")
    assert '"version":1' in started
    assert '"share":0.2' in started


def test_the_condition_is_what_the_agents_say_and_ready_does_not_depend_on_it() -> None:
    inference = an_inference(replicas=2, logging=logging())
    well = a_report(1, samples=SampleReport())
    away = a_report(1, samples=SampleReport(problem=SampleProblem.SINK_UNREACHABLE, message="it is away"))

    assert said(a_plan(inference, well, well)) == (
        "True",
        "SamplesLogged",
        "a share of 0.1 of the requests goes to nats://nats.ads:4222",
    )
    broken = a_plan(inference, well, away)
    assert said(broken) == ("False", "SinkUnreachable", "on 1 of 2 replicas: it is away")
    items: Any = broken.status["conditions"]
    assert next(item for item in items if item["type"] == "Ready")["status"] == "True"
    assert said(a_plan(inference, a_report(1), a_report(1))) == (
        "False",
        "WaitingForReplicas",
        "no replica has begun to log yet",
    )
    # Nothing else would wake us when a sink goes away.
    assert broken.requeue_after == timedelta(seconds=15)


def test_an_event_tells_of_the_end_and_of_the_return_and_the_condition_goes_with_the_log() -> None:
    well = a_report(1, samples=SampleReport())
    away = a_report(1, samples=SampleReport(problem=SampleProblem.SINK_REFUSED, message="no stream"))

    def after(plan: ReconcilePlan, **spec: Any) -> Inference:
        return an_inference(status=dict(plan.status), **spec)

    broken = a_plan(an_inference(logging=logging()), away)
    same = a_plan(after(broken, logging=logging()), away)
    again = a_plan(after(same, logging=logging()), well)
    removed = a_plan(after(again), a_report(1))

    assert [event.reason for event in broken.events if event.reason == "SinkRefused"] == ["SinkRefused"]
    assert same.events == ()
    assert same.status == broken.status
    assert [event.reason for event in again.events] == ["SamplesLogged"]
    assert said(removed) is None
