"""Planning a backfill: the Job beside the pods that serve, what starts another run, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from builders.backfill import backfill_spec
from builders.batch import find_job
from builders.feature_compute import a_feature_compute
from builders.live_features import live_features_spec
from builders.pods import a_pod_body
from builders.shared_features import a_user, an_origin, shared
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.reasons import Reason
from tidegate.kube.kinds import FEATURE_COMPUTE
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.batch.jobs import JobView, parse_job
from tidegate.planning.features.backfill import BackfillChildren
from tidegate.planning.features.feature_compute import FeaturesObserved, plan_features
from tidegate.planning.features.feature_plan import compile_plan
from tidegate.planning.features.shared_features import resolve_shared
from tidegate.planning.inference.serving_status import PlanRefusal
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView, parse_pod
from tidegate.resources.settings import ServingSettings
from tidegate_controllers.reconcilers.feature_compute import FeatureComputeReconciler
from tidegate_dataplane.contract import BatchOrder, DesiredState, ModelFormat

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
LOOKUP = {"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}}


def a_backfill(
    status: dict[str, Any] | None = None, features: dict[str, Any] | None = None, **spec: Any
) -> FeatureCompute:
    """A FeatureCompute with a backfill; `features` lay over the rest of its spec."""
    return a_feature_compute(
        status=status, **live_features_spec(**{"backfill": backfill_spec(**spec), **(features or {})})
    )


def plan(
    features: FeatureCompute,
    *jobs: JobView,
    pods: tuple[PodView, ...] = (),
    refusal: PlanRefusal | None = None,
    origins: tuple[FeatureCompute, ...] = (),
) -> ReconcilePlan:
    """Plan all children, those of the backfill last; `refusal` is of one of these."""
    children = BackfillChildren(jobs=jobs, pods=pods, refusal=refusal)
    sharing = {item.key: item for item in origins}
    observed = FeaturesObserved(features, NOW, backfill=children, origins=sharing)
    planned = plan_features(observed, SETTINGS)
    return replace(
        planned,
        apply=(*planned.apply, *planned.backfill.apply),
        delete=(*planned.delete, *planned.backfill.delete),
    )


def read_order(planned: ReconcilePlan) -> tuple[DesiredState, BatchOrder]:
    config: Any = next(
        manifest
        for manifest in planned.apply
        if manifest["kind"] == "ConfigMap" and "tidegate.io/backfill" in manifest["metadata"]["labels"]  # type: ignore[operator,index]
    )
    state = DesiredState.model_validate_json(config["data"]["desired.json"])
    assert state.batch is not None
    return state, state.batch


def read_condition(planned: ReconcilePlan, kind: str = "Backfilled") -> tuple[str, str, str] | None:
    items: Any = planned.status["conditions"]
    return next(
        ((item["status"], item["reason"], item["message"]) for item in items if item["type"] == kind), None
    )


def read_progress(planned: ReconcilePlan) -> dict[str, Any]:
    progress: Any = planned.status["backfill"]
    return dict(progress)


def observe_job(planned: ReconcilePlan, **status: Any) -> JobView:
    """The Job that a plan applies, as it would be in the cluster."""
    job = find_job(planned)
    return parse_job({**job, "metadata": {**job["metadata"], "uid": "u-1"}, "status": status})


def test_pods_get_the_rows_the_plan_and_the_places_of_its_sources() -> None:
    features = a_backfill(
        shards=5,
        maxRefusedRows=7,
        secretName="lake",
        input={"columns": [{"input": "user_id", "column": "viewer"}]},
    )
    planned = plan(features)

    state, order = read_order(planned)
    compiled = compile_plan(features)
    assert (state.format, state.owner, state.plan) == (ModelFormat.FEATURES, "ads/user-features", None)
    assert (order.source, order.sink, order.shards) == ("s3://lake/labels", "s3://lake/training", 5)
    assert order.keep == ("user_id", "clicked", *(output.name for output in compiled.outputs))
    assert (order.max_refused_rows, order.secret, order.spec_path) == (7, "lake", "spec.backfill")
    assert [(item.input, item.column) for item in order.columns] == [("user_id", "viewer")]
    assert order.features is not None
    assert (order.features.plan, order.features.event_time) == (compiled, "shown_at")
    assert order.features.sources == {
        "clicks": "pvc://archive/clicks",
        "profiles": "file:///models/tables/users.parquet",
    }
    progress = read_progress(planned)
    assert (progress["run"], progress["planHash"], progress["shards"]) == (order.run, compiled.hash, 5)
    assert progress["output"] == f"s3://lake/training/{order.run}"


def test_shared_features_are_computed_from_archives_of_the_sources_of_their_origin() -> None:
    archives = backfill_spec(output={"keep": ["user_id"]})
    user = a_user(shared("idle_log"), shared("how_old", "age"), backfill=archives)
    origin = an_origin()

    state, order = read_order(plan(user, origins=(origin,)))

    compiled = compile_plan(resolve_shared(user, {origin.key: origin}.get))
    assert order.features is not None
    assert (state.owner, order.features.plan) == ("feed/home", compiled)
    assert order.keep == ("user_id", "idle_log", "how_old")
    assert order.features.sources == {
        "clicks": "pvc://archive/clicks",
        "profiles": "file:///models/tables/users.parquet",
    }


@pytest.mark.produces(Reason.BACKFILLING)
def test_the_job_is_indexed_and_its_pods_have_no_server_and_do_not_serve() -> None:
    planned = plan(a_backfill(shards=5, parallelism=3, deadline="6h"))

    job = find_job(planned)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 5, 3)
    assert spec["activeDeadlineSeconds"] == 6 * 3600
    pod = spec["template"]["spec"]
    assert [container["name"] for container in pod["containers"]] == ["shard"]
    assert "initContainers" not in pod
    assert (pod["restartPolicy"], pod["priorityClassName"]) == ("Never", "tidegate-offline")
    requests = pod["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("1", str((2048 + 128) << 20))
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {volume["name"] for volume in pod["volumes"]} == mounts
    deployment: Any = next(manifest for manifest in planned.apply if manifest["kind"] == "Deployment")
    served = deployment["spec"]["selector"]["matchLabels"]
    labels = spec["template"]["metadata"]["labels"]
    assert not served.items() <= labels.items()
    assert labels["tidegate.io/backfill"] == "user-features"
    assert read_condition(planned) == (
        "False",
        "Backfilling",
        f"0 of 5 shards of run {read_progress(planned)['run']} are done",
    )


def test_results_on_a_claim_are_mounted_writable() -> None:
    pod = find_job(plan(a_backfill(output={"uri": "pvc://training/out"})))["spec"]["template"]["spec"]
    (mount,) = [item for item in pod["containers"][0]["volumeMounts"] if item["name"] == "results"]
    assert mount == {"name": "results", "mountPath": "/mnt/batch/training"}
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize(
    ("spec", "features", "another_run"),
    [
        ({}, {}, False),
        ({"parallelism": 7, "maxRefusedRows": 3, "deadline": "1h", "secretName": "other"}, {}, False),
        ({}, {"replicas": 0, "resources": {"memory": "8Gi"}}, False),
        ({"run": "2026-01-02"}, {}, True),
        ({"input": {"uri": "s3://lake/labels-2"}}, {}, True),
        ({"sources": [{"name": "clicks", "uri": "pvc://archive/other"}]}, {}, True),
        ({"shards": 4}, {}, True),
        ({}, {"features": live_features_spec()["features"][:3]}, True),
    ],
)
def test_what_changes_the_rows_is_another_run(
    spec: dict[str, Any], features: dict[str, Any], another_run: bool
) -> None:
    before = read_order(plan(a_backfill()))[1].run
    after = read_order(plan(a_backfill(features=features, **spec)))[1].run
    assert (before != after) == another_run


@pytest.mark.produces(Reason.BACKFILL_COMPLETE)
def test_a_complete_run_stays_complete_without_its_job_until_the_plan_changes() -> None:
    features = a_backfill()
    first = plan(features)
    done = observe_job(
        first,
        completedIndexes="0-7",
        completionTime="2026-01-01T11:00:00Z",
        conditions=[{"type": "Complete", "status": "True"}],
    )
    finished = plan(features, done)
    run = read_progress(first)["run"]
    assert read_condition(finished) == (
        "True",
        "BackfillComplete",
        f"all 8 shards of run {run} are done; the rows with their features are in s3://lake/training/{run}",
    )
    assert [event.reason for event in finished.events] == ["BackfillComplete"]
    assert read_progress(finished)["completedAt"] == "2026-01-01T11:00:00Z"

    # The Job is deleted: nothing is computed again, and nothing is announced again.
    later = plan(a_backfill(status=dict(finished.status)))
    assert find_job(later) is None
    assert (read_progress(later), later.events) == (read_progress(finished), ())

    shorter = a_backfill(
        status=dict(finished.status), features={"features": live_features_spec()["features"][:3]}
    )
    again = plan(shorter)
    assert find_job(again) is not None
    assert read_progress(again)["planHash"] == compile_plan(shorter).hash
    assert read_progress(again)["done"] == 0


def test_the_next_job_waits_for_the_end_of_the_previous_one() -> None:
    previous = observe_job(plan(a_backfill(run="monday")))
    planned = plan(a_backfill(run="tuesday"), previous)
    assert find_job(planned) is None
    assert [(item.kind, item.key) for item in planned.delete] == [("Job", previous.key)]
    assert find_job(plan(a_backfill(run="tuesday"))) is not None


def test_a_spec_without_backfill_has_neither_job_nor_condition() -> None:
    first = plan(a_backfill())
    job = observe_job(first)
    features = a_feature_compute(status=dict(first.status), **live_features_spec())

    planned = plan(features, job)

    assert [(item.kind, item.key) for item in planned.delete] == [("Job", job.key)]
    assert find_job(planned) is None
    assert read_condition(planned) is None
    assert "backfill" not in planned.status


def test_a_failed_shard_is_named_and_the_features_serve_all_the_same() -> None:
    features = a_backfill()
    first = plan(features)
    name = find_job(first)["metadata"]["name"]
    failed = observe_job(
        first,
        completedIndexes="0-4",
        failedIndexes="5",
        conditions=[{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T11:00:00Z"}],
    )
    body = a_pod_body(f"{name}-5-x", status={"phase": "Failed"})
    body["metadata"]["labels"] |= {
        "batch.kubernetes.io/job-name": name,
        "batch.kubernetes.io/job-completion-index": "5",
    }
    terminated = {"exitCode": 3, "message": "row 4 of s3://lake/labels/a.parquet is refused"}
    body["status"]["containerStatuses"] = [{"name": "shard", "state": {"terminated": terminated}}]

    planned = plan(features, failed, pods=(parse_pod(body),))

    condition = read_condition(planned)
    assert condition is not None
    assert condition[:2] == ("False", "ShardsFailed")
    assert condition[2].endswith("shard 5 failed: row 4 of s3://lake/labels/a.parquet is refused")
    assert [event.reason for event in planned.events] == ["ShardsFailed"]
    assert read_progress(planned)["endedAt"] == "2026-01-01T11:00:00Z"
    assert find_job(planned) is None
    assert read_condition(planned, "Ready") == read_condition(first, "Ready")


def test_no_parallelism_is_a_pause_and_a_refused_child_is_no_progress() -> None:
    paused = plan(a_backfill(parallelism=0))
    assert find_job(paused)["spec"]["parallelism"] == 0
    condition = read_condition(paused)
    assert condition is not None
    assert condition[:2] == ("False", "ScaledToZero")
    assert condition[2].startswith("spec.backfill.parallelism is 0; 0 of 8 shards of run ")

    refused = read_condition(plan(a_backfill(), refusal=PlanRefusal(Reason.CHILD_REFUSED, "exceeded quota")))
    assert refused == ("False", "ChildRefused", "exceeded quota")


class RefusingApplier:
    """Applies everything except objects of a kind, and has the status that was written."""

    def __init__(self, features: FeatureCompute, kind: str) -> None:
        self.stores = SimpleNamespace(features={features.key: features.dump()})
        self.kind = kind
        self.applied: list[Any] = []
        self.written: Any = None

    async def apply_children(self, owner: FeatureCompute, planned: ReconcilePlan) -> PlanRefusal | None:
        for manifest in planned.apply:
            if manifest["kind"] == self.kind:
                return PlanRefusal(Reason.CHILD_REFUSED, f"no {self.kind}")
            self.applied.append(manifest["kind"])
        return None

    async def write_status(self, kind: Any, body: Any, planned: ReconcilePlan) -> None:
        self.written = planned


@pytest.mark.parametrize(
    ("kind", "ready", "backfilled"),
    [("Job", "WaitingForReplicas", "ChildRefused"), ("Deployment", "ChildRefused", "Backfilling"), ("Secret", "WaitingForReplicas", "Backfilling")],
)  # fmt: skip
async def test_a_refused_job_is_no_refusal_of_the_pods_that_serve_and_the_reverse(
    kind: str, ready: str, backfilled: str
) -> None:
    features = a_backfill()
    applier: Any = RefusingApplier(features, kind)
    serving = SimpleNamespace(pods=(), reports={}, config_maps=(), deployments=(), refusal=None, rooms=())
    observer: Any = SimpleNamespace(
        observe_serving=AsyncMock(return_value=serving),
        observe_backfill=AsyncMock(return_value=BackfillChildren()),
    )
    proxies: Any = SimpleNamespace(view_object=Mock(return_value=None))
    clock: Any = SimpleNamespace(now=lambda: NOW)
    reconciler = FeatureComputeReconciler(
        applier=applier,
        observer=observer,
        proxies=proxies,
        features=TypedCache(FeatureCompute, ObjectStore(FEATURE_COMPUTE)),
        settings=lambda: SETTINGS,
        clock=clock,
    )
    await reconciler.reconcile(features.key)

    items = applier.written.status["conditions"]
    conditions = {item["type"]: (item["status"], item["reason"]) for item in items}
    assert conditions["Ready"][1] == ready
    assert conditions["Backfilled"][1] == backfilled
    assert (conditions["Stalled"][0] == "True") == (ready == "ChildRefused")
    assert ("Job" in applier.applied) == (kind != "Job")
    assert ("Deployment" in applier.applied) == (kind != "Deployment")


def test_a_failed_run_stays_failed_while_something_is_refused() -> None:
    features = a_backfill()
    job = observe_job(plan(features), conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": "2026-01-01T11:00:00Z"}])  # fmt: skip
    condition = read_condition(plan(features, job, refusal=PlanRefusal(Reason.CHILD_REFUSED, "no")))
    assert condition is not None
    assert condition[1] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("spec", "features", "message"),
    [
        (
            {"sources": []},
            {},
            "spec.backfill.sources: FeatureCompute user-features reads events of stream clicks: add it, with the URI of its events",
        ),
        (
            {"sources": [{"name": "views", "uri": "s3://lake/views"}]},
            {},
            "spec.backfill.sources[views]: FeatureCompute user-features has no such source; it has profiles, clicks",
        ),
        (
            {"eventTime": None},
            {},
            "spec.backfill.eventTime: FeatureCompute user-features reads events: name the column with the time of each row",
        ),
        (
            {},
            {"features": [LOOKUP]},
            "spec.backfill.eventTime: no feature of FeatureCompute user-features reads events, so every row gets the same at any "
            "time: remove it",
        ),
        (
            {"input": {"columns": [{"input": "item_id", "column": "item"}]}},
            {},
            "spec.backfill.input.columns[item_id]: no feature of FeatureCompute user-features reads an input of that name; they "
            "read user_id, position",
        ),
        (
            {"output": {"keep": ["user_id", "idle"]}},
            {},
            "spec.backfill.output.keep: idle is a feature of FeatureCompute user-features, and all features are written: remove "
            "it, or rename the column",
        ),
        (
            {"eventTime": "idle"},
            {},
            "spec.backfill: the rows need a column idle, which is also a feature of FeatureCompute user-features: rename the "
            "column, and map it by spec.backfill.input.columns",
        ),
    ],
)
def test_a_backfill_that_cannot_be_computed_is_refused_by_field(
    spec: dict[str, Any], features: dict[str, Any], message: str
) -> None:
    planned = plan(a_backfill(features=features, **spec))

    assert read_condition(planned) == ("False", "PlanInvalid", message)
    assert [event.message for event in planned.events] == [message]
    assert find_job(planned) is None
    # The pods that serve are planned all the same, and what was announced is not announced again.
    assert any(manifest["kind"] == "Deployment" for manifest in planned.apply)
    repeated = plan(a_backfill(features=features, status=dict(planned.status), **spec))
    assert repeated.events == ()


def test_what_stops_the_job_of_a_backfill_that_has_become_invalid_is_said() -> None:
    job = observe_job(plan(a_backfill()))
    condition = read_condition(plan(a_backfill(sources=[], parallelism=0), job))
    assert condition is not None
    assert condition[1] == "PlanInvalid"
    assert condition[2].endswith("; its last Job goes on: remove spec.backfill to stop it")
    assert [item.key.name for item in plan(a_feature_compute(**live_features_spec()), job).delete] == [
        job.key.name
    ]
