"""Batches in queues of Kueue, with Kueue's own controller manager and webhooks, and the real Job controller."""

from __future__ import annotations

from typing import Any

import pytest

from builders.batch import batch_spec
from builders.waiting import wait_until
from fixtures.batch_jobs import Batches
from fixtures.kueue import Kueue
from tidegate.api.reasons import Reason

pytestmark = [
    pytest.mark.slow("starts the real Kueue; what we make of its objects is checked in unit/"),
    pytest.mark.usefixtures("controllers"),
]

DONE = 0


def queued(**changes: Any) -> dict[str, Any]:
    """`spec.batch` of a run of four shards in the LocalQueue `offline`."""
    return batch_spec(shards=4, queueName="offline", **changes)


@pytest.mark.produces(Reason.KUEUE_MISSING)
def test_without_kueue_nothing_is_made_and_its_arrival_is_noticed(
    batches: Batches, request: pytest.FixtureRequest
) -> None:
    batches.apply(batch=queued())
    said = batches.says(Reason.KUEUE_MISSING)
    assert "install Kueue 0.15 or newer, or remove spec.batch.queueName" in said
    children = batches.kubectl.json(
        "get", "jobs,configmaps", "-n", batches.namespace, "-l", "tidegate.io/inference=ctr"
    )
    assert children["items"] == []

    kueue: Kueue = request.getfixturevalue("kueue")
    kueue.queue(batches.namespace, pods=2)
    wait_until(lambda: len(batches.jobs()) == 1, what="the Job is made", timeout_s=120)
    batches.at_work(0, 1)


@pytest.mark.produces(Reason.QUEUED)
def test_a_job_waits_for_quota_in_kueues_words_and_nobody_fights_over_it(
    kueue: Kueue, batches: Batches
) -> None:
    kueue.queue(batches.namespace, pods=2)
    second = Batches(batches.kubectl, batches.namespace, "cvr")
    batches.apply(batch=queued())
    pods = batches.at_work(0, 1)
    second.apply(batch=queued(run="second"))
    second.says(Reason.QUEUED, "LocalQueue offline", "insufficient unused quota for pods", "0 of 4 shards")
    assert second.pods() == {}
    (waiting,) = second.jobs()
    assert waiting["spec"]["suspend"] is True
    assert waiting["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "offline"

    # One that waits takes another number at once, and goes on waiting.
    second.patch({"replicas": 1})
    wait_until(lambda: second.jobs()[0]["spec"]["parallelism"] == 1, what="it wants one pod")
    assert second.jobs()[0]["spec"]["suspend"] is True

    # To its end the first keeps the number of pods that Kueue has admitted; another would stop it.
    (admitted,) = batches.jobs()
    for pod in pods.values():
        batches.ends(pod, DONE)
    for pod in batches.at_work(2, 3).values():
        batches.ends(pod, DONE)
    batches.says(Reason.BATCH_COMPLETE)
    (job,) = batches.jobs()
    assert job["metadata"]["generation"] == admitted["metadata"]["generation"]
    assert _owner_of_suspend(batches, job["metadata"]["name"]) == "kueue"

    second.at_work(0)
    assert "0 of 4 shards" in second.says(Reason.SCORING)


@pytest.mark.produces(Reason.EVICTED)
def test_what_kueue_stops_waits_again_and_goes_on_where_it_was(kueue: Kueue, batches: Batches) -> None:
    quota = kueue.queue(batches.namespace, pods=2)
    batches.apply(batch=queued())
    pods = batches.at_work(0, 1)
    batches.ends(pods[0], DONE)
    batches.at_work(1, 2)

    kueue.stop(quota, "HoldAndDrain")
    batches.says(Reason.EVICTED, "ClusterQueueStopped", "The ClusterQueue is stopped", "1 of 4 shards")
    batches.at_work()
    assert batches.jobs()[0]["spec"]["suspend"] is True

    kueue.stop(quota, "None")
    batches.at_work(1, 2)
    batches.says(Reason.SCORING)

    # Another number of pods is another claim on the quota: it waits for that, and for no longer.
    batches.patch({"replicas": 0})
    batches.says(Reason.SCALED_TO_ZERO)
    batches.at_work()
    batches.patch({"replicas": 1})
    batches.at_work(1)
    (job,) = batches.jobs()
    assert (job["spec"]["parallelism"], job["status"]["completedIndexes"]) == (1, "0")


def test_another_queue_is_another_job(kueue: Kueue, batches: Batches) -> None:
    kueue.queue(batches.namespace, pods=2)
    batches.apply(batch=queued())
    batches.at_work(0, 1)
    (before,) = batches.jobs()
    batches.patch({"batch": {"queueName": "nowhere"}})
    batches.at_work()
    batches.says(Reason.QUEUED, "LocalQueue nowhere doesn't exist")
    (job,) = batches.jobs()
    assert job["metadata"]["name"] != before["metadata"]["name"]

    batches.patch({"batch": {"queueName": None}})
    batches.at_work(0, 1)


def _owner_of_suspend(batches: Batches, job: str) -> str:
    """Who has written this field of a Job last, by the API server's account."""
    body = batches.kubectl.json("get", "job", job, "-n", batches.namespace, "--show-managed-fields")
    (owner,) = (
        entry["manager"]
        for entry in body["metadata"]["managedFields"]
        if "f:suspend" in entry["fieldsV1"].get("f:spec", {})
    )
    return str(owner)
