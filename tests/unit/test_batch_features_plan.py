"""Planning a batch that computes features: what its pods are told, what starts another run, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from builders.batch import batch_spec, find_job
from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.live_features import live_features_spec, stream_source
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.batch.remaining_shards import count_remaining_shards
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.settings import ServingSettings
from tidegate.resources.slices import SliceResources
from tidegate_dataplane.contract import BatchOrder, DesiredState

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
FEATURES = {
    "name": "user-features",
    "eventTime": "shown_at",
    "sources": [{"name": "clicks", "uri": "pvc://archive/clicks"}],
}


def a_batch(status: dict[str, Any] | None = None, **spec: Any) -> Inference:
    changes = {"features": FEATURES, **spec}
    return an_inference(status=status, tier="offline", replicas=2, batch=batch_spec(**changes))


def a_compute(**changes: Any) -> FeatureCompute:
    return a_feature_compute(**live_features_spec(**changes))


def plan(inference: Inference, compute: FeatureCompute | None) -> ReconcilePlan:
    return plan_inference(InferenceObserved(inference, NOW, epoch=3, features=compute), SETTINGS)


def read_order(planned: ReconcilePlan) -> BatchOrder:
    (config,) = (manifest for manifest in planned.apply if manifest["kind"] == "ConfigMap")
    data: Any = config["data"]
    batch = DesiredState.model_validate_json(data["desired.json"]).batch
    assert batch is not None
    return batch


def read_condition(planned: ReconcilePlan, kind: str = "Complete") -> tuple[str, str, str]:
    items: Any = planned.status["conditions"]
    condition = next(item for item in items if item["type"] == kind)
    return condition["status"], condition["reason"], condition["message"]


def read_progress(planned: ReconcilePlan) -> dict[str, Any]:
    progress: Any = planned.status["batch"]
    return dict(progress)


def test_pods_get_the_plan_and_the_places_of_its_sources() -> None:
    compute = a_compute()
    planned = plan(a_batch(), compute)

    order = read_order(planned)
    assert order.features is not None
    assert order.features.plan == compile_plan(compute)
    assert (order.features.compute, order.features.event_time) == ("user-features", "shown_at")
    assert order.features.sources == {
        "clicks": "pvc://archive/clicks",
        "profiles": "file:///models/tables/users.parquet",
    }
    progress = read_progress(planned)
    assert progress["planHash"] == compile_plan(compute).hash
    assert progress["run"] == order.run
    assert read_condition(planned)[1] == "Scoring"


def test_pods_mount_the_sources_and_have_the_memory_of_a_replica_besides() -> None:
    memory = a_compute().spec.resources.memory
    spec = find_job(plan(a_batch(), a_compute()))["spec"]["template"]["spec"]
    (shard,) = spec["containers"]
    mounts = {mount["mountPath"] for mount in shard["volumeMounts"]}
    assert {path for path in mounts if "archive" in path or path == "/models"} == {
        "/mnt/pvc/archive",
        "/models",
    }
    assert memory == "2Gi"
    assert shard["resources"]["requests"]["memory"] == str((2048 + 128) << 20)
    assert shard["resources"]["limits"]["memory"] == str(4 << 30)
    assert "ephemeral-storage" not in shard["resources"]["requests"]


def test_pods_request_the_disk_that_a_replica_requests_for_its_tables() -> None:
    compute = a_compute(tableStorage="40Gi")
    (shard,) = find_job(plan(a_batch(), compute))["spec"]["template"]["spec"]["containers"]
    assert shard["resources"]["requests"]["ephemeral-storage"] == "40Gi"


def test_a_copy_of_a_table_is_read_in_its_place() -> None:
    copy = {"name": "profiles", "uri": "s3://lake/users/2026-01-01.parquet"}
    features = {**FEATURES, "sources": [*FEATURES["sources"], copy]}
    order = read_order(plan(a_batch(features=features), a_compute()))
    assert order.features is not None
    assert order.features.sources["profiles"] == "s3://lake/users/2026-01-01.parquet"


def test_a_batch_without_features_keeps_the_name_of_its_run() -> None:
    planned = plan(an_inference(tier="offline", batch=batch_spec()), None)
    assert read_order(planned).features is None
    assert "planHash" not in read_progress(planned)


@pytest.mark.parametrize(
    ("compute", "features", "another_run"),
    [
        ({}, {}, False),
        ({"replicas": 0}, {}, False),
        ({"features": [{"name": "age", "lookup": {"field": "profiles.age", "type": "float32"}}]}, {}, True),
        ({}, {"eventTime": "clicked_at"}, True),
        ({}, {"sources": [{"name": "clicks", "uri": "pvc://archive/other"}]}, True),
    ],
)
def test_another_plan_or_source_is_another_run(
    compute: dict[str, Any], features: dict[str, Any], another_run: bool
) -> None:
    spec = live_features_spec()
    changed = {**spec, **compute}
    if "features" in compute:
        changed["features"] = [*compute["features"], *spec["features"][1:]]
    before = read_order(plan(a_batch(), a_compute())).run
    after = read_order(plan(a_batch(features={**FEATURES, **features}), a_feature_compute(**changed))).run
    assert (before != after) == another_run


def test_a_complete_run_stays_complete_although_the_plan_changes_or_is_gone() -> None:
    first = plan(a_batch(), a_compute())
    done = {**read_progress(first), "done": 8, "completedAt": "2026-01-01T11:00:00Z"}
    finished = a_batch(status={"batch": done})
    shorter = a_feature_compute(**{**live_features_spec(), "features": live_features_spec()["features"][:3]})
    assert compile_plan(shorter).hash != done["planHash"]

    for compute in (shorter, None):
        planned = plan(finished, compute)
        assert (planned.apply, planned.delete) == ((), ())
        assert read_condition(planned)[:2] == ("True", "BatchComplete")
        assert read_progress(planned)["run"] == done["run"]
    assert count_remaining_shards(finished) == 0

    # Unless the spec asks for another run.
    again = plan(a_batch(status={"batch": done}, run="again"), shorter)
    assert read_progress(again)["planHash"] == compile_plan(shorter).hash
    assert find_job(again) is not None


def test_a_run_that_is_not_complete_starts_over_with_another_plan() -> None:
    first = plan(a_batch(), a_compute())
    failed = {**read_progress(first), "done": 7, "failed": 1, "endedAt": "2026-01-01T11:00:00Z"}
    shorter = a_feature_compute(**{**live_features_spec(), "features": live_features_spec()["features"][:3]})

    planned = plan(a_batch(status={"batch": failed}), shorter)

    assert read_progress(planned)["run"] != failed["run"]
    assert read_progress(planned)["done"] == 0
    assert find_job(planned) is not None
    # The number of pods follows from the status that is written now.
    assert planned.requeue_after is not None
    assert planned.requeue_after.total_seconds() == 1


def test_what_runs_goes_on_while_the_features_are_unknown() -> None:
    first = plan(a_batch(), a_compute())
    running = {**read_progress(first), "done": 3}

    planned = plan(a_batch(status={"batch": running}), None)

    assert (planned.apply, planned.delete) == ((), ())
    assert read_progress(planned)["done"] == 3
    assert read_condition(planned) == (
        "False",
        "TargetNotFound",
        "spec.batch.features.name: FeatureCompute user-features does not exist in namespace ads: create it, or correct the name",
    )
    assert [event.reason for event in planned.events] == ["TargetNotFound"]
    repeated = plan(a_batch(status=dict(planned.status)), None)
    assert repeated.events == ()


def test_features_that_do_not_fit_into_the_slices_are_refused() -> None:
    def plan_on(memory: str) -> ReconcilePlan:
        slices = SliceResources(labels={}, node_selector={}, tolerations=(), cpu="1950m", memory=memory)
        placed = PlacementResult(slices, 2, Verdict(True, Reason.PLACED, ""))
        inference = an_inference(
            tier="offline", replicas=2, batch=batch_spec(features=FEATURES), placement={"pool": "cpu-a"}
        )
        compute = a_compute(resources={"memory": "8Gi"})
        observed = InferenceObserved(inference, NOW, epoch=3, features=compute, placement=placed)
        return plan_inference(observed, SETTINGS)

    refused = plan_on("4Gi")
    assert not any(manifest["kind"] == "Job" for manifest in refused.apply)
    assert read_condition(refused) == (
        "False",
        "PlanInvalid",
        "spec.batch.features.name: each pod needs the 8Gi of FeatureCompute user-features (its spec.resources.memory), and its "
        "slices have 2944Mi for features: raise spec.placement.slices, or lower the memory of FeatureCompute user-features",
    )
    assert any(manifest["kind"] == "Job" for manifest in plan_on("12Gi").apply)


NO_STREAM = {"features": [{"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}}]}


@pytest.mark.parametrize(
    ("spec", "compute", "message"),
    [
        (
            {"features": {**FEATURES, "sources": []}},
            {},
            "spec.batch.features.sources: FeatureCompute user-features reads events of stream clicks: add it, with the URI of its events",
        ),
        (
            {
                "features": {
                    **FEATURES,
                    "sources": [*FEATURES["sources"], {"name": "views", "uri": "s3://lake/views"}],
                }
            },
            {},
            "spec.batch.features.sources[views]: FeatureCompute user-features has no such source; it has profiles, clicks",
        ),
        (
            {"features": {**FEATURES, "eventTime": None}},
            {},
            "spec.batch.features.eventTime: FeatureCompute user-features reads events: name the column with the time of each row",
        ),
        (
            {},
            NO_STREAM,
            "spec.batch.features.eventTime: no feature of FeatureCompute user-features reads events, so every row gets the same at any "
            "time: remove it",
        ),
        (
            {},
            {
                "sources": [
                    {
                        "name": "profiles",
                        "entity": "user",
                        "table": {"uri": "https://files.ads/users.parquet"},
                    },
                    stream_source(),
                ]
            },
            "spec.batch.features.sources: table profiles of FeatureCompute user-features is at https://files.ads/users.parquet, which "
            "Jobs do not read: add it, with the URI of a copy",
        ),
        (
            {"input": {"columns": [{"input": "age", "column": "years"}]}},
            {},
            "spec.batch.input.columns[age]: age is a feature of FeatureCompute user-features, which computes it: remove it",
        ),
        (
            {"input": {"columns": [{"input": "user_id", "column": "age"}]}},
            {},
            "spec.batch.input.columns[user_id].column: age is also a feature of FeatureCompute user-features: rename the column",
        ),
        (
            {"features": {**FEATURES, "eventTime": "idle"}},
            {},
            "spec.batch.features: the rows need a column idle, which is also a feature of FeatureCompute user-features: rename the "
            "column, and map it by spec.batch.input.columns",
        ),
    ],
)
def test_features_that_cannot_be_computed_are_refused_by_field(
    spec: dict[str, Any], compute: dict[str, Any], message: str
) -> None:
    body = {**live_features_spec(), **compute}
    planned = plan(a_batch(**spec), a_feature_compute(**body))

    status, reason, given = read_condition(planned)
    assert (status, reason) == ("False", "PlanInvalid")
    assert given.startswith(message)
    assert read_condition(planned, "Stalled")[0] == "True"
    assert (planned.apply, planned.delete) == ((), ())


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (
            {"shared": {"featureCompute": "ads/live"}},
            "cannot be used here; the condition PlanCompiled has the cause",
        ),
        ({"log": {"field": "feature.idle"}}, "spec.features[0].log.field: "),
    ],
    ids=["shared and not resolved", "its own mistake"],
)
def test_a_run_waits_for_features_that_do_not_compile(feature: dict[str, Any], says: str) -> None:
    planned = plan(a_batch(), a_compute(features=[{"name": "idle_log", **feature}]))

    status, reason, message = read_condition(planned)
    assert (status, reason) == ("False", "TargetNotReady")
    assert message.startswith("spec.batch.features.name: FeatureCompute user-features: ")
    assert says in message
    assert message.endswith("; the run waits")
    assert read_condition(planned, "Stalled")[0] == "False"
    assert (planned.apply, planned.delete) == ((), ())
