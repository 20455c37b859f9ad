"""Batches with the real Job controller: a run is followed to its end, whatever happens to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from builders.batch import batch_spec
from builders.feature_compute import feature_compute_body
from builders.waiting import wait_until
from fixtures.batch_jobs import Batches
from fixtures.pools import Pools
from tidegate.api.reasons import Reason

pytestmark = pytest.mark.usefixtures("controllers")

DONE, NEVER = 0, 3


@pytest.mark.produces(Reason.SHARDS_FAILED)
def test_a_job_is_followed_to_its_end_and_a_failed_shard_is_gone_on_with(batches: Batches) -> None:
    batches.apply()
    pods = batches.at_work(0, 1)
    (job,) = batches.jobs()
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (4, 2)
    assert batches.kubectl.json("get", "deployments", "-n", batches.namespace)["items"] == []
    assert "0 of 4 shards" in batches.says(Reason.SCORING)

    batches.ends(pods[0], DONE)
    pods = batches.at_work(1, 2)
    batches.ends(pods[2], NEVER, "row 17 of s3://lake/users/a.parquet is refused: no")
    pods = batches.at_work(1, 3)
    for pod in pods.values():
        batches.ends(pod, DONE)
    said = batches.says(Reason.SHARDS_FAILED)
    assert "3 of 4 shards" in said
    assert said.endswith("shard 2 failed: row 17 of s3://lake/users/a.parquet is refused: no")
    assert batches.status()["batch"]["failed"] == 1
    assert batches.pods() == {}

    # What the message says is done, and a Job takes over.
    batches.patch({"batch": {"maxRefusedRows": 1}})
    pods = batches.at_work(0, 1)
    (other,) = batches.jobs()
    assert other["metadata"]["name"] != job["metadata"]["name"]
    assert other["metadata"]["labels"]["tidegate.io/run"] == job["metadata"]["labels"]["tidegate.io/run"]


@pytest.mark.produces(Reason.BATCH_COMPLETE)
def test_parallelism_follows_replicas_and_a_complete_run_stays_complete(batches: Batches) -> None:
    batches.apply()
    batches.at_work(0, 1)
    batches.patch({"replicas": 0})
    batches.says(Reason.SCALED_TO_ZERO)
    batches.at_work()
    batches.patch({"replicas": 3})
    pods = batches.at_work(0, 1, 2)
    for pod in pods.values():
        batches.ends(pod, DONE)
    pods = batches.at_work(3)
    # One shard is left, so one pod is all that there is use for.
    wait_until(lambda: batches.jobs()[0]["spec"]["parallelism"] == 1, what="no more pods than shards")
    batches.ends(pods[3], DONE)
    assert "all 4 shards of run v1-" in batches.says(Reason.BATCH_COMPLETE)
    before = batches.status()["batch"]
    assert (before["done"], "completedAt" in before) == (4, True)

    (job,) = batches.jobs()
    batches.kubectl("delete", "job", job["metadata"]["name"], "-n", batches.namespace)
    batches.patch({"replicas": 2})
    wait_until(lambda: batches.status()["observedGeneration"] >= 4, what="the change is taken up")
    assert batches.jobs() == []
    assert batches.status()["batch"] == before

    batches.patch({"batch": {"run": "tomorrow"}})
    batches.at_work(0, 1)
    # Pods of the new run start before the status that names it is written.
    wait_until(lambda: batches.status()["batch"]["run"] != before["run"], what="the new run's name")


@pytest.mark.produces(Reason.DEADLINE_EXCEEDED)
def test_a_deadline_ends_the_run_and_says_how_to_go_on(batches: Batches) -> None:
    batches.apply()
    pods = batches.at_work(0, 1)
    batches.ends(pods[0], DONE)
    batches.at_work(1, 2)
    (job,) = batches.jobs()
    # The API takes no deadline below a minute: the Job's own is shortened, as if most of that were over.
    name = job["metadata"]["name"]
    batches.kubectl(
        *("patch", "job", name, "-n", batches.namespace, "--type=merge"),
        *("-p", json.dumps({"spec": {"activeDeadlineSeconds": 1}})),
    )
    wait_until(lambda: not _collected(batches), what="its pods are ended")
    said = batches.says(Reason.DEADLINE_EXCEEDED)
    assert f"delete Job {name} to go on" in said
    batches.kubectl("delete", "job", name, "-n", batches.namespace)
    batches.at_work(0, 1)


def _collected(batches: Batches) -> bool:
    batches.collect()
    return bool(batches.pods())


def test_a_batch_on_a_pool_has_slices_while_it_works_and_none_when_it_is_done(
    pools: Pools, batches: Batches
) -> None:
    pools.kubectl("delete", "node", f"{pools.namespace}-0")
    pools.node("1", cpu="2")
    pool = pools.pool()
    pools.counts(pool, 2, 2, 2)
    batches.apply(placement={"pool": pool}, replicas=3)
    pods = batches.at_work(0, 1)
    pools.tiers(pool, offline=2)
    assert all(pod["metadata"]["labels"]["tidegate.io/slices"] == "1" for pod in pods.values())
    wait_until(lambda: len(pools.bound("ctr", 2)) == 2, what="both pods have a node")
    requests = [
        one["resources"]["requests"]
        for pod in pods.values()
        for one in (*pod["spec"]["containers"], *pod["spec"]["initContainers"])
    ]
    assert len(requests) == 6

    for _ in range(2):
        for pod in batches.pods().values():
            batches.ends(pod, DONE)
        wait_until(
            lambda: len(batches.pods()) == 2 or batches.status()["batch"]["done"] == 4,
            what="the next two are at work",
        )
    batches.says(Reason.BATCH_COMPLETE)
    pools.tiers(pool)
    pools.counts(pool, 2, 2, 2)


def test_a_batch_waits_for_its_feature_compute_and_a_changed_plan_is_another_run(batches: Batches) -> None:
    body = feature_compute_body(replicas=0)
    name = body["metadata"]["name"]

    def apply_features(*features: dict[str, object]) -> None:
        spec = {**body["spec"], "features": features or body["spec"]["features"]}
        manifest = {**body, "spec": spec, "metadata": {"name": name}}
        batches.kubectl.apply(manifest, namespace=batches.namespace)

    batches.apply(batch=batch_spec(shards=4, features={"name": name}))
    message = batches.says(Reason.TARGET_NOT_FOUND)
    assert message.startswith(f"spec.batch.features.name: FeatureCompute {name} does not exist")
    assert batches.jobs() == []

    apply_features()
    batches.at_work(0, 1)
    (first,) = batches.jobs()

    apply_features({"name": "age", "lookup": {"field": "profiles.age", "type": "int64"}})
    wait_until(lambda: _find_runs(batches) != _run_of(first), what="another run has begun")

    def has_new_plan() -> bool:
        features = batches.kubectl.json("get", "featurecompute", name, "-n", batches.namespace)
        return bool(batches.status()["batch"].get("planHash") == features["status"].get("planHash"))

    wait_until(has_new_plan, what="the run has the plan of the FeatureCompute")
    batches.kubectl.run("delete", "featurecompute", name, "-n", batches.namespace, "--wait=false")


def _find_runs(batches: Batches) -> set[str]:
    batches.collect()
    return {run for job in batches.jobs() for run in _run_of(job)}


def _run_of(job: Mapping[str, Any]) -> set[str]:
    return {job["metadata"]["labels"]["tidegate.io/run"]}
