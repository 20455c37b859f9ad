"""Planning a FeatureCompute: new plans mean new pods, a plan that does not compile changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.feature_compute import a_feature_compute
from builders.live_features import live_features_spec
from builders.pods import a_pod, a_report
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.reasons import Reason
from tidegate.planning.access.proxies import ProxyView
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INGESTER_LABEL, SOURCE_LABEL, TEMPLATE_ANNOTATION
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import DesiredState, FailureReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
OTHER = [{"name": "who", "hash": {"field": "user.user_id", "buckets": 3}}]


SHARED: dict[str, Any] = live_features_spec(store={"redis": {"address": "redis.ads:6379"}})
PROXIES = (ProxyView("gateway-1", 0),)


def a_plan(features: FeatureCompute, **observed: Any) -> ReconcilePlan:
    return plan_features(FeaturesObserved(features, NOW, **{"proxies": PROXIES, **observed}), SETTINGS)


def a_pod_of(plan: ReconcilePlan, **facts: Any) -> PodView:
    """A pod made from this plan's Deployment."""
    deployment: Any = next(one for one in plan.apply if one["kind"] == "Deployment")
    metadata = deployment["spec"]["template"]["metadata"]
    return a_pod(
        source=metadata["labels"][SOURCE_LABEL],
        template=metadata["annotations"][TEMPLATE_ANNOTATION],
        **facts,
    )


def ready(plan: ReconcilePlan, kind: str = "Ready") -> tuple[str, str]:
    items: Any = plan.status["conditions"]
    return next((item["status"], item["reason"]) for item in items if item["type"] == kind)


def test_ready_when_the_pods_of_this_plan_serve() -> None:
    features = a_feature_compute()
    pod = a_pod_of(a_plan(features))
    plan = a_plan(features, pods=[pod], reports={"p0": a_report(1)})

    assert ready(plan) == ("True", "AllReplicasReady")
    assert ready(plan, "SourcesReady") == ("True", "SourcesReady")
    assert plan.status["planHash"]
    assert plan.requeue_after is None


def test_scaled_to_zero_it_waits_for_no_gateway() -> None:
    nobody = [ProxyView("gateway-1", 0, has_endpoints=False)]
    plan = a_plan(a_feature_compute(replicas=0), proxies=nobody)

    assert ready(plan) == ("True", "ScaledToZero")
    assert plan.requeue_after is None


def test_not_ready_before_the_gateways_know_the_pods() -> None:
    features = a_feature_compute()
    pod = a_pod_of(a_plan(features))
    late = [ProxyView("gateway-1", 0), ProxyView("gateway-2", 0, has_endpoints=False)]
    plan = a_plan(features, pods=[pod], reports={"p0": a_report(1)}, proxies=late)

    assert ready(plan) == ("False", "WaitingForProxies")
    assert ready(plan, "EndpointsPublished") == ("False", "WaitingForProxies")
    assert plan.requeue_after is not None


def test_changed_plan_is_not_ready_on_the_pods_of_the_old_one() -> None:
    pod = a_pod_of(a_plan(a_feature_compute()))
    changed = a_feature_compute(features=OTHER, metadata={"generation": 2})
    plan = a_plan(changed, pods=[pod], reports={"p0": a_report(1)})

    assert ready(plan)[0] == "False"
    assert ready(plan, "PlanCompiled") == ("True", "PlanCompiled")


def test_plan_that_does_not_compile_applies_nothing_and_only_the_user_can_mend_it() -> None:
    lookup = [{"name": "bad", "lookup": {"field": "user.user_id", "type": "int64"}}]
    plan = a_plan(a_feature_compute(features=lookup))

    assert plan.apply == ()
    assert ready(plan) == ("False", "PlanInvalid")
    assert ready(plan, "Stalled")[0] == "True"
    assert "spec.features[0].lookup.field" in str(plan.status["conditions"])


def test_source_that_cannot_be_read_is_told_in_the_agents_words_and_looked_at_again() -> None:
    features = a_feature_compute()
    pod = a_pod_of(a_plan(features), ready=False)
    failed = a_report(None, target=1, failure=(1, FailureReason.ARTEFACT_NOT_FOUND, "no users.parquet"))
    plan = a_plan(features, pods=[pod], reports={"p0": failed})

    assert ready(plan) == ("False", "SourceFailed")
    assert "no users.parquet" in str(plan.status["conditions"])
    assert [event.reason for event in plan.events] == ["SourceFailed"]
    assert plan.requeue_after is not None


def an_ingester_of(plan: ReconcilePlan) -> dict[str, Any]:
    """The Deployment of the ingester in this plan, as the API server has it."""
    ingester: Any = next(item for item in plan.apply if INGESTER_LABEL in item["metadata"]["labels"])
    return {**ingester, "metadata": {**ingester["metadata"], "uid": "uid-ingester"}}


