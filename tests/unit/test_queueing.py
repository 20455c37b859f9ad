"""A batch in a queue of Kueue: what is made, and what Kueue's words become."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from builders.batch import batch_spec, find_job
from builders.inference import an_inference
from tidegate.api.inference import Inference
from tidegate.errors import InvalidSpecError
from tidegate.planning.batch.jobs import JobView, parse_job
from tidegate.planning.batch.kueue import KueueState, WorkloadView, parse_workload
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.replicas import resolve_replicas
from tidegate.planning.plan import ReconcilePlan
from tidegate.resources.settings import ServingSettings

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
INSTALLED = KueueState(installed=True, workloads={})


def queued(status: dict[str, Any] | None = None, **spec: Any) -> Inference:
    changes = {"tier": "offline", "replicas": 3, "batch": batch_spec(shards=4, queueName="offline"), **spec}
    return an_inference(status=status, **changes)


def plan(inference: Inference, *jobs: JobView, queueing: KueueState | None = INSTALLED) -> ReconcilePlan:
    return plan_inference(InferenceObserved(inference, NOW, epoch=3, jobs=jobs, kueue=queueing), SETTINGS)


def live(made: Any, *, suspend: bool = True, **status: Any) -> JobView:
    """The Job that a plan wants, as Kueue has it."""
    metadata = {**made["metadata"], "uid": "u-1"}
    return parse_job(
        {**made, "metadata": metadata, "spec": {**made["spec"], "suspend": suspend}, "status": status}
    )


def condition(plan: ReconcilePlan, kind: str = "Complete") -> tuple[str, str, str]:
    items: Any = plan.status["conditions"]
    found = next(item for item in items if item["type"] == kind)
    return found["status"], found["reason"], found["message"]


def said_of(workload: WorkloadView) -> ReconcilePlan:
    """The plan for a waiting Job of which Kueue says this."""
    inference = queued()
    job = live(find_job(plan(inference)))
    return plan(inference, job, queueing=KueueState(True, {"u-1": workload}))


def test_a_job_in_a_queue_is_made_suspended_and_has_the_queues_name() -> None:
    job = find_job(plan(queued()))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "offline"
    without = find_job(plan(queued(batch=batch_spec(shards=4)), queueing=None))
    assert "suspend" not in without["spec"]
    assert "kueue.x-k8s.io/queue-name" not in without["metadata"]["labels"]
    assert without["spec"]["template"] == job["spec"]["template"]


def test_another_queue_is_another_job_of_the_same_run() -> None:
    first, second = (
        find_job(plan(queued(batch=batch_spec(shards=4, queueName=name)))) for name in ("offline", "night")
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    run = "tidegate.io/run"
    assert first["metadata"]["labels"][run] == second["metadata"]["labels"][run]


def test_without_kueue_nothing_is_made_and_the_way_out_is_named() -> None:
    made = plan(queued(), queueing=KueueState(installed=False, workloads={}))
    assert made.apply == ()
    status, reason, message = condition(made)
    assert (status, reason) == ("False", "KueueMissing")
    assert "install Kueue 0.15 or newer, or remove spec.batch.queueName" in message
    assert condition(made, "Stalled")[0] == "True"
    assert made.requeue_after is not None


def test_a_job_that_runs_goes_on_where_kueue_is_gone() -> None:
    inference = queued()
    job = live(find_job(plan(inference)), suspend=False)
    made = plan(inference, job, queueing=KueueState(installed=False, workloads={}))
    assert condition(made)[1] == "Scoring"


def test_kueues_words_are_the_status() -> None:
    waits = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 1 more needed"
    made = said_of(WorkloadView("job-x", pending_message=waits))
    assert condition(made)[1:] == (
        "Queued",
        f"its Job waits in LocalQueue offline: {waits}; 0 of 4 shards of run v1-{_run(made)} are done",
    )
    assert condition(made, "Ready")[:2] == ("False", "Queued")
    assert condition(made, "Stalled")[0] == "False"


def _run(made: ReconcilePlan) -> str:
    batch: Any = made.status["batch"]
    return str(batch["run"]).removeprefix("v1-")


def test_what_kueue_stopped_says_why_and_is_an_event_once() -> None:
    workload = WorkloadView(
        "job-x", eviction_reason="Preempted", eviction_message="made room", pending_message="quota is used"
    )
    made = said_of(workload)
    status, reason, message = condition(made)
    assert (status, reason) == ("False", "Evicted")
    assert (
        "Kueue has stopped its Job (Preempted): made room; it waits in LocalQueue offline: quota is used"
        in message
    )
    assert [(event.type, event.reason) for event in made.events] == [("Warning", "Evicted")]
    again = queued(status=dict(made.status))
    job = live(find_job(plan(queued())))
    assert plan(again, job, queueing=KueueState(True, {"u-1": workload})).events == ()


def test_a_workload_that_was_deactivated_waits_for_a_person() -> None:
    made = said_of(
        WorkloadView(
            "job-x", eviction_reason="DeactivatedDueToRequeuingLimitExceeded", eviction_message="too often"
        )
    )
    assert "set spec.active of Workload job-x to true" in condition(made)[2]
    assert condition(made, "Stalled")[0] == "True"


def test_a_job_that_kueue_does_not_see_says_where_to_look() -> None:
    inference = queued()
    made = plan(inference, live(find_job(plan(inference))))
    for words in ("no Workload of Job", "namespace ads (managedJobsNamespaceSelector)", "batch/job"):
        assert words in condition(made)[2]


def test_a_job_that_was_admitted_is_about_to_start_and_one_that_runs_is_at_work() -> None:
    made = said_of(WorkloadView("job-x", admitted=True, cluster_queue="shared"))
    assert "has admitted its Job to ClusterQueue shared" in condition(made)[2]
    inference = queued()
    running = live(find_job(plan(inference)), suspend=False)
    assert condition(plan(inference, running))[1] == "Scoring"


@pytest.mark.parametrize(
    ("done", "ended", "pods"), [(0, "", 3), (2, "", 3), (4, "", 3), (4, "completedAt", 0), (3, "endedAt", 0)]
)
def test_the_number_of_pods_stays_until_the_run_has_ended(done: int, ended: str, pods: int) -> None:
    before: Any = plan(queued()).status["batch"]
    batch = {**before, "done": done, **({ended: "2026-01-01T11:00:00Z"} if ended else {})}
    assert resolve_replicas(queued(status={"batch": batch}), None).spec.replicas == pods
    unqueued = queued(status={"batch": batch}, batch=batch_spec(shards=4))
    assert resolve_replicas(unqueued, None).spec.replicas == (0 if ended else min(3, 4 - done))


def test_more_replicas_than_shards_are_as_many_as_shards() -> None:
    assert find_job(plan(resolve_replicas(queued(replicas=9), None)))["spec"]["parallelism"] == 4


def test_a_pool_and_a_queue_do_not_go_together() -> None:
    with pytest.raises((InvalidSpecError, ValidationError), match="only for Inferences without placement"):
        queued(placement={"pool": "a"})


def test_a_workload_is_read_as_kueue_writes_it() -> None:
    def a_condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
        return {"type": kind, "status": status, "reason": reason, "message": message}

    body = {
        "metadata": {"name": "job-x"},
        "status": {
            "conditions": [
                a_condition("QuotaReserved", "False", "Pending", "no quota. "),
                a_condition("Evicted", "True", "ClusterQueueStopped", "The ClusterQueue is stopped"),
            ]
        },
    }
    assert parse_workload(body) == WorkloadView(
        "job-x",
        pending_message="no quota",
        eviction_reason="ClusterQueueStopped",
        eviction_message="The ClusterQueue is stopped",
    )
    checks = a_condition("Admitted", "False", "UnsatisfiedChecks", "waits for check a")
    reserved = a_condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue shared")
    again = a_condition("Evicted", "False", "QuotaReserved", "Previously: stopped")
    held = {
        "metadata": {"name": "job-x"},
        "status": {"conditions": [reserved, checks, again], "admission": {"clusterQueue": "shared"}},
    }
    assert parse_workload(held) == WorkloadView(
        "job-x", cluster_queue="shared", pending_message="waits for check a"
    )
    assert parse_workload({"metadata": {"name": "job-x"}}) == WorkloadView("job-x")
