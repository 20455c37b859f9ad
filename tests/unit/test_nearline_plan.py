"""Planning a near-line stream: what agents are told, what pods need, and what the status says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.inference import an_inference
from builders.nearline import nearline_spec
from builders.pods import a_pod, a_report
from tidegate.api.inference import Inference
from tidegate.errors import InvalidSpecError
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.resources.inference import build_inference_objects, hash_source, make_desired_state
from tidegate.resources.serving import find_deployment, find_template_hash
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentReport, KafkaOrder, SaslMechanism, StreamProblem, StreamReport

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")


def a_worker(replicas: int = 1, *, generation: int = 1, **changes: Any) -> Inference:
    return an_inference(
        tier="nearline",
        replicas=replicas,
        nearline=nearline_spec(**changes),
        metadata={"generation": generation},
    )


def pod_spec(inference: Inference) -> Any:
    deployment: Any = find_deployment(build_inference_objects(inference, SETTINGS, ""))
    return deployment["spec"]["template"]["spec"]


def a_plan(inference: Inference, *reports: AgentReport) -> ReconcilePlan:
    template = find_template_hash(build_inference_objects(inference, SETTINGS, ""))
    pods = [
        a_pod(f"p{number}", source=hash_source(inference), template=template)
        for number in range(len(reports))
    ]
    return plan_inference(
        InferenceObserved(
            inference,
            NOW,
            epoch=3,
            pods=pods,
            reports={pod.uid: report for pod, report in zip(pods, reports, strict=True)},
        ),
        SETTINGS,
    )


def said(plan: ReconcilePlan) -> tuple[str, str, str] | None:
    items: Any = plan.status["conditions"]
    found = next((item for item in items if item["type"] == "Consuming"), None)
    return (found["status"], found["reason"], found["message"]) if found else None


def test_the_order_says_everything_and_names_a_consumer_of_its_own() -> None:
    order = make_desired_state(
        a_worker(consume={"deadline": {"header": "x-deadline"}}), SETTINGS, epoch=1
    ).stream
    assert order is not None
    assert (order.stream, order.subject, order.consumer) == ("WORK", "work.rank", "tidegate_ads_ctr")
    assert (order.max_in_flight, order.deadline_header, order.deadline_field) == (32, "x-deadline", "")
    assert (order.bucket, order.ttl_s, order.dead_letters, order.max_deliveries) == (
        "results",
        3600,
        "dead.rank",
        5,
    )
    named = make_desired_state(a_worker(nats={"consumer": "mine"}), SETTINGS, epoch=1).stream
    assert named is not None
    assert named.consumer == "mine"


def test_an_object_without_a_stream_says_nothing_of_it_anywhere() -> None:
    plan = a_plan(an_inference(), a_report(1))
    assert said(plan) is None
    assert "stream" not in make_desired_state(an_inference(), SETTINGS, epoch=1).to_json()
    agent = pod_spec(an_inference())["initContainers"][0]
    assert not any(each["name"].startswith("TIDEGATE_AGENT_DRAIN") for each in agent["env"])
    assert "--exit-timeout-secs=30" in pod_spec(an_inference())["containers"][0]["command"][2]


def test_pods_of_a_stream_leave_at_once_and_another_stream_replaces_none() -> None:
    spec = pod_spec(a_worker())
    env = {each["name"]: each.get("value") for each in spec["initContainers"][0]["env"]}
    assert float(env["TIDEGATE_AGENT_DRAIN_LEAST_S"] or 5) < 1
    assert "--exit-timeout-secs=1" in spec["containers"][0]["command"][2]
    assert pod_spec(a_worker(nats={"stream": "OTHER"}, maxDeliveries=9)) == spec
    with_secret = pod_spec(a_worker(nats={"secretName": "reader"}))
    assert {"name": "stream-secret", "secret": {"secretName": "reader", "optional": True}} in with_secret[
        "volumes"
    ]


def test_a_topic_of_kafka_is_ordered_with_its_group_and_its_results_on_a_server_of_their_own() -> None:
    worker = a_worker(
        kafka={"sasl": "SCRAM-SHA-512", "secretName": "reader"}, bucket={"secretName": "results"}
    )
    order = make_desired_state(worker, SETTINGS, epoch=1).stream
    assert order is not None
    assert order.kafka == KafkaOrder(
        servers=("kafka.ads:9092",),
        topic="work",
        group=f"tidegate_{worker.metadata.namespace}_{worker.metadata.name}",
        secret="reader",
        sasl=SaslMechanism.SCRAM_SHA_512,
    )
    assert (order.url, order.secret, order.bucket) == ("nats://nats.ads:4222", "results", "results")
    assert (order.stream, order.subject, order.consumer, order.dead_letters) == ("", "", "", "work-dead")

    spec = pod_spec(worker)
    for name, secret in (("stream-secret", "reader"), ("results-secret", "results")):
        assert {"name": name, "secret": {"secretName": secret, "optional": True}} in spec["volumes"]
    assert "results-secret" not in str(pod_spec(a_worker(kafka={})))
    assert said(a_plan(a_worker(0, kafka={}))) == (
        "False",
        "ScaledToZero",
        "no pod is to run; messages wait in topic work at kafka.ads:9092",
    )
    assert "kafka" not in make_desired_state(a_worker(), SETTINGS, epoch=1).to_json()


def test_another_stream_is_ordered_at_once_and_swaps_no_version() -> None:
    first = a_plan(a_worker())
    (config_map,) = (dict(one) for one in first.apply if one["kind"] == "ConfigMap")
    changed = a_worker(generation=2, maxDeliveries=9)
    pod = a_pod("p", source=hash_source(changed), template="t")
    plan = plan_inference(
        InferenceObserved(
            changed, NOW, epoch=3, pods=[pod], reports={pod.uid: a_report(1)}, config_maps=[config_map]
        ),
        SETTINGS,
    )
    assert [
        order.desired_state.stream.max_deliveries for order in plan.orders if order.desired_state.stream
    ] == [9]
    assert not plan.status.get("swap")


def test_the_condition_is_what_the_agents_say_and_ready_does_not_depend_on_it() -> None:
    well = a_report(1, stream=StreamReport())
    away = a_report(
        1, stream=StreamReport(problem=StreamProblem.STREAM_UNREACHABLE, message="connection refused")
    )
    assert said(a_plan(a_worker(2), well, well)) == (
        "True",
        "Consuming",
        "messages of stream WORK at nats://nats.ads:4222 are answered",
    )
    broken = a_plan(a_worker(2), well, away)
    assert said(broken) == ("False", "StreamUnreachable", "on 1 of 2 replicas: connection refused")
    items: Any = broken.status["conditions"]
    assert next(item for item in items if item["type"] == "Ready")["status"] == "True"
    assert broken.requeue_after == timedelta(seconds=15)
    waiting = said(a_plan(a_worker(), a_report(1)))
    assert waiting is not None
    assert waiting[:2] == ("False", "WaitingForReplicas")


def test_without_pods_the_stream_waits_and_nothing_is_asked_again() -> None:
    plan = a_plan(a_worker(0))
    assert said(plan) == (
        "False",
        "ScaledToZero",
        "no pod is to run; messages wait in stream WORK at nats://nats.ads:4222",
    )
    assert plan.requeue_after is None


def test_an_event_tells_of_the_end_and_of_the_return_and_the_condition_goes_with_the_stream() -> None:
    well = a_report(1, stream=StreamReport())
    refused = a_report(1, stream=StreamReport(problem=StreamProblem.STREAM_REFUSED, message="no stream"))

    def after(plan: ReconcilePlan, **spec: Any) -> Inference:
        return an_inference(status=dict(plan.status), tier="nearline", **spec)

    broken = a_plan(a_worker(), refused)
    same = a_plan(after(broken, nearline=nearline_spec()), refused)
    again = a_plan(after(same, nearline=nearline_spec()), well)
    removed = a_plan(after(again), a_report(1))

    assert "StreamRefused" in [event.reason for event in broken.events]
    assert same.events == ()
    assert same.status == broken.status
    assert [event.reason for event in again.events] == ["Consuming"]
    assert said(removed) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tier": "realtime", "nearline": nearline_spec()}, "nearline is only for tier nearline"),
        (
            {"tier": "nearline", "nearline": nearline_spec(deadLetters={"subject": "work.rank"})},
            "must be another than consume.nats.subject",
        ),
        (
            {"tier": "nearline", "nearline": nearline_spec(consume={"nats": None})},
            "give exactly one of nats, kafka",
        ),
        (
            {"tier": "nearline", "nearline": nearline_spec(consume={"deadline": {}})},
            "needs exactly one of header and field",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        an_inference(**spec)