def test_a_redis_has_an_ingester_of_its_own_whose_pods_are_not_those_that_serve() -> None:
    plan = a_plan(a_feature_compute(**SHARED, replicas=3))
    ingester = an_ingester_of(plan)

    assert ingester["spec"]["replicas"] == 1
    assert ingester["spec"]["strategy"] == {"type": "Recreate"}
    assert FEATURE_COMPUTE_LABEL in ingester["metadata"]["labels"]
    assert FEATURE_COMPUTE_LABEL not in ingester["spec"]["template"]["metadata"]["labels"]
    (container,) = ingester["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "ingester"
    serving: Any = next(item for item in plan.apply if item["kind"] == "Deployment")
    assert [item["name"] for item in serving["spec"]["template"]["spec"]["containers"]] == ["triton"]
    assert an_ingester_of(a_plan(a_feature_compute(**SHARED, replicas=0)))["spec"]["replicas"] == 0


def test_the_ingester_of_an_earlier_plan_goes_once_no_pod_reads_its_events() -> None:
    before = a_plan(a_feature_compute(**SHARED))
    after = a_feature_compute(**{**SHARED, "store": {"redis": {"address": "other.ads:6379"}}})
    deployments = [an_ingester_of(before), an_ingester_of(a_plan(after))]
    pods = [a_pod_of(a_plan(after)), a_pod_of(before, name="p1")]
    # The features are the same, and the pods are others, since each one reads one store.
    assert a_plan(after).status["planHash"] == before.status["planHash"]
    assert pods[0].source != pods[1].source

    assert a_plan(after, deployments=deployments, pods=pods).delete == ()
    (deletion,) = a_plan(after, deployments=deployments, pods=pods[:1]).delete
    assert (deletion.kind, deletion.key.name) == ("Deployment", deployments[0]["metadata"]["name"])
    (deletion,) = a_plan(
        a_feature_compute(**{**SHARED, "store": None}), deployments=deployments[:1], pods=[]
    ).delete
    assert deletion.key.name == deployments[0]["metadata"]["name"]


def test_refused_child_is_the_reason() -> None:
    plan = a_plan(a_feature_compute(), refusal=PlanRefusal(Reason.NAME_CONFLICT, "Service fc-x is taken"))

    assert ready(plan) == ("False", "NameConflict")


@pytest.mark.parametrize(
    ("cpu", "processes"), [("100m", 1), ("1", 1), ("1900m", 1), ("2", 2), ("3500m", 3), ("64", 8)]
)
def test_each_whole_core_has_a_process_that_computes(cpu: str, processes: int) -> None:
    assert count_instances(a_feature_compute(resources={"cpu": cpu, "memory": "4Gi"})) == processes


@pytest.mark.parametrize(
    ("memory", "processes"), [("128Mi", 1), ("511Mi", 1), ("512Mi", 2), ("1Gi", 4), ("64Gi", 8)]
)
def test_a_process_needs_256_mib_of_memory(memory: str, processes: int) -> None:
    assert count_instances(a_feature_compute(resources={"cpu": "16", "memory": memory})) == processes


@pytest.mark.parametrize(("cpu", "is_same"), [("1", True), ("1500m", True), ("2", False)])
def test_pods_with_another_number_of_processes_are_other_pods(cpu: str, is_same: bool) -> None:
    features = a_feature_compute(resources={"cpu": "1", "memory": "4Gi"})
    changed = a_feature_compute(resources={"cpu": cpu, "memory": "4Gi"})
    before, after = a_plan(features), a_plan(changed)

    assert (a_pod_of(after).source == a_pod_of(before).source) == is_same
    # The order that running pods have stays as it is until they are replaced.
    assert (
        find_config_map(after)["metadata"]["name"] == find_config_map(before)["metadata"]["name"]
    ) == is_same


@pytest.mark.parametrize(("cpu", "size"), [("1", "256Mi"), ("4", "256Mi"), ("5", "320Mi"), ("8", "512Mi")])
def test_each_process_has_64_mib_of_shared_memory(cpu: str, size: str) -> None:
    planned = a_plan(a_feature_compute(resources={"cpu": cpu, "memory": "4Gi"}))

    deployment: Any = next(item for item in planned.apply if item["kind"] == "Deployment")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    shm = next(volume for volume in volumes if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def count_instances(features: FeatureCompute) -> int:
    """How many processes the agent lets compute."""
    config = find_config_map(a_plan(features))
    return DesiredState.model_validate_json(config["data"]["desired.json"]).instances


def find_config_map(plan: ReconcilePlan) -> Any:
    """The ConfigMap with the order of the pods."""
    return next(item for item in plan.apply if item["kind"] == "ConfigMap")
