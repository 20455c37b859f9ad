"""`spec.nearline.features`: which features agents ask for, or why no message is taken."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.live_features import live_features_spec
from builders.nearline import nearline_spec
from builders.pods import a_pod, a_report
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.feature_jobs import find_feature_jobs
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.inference.planner import InferenceObserved, plan_inference
from tidegate.planning.inference.stream_plan import StreamPlan, plan_stream
from tidegate.resources.inference import hash_source, make_desired_state, make_inference_workload
from tidegate.resources.serving import build_config_map
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import NOT_CURRENT, AgentReport, DesiredState, StreamFeatures

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GATEWAY = "tidegate-gateway.tidegate-system.svc:8080"


READY = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "AllReplicasReady",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


def a_worker(features: str | None = "users", *, inputs: Any = None) -> Inference:
    taken = [
        {"name": "age", "dtype": "INT64", "shape": [-1, 1]},
        {"name": "price", "dtype": "FP32", "shape": [-1]},
    ]
    model = {
        "inputs": taken if inputs is None else inputs,
        "outputs": [{"name": "y", "dtype": "FP32", "shape": [-1]}],
    }
    changes: dict[str, Any] = {"features": features} if features else {}
    return an_inference(
        tier="nearline",
        nearline=nearline_spec(**changes),
        status={"model": model if model["inputs"] else None},
    )


def some_features(name: str = "users", namespace: str = "ads", **changes: Any) -> FeatureCompute:
    spec: dict[str, Any] = {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "sources": [{"name": "profiles", "entity": "user", "table": {"uri": "file:///models/users.parquet"}}],
        "features": [
            {"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-1"}},
            {"name": "height", "lookup": {"field": "profiles.height", "type": "float32", "default": "0"}},
        ],
        **changes,
    }
    plan_hash = ""
    with suppress(InvalidSpecError):
        plan_hash = compile_plan(a_feature_compute(name, namespace, **{**spec, "status": {}})).hash
    return a_feature_compute(name, namespace, **{"status": {**READY, "planHash": plan_hash}, **spec})


def features_of(plan: StreamPlan) -> StreamFeatures:
    assert plan.order is not None
    assert plan.order.features is not None
    return plan.order.features


def refusal_of(plan: StreamPlan) -> tuple[Reason, str, bool]:
    assert plan.order is None
    assert plan.refusal is not None
    return plan.refusal.reason, plan.refusal.message, plan.refusal.stalled


def test_a_stream_without_features_is_as_before() -> None:
    plan = plan_stream(a_worker(None), None, GATEWAY, None)
    assert plan.refusal is None
    assert plan.order is not None
    assert "features" not in plan.order.model_dump(by_alias=True)
    assert plan_stream(an_inference(), None, GATEWAY, None) == StreamPlan()


def test_agents_ask_for_the_features_of_the_compute() -> None:
    compute = some_features()
    features = features_of(plan_stream(a_worker(), compute, GATEWAY, None))

    assert (features.gateway, features.call.model) == (GATEWAY, "users")
    assert features.call.headers == {"x-tidegate-features": "ads/users"}
    assert [spec.name for spec in features.call.inputs] == ["user_id"]
    # The agent selects those that the version takes that serves.
    assert [spec.name for spec in features.call.outputs] == ["age", "height"]
    assert features_of(plan_stream(a_worker(inputs=[]), compute, GATEWAY, None)) == features


def test_agents_ask_which_streams_could_not_be_read_with_a_redis_only() -> None:
    for store, marks in ((None, []), ({"redis": {"address": "redis.ads:6379"}}, [NOT_CURRENT])):
        compute = some_features(**live_features_spec(**({"store": store} if store else {})))
        features = features_of(plan_stream(a_worker(), compute, GATEWAY, None))
        assert features.call.outputs == compile_plan(compute).outputs
        assert [spec.name for spec in features.call.optional_outputs] == marks
        # The agent asks for the mark if the version that serves takes one of these.
        assert bool(features.marked_outputs) == bool(marks)


def test_features_that_read_no_stream_have_no_mark() -> None:
    compute = some_features(**live_features_spec(store={"redis": {"address": "redis.ads:6379"}}))
    features = features_of(plan_stream(a_worker(), compute, GATEWAY, None))
    assert {"age", "idle", "idle_log"} <= {output.name for output in features.call.outputs}
    assert {"idle", "idle_log"} <= set(features.marked_outputs)
    assert "age" not in features.marked_outputs


def test_features_of_another_namespace_are_called_by_their_own_name() -> None:
    features = features_of(
        plan_stream(a_worker("shop/users"), some_features(namespace="shop"), GATEWAY, None)
    )
    assert features.call.headers == {"x-tidegate-features": "shop/users"}
    assert features.call.title == "FeatureCompute shop/users"


def test_features_that_another_owner_has_changed_are_asked_for_once_the_pods_have_them() -> None:
    """The object has not changed, so its Ready is about the plan before."""
    before = some_features()
    ordered = an_order(plan_stream(a_worker(), before, GATEWAY, None))
    changed = some_features(
        features=[{"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "7"}}]
    )
    stale = changed.model_copy(update={"status": before.status})
    assert ordered.stream is not None
    assert features_of(plan_stream(a_worker(), stale, GATEWAY, ordered)) == ordered.stream.features
    assert features_of(plan_stream(a_worker(), changed, GATEWAY, ordered)) != ordered.stream.features


@pytest.mark.parametrize(
    ("worker", "compute", "expected"),
    [
        (
            a_worker(),
            None,
            (
                Reason.TARGET_NOT_FOUND,
                "spec.nearline.features: FeatureCompute users does not exist in namespace ads: create it, or correct the name; "
                "messages wait in the stream",
                False,
            ),
        ),
        (
            a_worker(),
            some_features().model_copy(
                update={
                    "metadata": some_features().metadata.model_copy(
                        update={"deletion_timestamp": some_features().metadata.creation_timestamp}
                    )
                }
            ),
            (
                Reason.TARGET_NOT_FOUND,
                "spec.nearline.features: FeatureCompute users does not exist in namespace ads: create it, or correct the name; "
                "messages wait in the stream",
                False,
            ),
        ),
        (
            a_worker("shop/users"),
            None,
            (
                Reason.TARGET_NOT_FOUND,
                "spec.nearline.features: FeatureCompute shop/users does not exist, or does not share with namespace ads: its "
                "owner can add ads to its annotation, with kubectl annotate featurecompute users -n shop "
                "tidegate.io/shared-with=ads; messages wait in the stream",
                False,
            ),
        ),
        (
            a_worker(),
            some_features(status={}),
            (
                Reason.TARGET_NOT_READY,
                "spec.nearline.features: FeatureCompute users is not Ready yet; messages wait in the stream",
                False,
            ),
        ),
        (
            a_worker(inputs=[{"name": "x", "dtype": "FP32", "shape": [-1]}]),
            some_features(),
            (
                Reason.PLAN_INVALID,
                "spec.nearline.features: the model takes no feature of users (age, height); it takes x: rename the features to "
                "match, or remove spec.nearline.features",
                True,
            ),
        ),
        (
            a_worker(inputs=[{"name": "age", "dtype": "FP32", "shape": [-1, 1]}]),
            some_features(),
            (
                Reason.PLAN_INVALID,
                "spec.nearline.features: feature age is INT64 [-1, 1], but the model takes FP32 [-1, 1]: change one of them",
                True,
            ),
        ),
    ],
)
def test_what_keeps_features_away_keeps_messages_in_the_stream(
    worker: Inference, compute: FeatureCompute | None, expected: tuple[Reason, str, bool]
) -> None:
    assert refusal_of(plan_stream(worker, compute, GATEWAY, None)) == expected


def test_a_stream_is_a_user_of_the_features() -> None:
    (job,) = find_feature_jobs((), (a_worker("shop/users"), a_worker(None)))
    assert (str(job.feature_compute), job.kind.value, str(job.owner)) == ("shop/users", "Stream", "ads/ctr")
    assert (job.rows, job.results) == ("stream WORK at nats://nats.ads:4222", "bucket results")


def test_another_plan_or_gateway_is_another_revision() -> None:
    revision = features_of(plan_stream(a_worker(), some_features(), GATEWAY, None)).revision
    assert features_of(plan_stream(a_worker(), some_features(replicas=3), GATEWAY, None)).revision == revision
    other = some_features(features=changed_features())
    assert features_of(plan_stream(a_worker(), other, GATEWAY, None)).revision != revision
    assert features_of(plan_stream(a_worker(), some_features(), "gateway:1", None)).revision != revision


def changed_features() -> list[dict[str, Any]]:
    return [{"name": "age", "lookup": {"field": "profiles.age", "type": "int64", "default": "-2"}}]


def test_features_of_another_plan_are_ordered_once_they_have_rolled_out() -> None:
    before = an_order(plan_stream(a_worker(), some_features(), GATEWAY, None))
    rolling = some_features(features=changed_features(), status={"observedGeneration": 0})

    during = features_of(plan_stream(a_worker(), rolling, GATEWAY, before))
    degraded = features_of(plan_stream(a_worker(), some_features(status={}), GATEWAY, before))
    after = features_of(plan_stream(a_worker(), some_features(features=changed_features()), GATEWAY, before))

    assert before.stream is not None
    assert during == degraded == before.stream.features
    assert after.revision != during.revision
    # Pods keep the plan that they have, also while the new one does not compile.
    shared = [{"name": "age", "shared": {"featureCompute": "gone"}}]
    assert features_of(plan_stream(a_worker(), some_features(features=shared), GATEWAY, before)) == during
    # Those of another FeatureCompute do not stand in.
    elsewhere = some_features(namespace="shop", status={})
    assert (
        refusal_of(plan_stream(a_worker("shop/users"), elsewhere, GATEWAY, before))[0]
        is Reason.TARGET_NOT_READY
    )


def an_order(plan: StreamPlan, **changes: Any) -> DesiredState:
    settings = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1")
    order = make_desired_state(a_worker(**changes), settings, epoch=1)
    return order.model_copy(update={"stream": plan.order})


REVISION = "the same"


@pytest.mark.parametrize(
    ("reported", "generation", "sent"),
    [
        (REVISION, 1, []),
        ("", 1, [True]),
        ("an older one", 1, [True]),
        # It does not know features, and would ask the model without them.
        (None, 1, []),
        (None, 0, [False]),
    ],
)
def test_an_agent_with_other_features_gets_the_order_again(
    reported: str | None, generation: int, sent: list[bool]
) -> None:
    worker = a_worker()
    revision = features_of(plan_stream(worker, some_features(), GATEWAY, None)).revision
    report = a_report(
        1, generation=generation, features_revision=revision if reported == REVISION else reported
    )
    orders = plan_orders(worker, {"p0": report}, some_features())
    assert [order.stream is not None for order in orders.values()] == sent
    assert all(order.features_revision == revision for order in orders.values() if order.stream is not None)


def plan_orders(
    worker: Inference, reports: dict[str, AgentReport], compute: FeatureCompute | None, start: str = ""
) -> dict[str, DesiredState]:
    """The orders by pod, where `start` is what the ConfigMap has."""
    settings = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", gateway=GATEWAY)
    source = hash_source(worker)
    pods = [a_pod(name, source=source) for name in reports]
    config_maps = []
    if start:
        workload = make_inference_workload(worker, start)
        config_maps = [{**build_config_map(workload, settings)}]
    observed = InferenceObserved(
        worker,
        NOW,
        epoch=3,
        pods=pods,
        reports={pod.uid: reports[pod.key.name] for pod in pods},
        config_maps=config_maps,
        features=compute,
    )
    return {order.pod.key.name: order.desired_state for order in plan_inference(observed, settings).orders}


@pytest.mark.no_rerun("a refused right")
def test_withdrawn_features_reach_every_replica_in_the_middle_of_a_swap() -> None:
    worker = a_worker()
    start = an_order(plan_stream(worker, some_features(), GATEWAY, None))
    revision = start.features_revision
    swapping = worker.model_copy(
        update={
            "metadata": worker.metadata.model_copy(update={"generation": 2}),
            "spec": worker.spec.model_copy(
                update={"model": worker.spec.model.model_copy(update={"version": "2"})}
            ),
        }
    )
    reports = {
        "old": a_report(1, generation=1, features_revision=revision),
        "loading": a_report(1, target=2, generation=2, features_revision=revision),
        "done": a_report(2, generation=2, features_revision=revision),
    }
    unchanged = plan_orders(swapping, reports, some_features(), start.to_json())
    withdrawn = plan_orders(swapping, reports, None, start.to_json())

    assert unchanged == {}
    assert {name: (order.version, order.stream) for name, order in withdrawn.items()} == {
        "old": (1, None),
        "loading": (2, None),
        "done": (2, None),
    }
