"""Batches on a real API server with its real Job controller: the test plays the kubelet, and ends pods as one would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from builders.batch import batch_spec
from builders.inference import inference_body
from fixtures.control_plane import Kubectl
from fixtures.pools import Pools
from tidegate.api.reasons import Reason
from tidegate_localcluster.process import wait_until

pytestmark = pytest.mark.usefixtures("controllers")

DONE, NEVER, TOLD = 0, 3, 143


class Batches:
    """One Inference with a batch, its Job, and its pods on a node that is only said to be there."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def apply(self, **spec: Any) -> None:
        """Applies the Inference."""
        body = inference_body(tier="offline", **{"replicas": 2, "batch": batch_spec(shards=4), **spec})
        self.kubectl.apply({**body, "metadata": {"name": "ctr"}}, namespace=self.namespace)

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Changes fields of the spec."""
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "inference", "ctr", "-n", self.namespace, "--type=merge", "-p", patch)

    def status(self) -> Mapping[str, Any]:
        """The status."""
        found = self.kubectl.json("get", "inference", "ctr", "-n", self.namespace)
        return found.get("status", {})  # type: ignore[no-any-return]

    def says(self, reason: Reason) -> str:
        """Waits until Complete has this reason; its message."""

        def condition() -> Mapping[str, Any]:
            return next((one for one in self.status().get("conditions", ()) if one["type"] == "Complete"), {})

        wait_until(
            lambda: condition().get("reason") == reason, what=f"{reason}; it says {condition()}", timeout_s=30
        )
        return str(condition()["message"])

    def jobs(self) -> Sequence[Mapping[str, Any]]:
        """Its Jobs."""
        found = self.kubectl.json("get", "jobs", "-n", self.namespace, "-l", "tidegate.io/inference=ctr")
        return found["items"]  # type: ignore[no-any-return]

    def pods(self) -> dict[int, Mapping[str, Any]]:
        """Pods that have not ended, by shard."""
        found = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", "tidegate.io/inference=ctr")
        return {
            int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): pod
            for pod in found["items"]
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
            and "deletionTimestamp" not in pod["metadata"]
        }

    def at_work(self, *shards: int) -> dict[int, Mapping[str, Any]]:
        """Waits until these shards have a pod, and no other has; plays the kubelet meanwhile."""

        def found() -> dict[int, Mapping[str, Any]]:
            self.collect()
            return self.pods()

        wait_until(lambda: set(found()) == set(shards), what=f"{shards}: {set(self.pods())}", timeout_s=40)
        return self.pods()

    def collect(self) -> None:
        """Ends pods that were deleted, as a kubelet does."""
        found = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", "tidegate.io/inference=ctr")
        leaving = [one for one in found["items"] if "deletionTimestamp" in one["metadata"]]
        for pod in leaving:
            if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self.ends(pod, TOLD)
            name = pod["metadata"]["name"]
            self.kubectl.run("delete", "pod", name, "-n", self.namespace, "--force", "--grace-period=0")

    def ends(self, pod: Mapping[str, Any], code: int, message: str = "") -> None:
        """Says that the shard's process has ended."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"exitCode": code, "message": message, "startedAt": now, "finishedAt": now, "reason": "Error"}
        status = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [
                {
                    "name": "shard",
                    "image": "i",
                    "imageID": "i",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        name = pod["metadata"]["name"]
        patch = json.dumps({"status": status})
        self.kubectl.run(
            *("patch", "pod", name, "-n", self.namespace, "--subresource=status", "--type=merge", "-p", patch)
        )


@pytest.fixture
def batches(kubectl: Kubectl, namespace: str, pools: Pools) -> Iterator[Batches]:
    made = Batches(kubectl, namespace)
    pools.node("0", cpu="64", memory="256Gi")
    yield made
    kubectl.run("delete", "inference", "ctr", "-n", namespace, "--wait=false")


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
    wait_until(
        lambda: batches.jobs()[0]["spec"]["parallelism"] == 1, what="no more pods than shards", timeout_s=60
    )
    batches.ends(pods[3], DONE)
    assert "all 4 shards of run v1-" in batches.says(Reason.BATCH_COMPLETE)
    before = batches.status()["batch"]
    assert (before["done"], "completedAt" in before) == (4, True)

    (job,) = batches.jobs()
    batches.kubectl("delete", "job", job["metadata"]["name"], "-n", batches.namespace)
    batches.patch({"replicas": 2})
    wait_until(
        lambda: batches.status()["observedGeneration"] >= 4, what="the change is taken up", timeout_s=60
    )
    assert batches.jobs() == []
    assert batches.status()["batch"] == before

    batches.patch({"batch": {"run": "tomorrow"}})
    batches.at_work(0, 1)
    assert batches.status()["batch"]["run"] != before["run"]


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
    wait_until(lambda: not _collected(batches), what="its pods are ended", timeout_s=30)
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
    wait_until(lambda: len(pools.bound("ctr", 2)) == 2, what="both pods have a node", timeout_s=60)
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
            timeout_s=30,
        )
    batches.says(Reason.BATCH_COMPLETE)
    pools.tiers(pool)
    pools.counts(pool, 2, 2, 2)
