"""`spec.nearline.features`: which features agents ask for, or why no message is taken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.nearline import nearline_spec
from builders.pods import a_pod, a_report
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.features.feature_jobs import find_feature_jobs
from tidegate.planning.inference.planner import InferenceObserved, plan_inference
from tidegate.planning.inference.stream_plan import StreamPlan, plan_stream
from tidegate.resources.inference import hash_source
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import StreamFeatures

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GATEWAY = "tidegate-gateway.tidegate-system.svc:8080"


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
    return a_feature_compute(name, namespace, **spec)


def features_of(plan: StreamPlan) -> StreamFeatures:
    assert plan.order is not None
    assert plan.order.features is not None
    return plan.order.features


def refusal_of(plan: StreamPlan) -> tuple[Reason, str, bool]:
    assert plan.order is None
    assert plan.refusal is not None
    return plan.refusal.reason, plan.refusal.message, plan.refusal.stalled


def test_a_stream_without_features_is_as_before() -> None:
    plan = plan_stream(a_worker(None), None, GATEWAY)
    assert plan.refusal is None
    assert plan.order is not None
    assert "features" not in plan.order.model_dump(by_alias=True)
    assert plan_stream(an_inference(), None, GATEWAY) == StreamPlan()


def test_agents_ask_for_the_features_that_the_model_takes() -> None:
    compute = some_features()
    features = features_of(plan_stream(a_worker(), compute, GATEWAY))

    assert (features.gateway, features.call.model) == (GATEWAY, "users")
    assert features.call.headers == {"x-tidegate-features": "ads/users"}
    assert [spec.name for spec in features.call.inputs] == ["user_id"]
    assert [spec.name for spec in features.call.outputs] == ["age"]
    assert features.passed_inputs == ()


def test_a_key_that_the_model_takes_too_is_passed_on() -> None:
    inputs = [
        {"name": "age", "dtype": "INT64", "shape": [-1, 1]},
        {"name": "user_id", "dtype": "INT64", "shape": [-1, 1]},
    ]
    assert features_of(plan_stream(a_worker(inputs=inputs), some_features(), GATEWAY)).passed_inputs == (
        "user_id",
    )


def test_features_of_another_namespace_are_called_by_their_own_name() -> None:
    features = features_of(plan_stream(a_worker("shop/users"), some_features(namespace="shop"), GATEWAY))
    assert features.call.headers == {"x-tidegate-features": "shop/users"}
    assert features.call.title == "FeatureCompute shop/users"


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
                "owner can add ads to its annotation tidegate.io/shared-with; messages wait in the stream",
                False,
            ),
        ),
        (
            a_worker(inputs=[]),
            some_features(),
            (
                Reason.WAITING_FOR_REPLICAS,
                "spec.nearline.features: which features the model takes is unknown until it has loaded",
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
    assert refusal_of(plan_stream(worker, compute, GATEWAY)) == expected


def test_a_stream_is_a_user_of_the_features() -> None:
    (job,) = find_feature_jobs((), (a_worker("shop/users"), a_worker(None)))
    assert (str(job.feature_compute), job.kind.value, str(job.owner)) == ("shop/users", "Stream", "ads/ctr")
    assert (job.rows, job.results) == ("stream WORK at nats://nats.ads:4222", "bucket results")


def test_another_plan_or_gateway_is_another_revision() -> None:
    revision = features_of(plan_stream(a_worker(), some_features(), GATEWAY)).revision
    assert features_of(plan_stream(a_worker(), some_features(replicas=3), GATEWAY)).revision == revision
    features = some_features().spec.model_dump(mode="json", by_alias=True)["features"]
    features[0]["lookup"]["default"] = "-2"
    assert (
        features_of(plan_stream(a_worker(), some_features(features=features), GATEWAY)).revision != revision
    )
    assert features_of(plan_stream(a_worker(), some_features(), "gateway:1")).revision != revision


@pytest.mark.parametrize(("reported", "orders"), [(None, 0), ("", 1), ("an older one", 1), ("the same", 0)])
def test_an_agent_with_other_features_gets_the_order_again(reported: str | None, orders: int) -> None:
    worker = a_worker().model_copy(
        update={"metadata": a_worker().metadata.model_copy(update={"generation": 1})}
    )
    revision = features_of(plan_stream(worker, some_features(), GATEWAY)).revision
    settings = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", gateway=GATEWAY)
    report = a_report(1, features_revision=revision if reported == "the same" else reported)
    pod = a_pod("p0", source=hash_source(worker))
    observed = InferenceObserved(
        worker, NOW, epoch=3, pods=[pod], reports={pod.uid: report}, features=some_features()
    )
    sent = plan_inference(observed, settings).orders
    assert len(sent) == orders
    assert all(order.desired_state.features_revision == revision for order in sent)
