"""Planning a batch: one Job a run, what it goes on from, and what the status says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.batch import batch_spec, find_job
from builders.inference import an_inference
from builders.pods import a_pod_body, a_report
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.batch.jobs import JobView, parse_indexes, parse_job
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.inference.replicas import resolve_replicas
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView, parse_pod
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import DesiredState, FailureReason

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")


def a_batch(status: dict[str, Any] | None = None, **spec: Any) -> Inference:
    changes = {"tier": "offline", "replicas": 2, "batch": batch_spec(), **spec}
    return an_inference(status=status, **changes)


def plan(inference: Inference, *jobs: JobView, **observed: Any) -> ReconcilePlan:
    return plan_inference(InferenceObserved(inference, NOW, epoch=3, jobs=jobs, **observed), SETTINGS)


def live(made: Any, **status: Any) -> JobView:
    """The Job that a plan wants, as it would be there."""
    body = {**made, "metadata": {**made["metadata"], "uid": "u-1"}, "status": status}
    return parse_job(body)


def said(plan: ReconcilePlan) -> tuple[str, str, str]:
    items: Any = plan.status["conditions"]
    found = next(item for item in items if item["type"] == "Complete")
    return found["status"], found["reason"], found["message"]


def ready(plan: ReconcilePlan) -> tuple[str, str]:
    items: Any = plan.status["conditions"]
    found = next(item for item in items if item["type"] == "Ready")
    return found["status"], found["reason"]


def a_failed_pod(job: str, shard: int, words: str, code: int = 3) -> PodView:
    body = a_pod_body(f"{job}-{shard}-x", status={"phase": "Failed"})
    body["metadata"]["labels"] |= {
        "batch.kubernetes.io/job-name": job,
        "batch.kubernetes.io/job-completion-index": str(shard),
    }
    body["status"]["containerStatuses"] = [
        {"name": "shard", "state": {"terminated": {"exitCode": code, "message": words}}}
    ]
    return parse_pod(body)


def test_a_batch_is_one_indexed_job_and_no_deployment() -> None:
    made = plan(a_batch(batch=batch_spec(shards=5, deadline="6h")))
    assert [one["kind"] for one in made.apply] == ["ConfigMap", "Job"]
    spec = find_job(made)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 5, 2)
    assert spec["activeDeadlineSeconds"] == 6 * 3600
    pod = spec["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["shard"]
    assert [(one["name"], one["restartPolicy"]) for one in pod["initContainers"]] == [
        ("agent", "Always"),
        ("triton", "Always"),
    ]
    assert (pod["restartPolicy"], pod["priorityClassName"]) == ("Never", "tidegate-offline")
    assert said(made) == ("False", "Scoring", f"0 of 5 shards of run {_run(made)} are done")


def test_what_was_told_to_end_is_no_try_of_a_shard() -> None:
    rules = find_job(plan(a_batch()))["spec"]["podFailurePolicy"]["rules"]
    # The first that fits counts.
    assert [(one["action"], one.get("onExitCodes", {}).get("values")) for one in rules] == [
        ("FailIndex", [3]),
        ("Ignore", [143]),
        ("Ignore", None),
    ]
    assert {one["onExitCodes"]["containerName"] for one in rules[:2]} == {"shard"}


def _run(made: ReconcilePlan) -> str:
    batch: Any = made.status["batch"]
    return str(batch["run"])


def test_the_pods_are_told_the_whole_run_and_nothing_of_the_term() -> None:
    inference = a_batch(
        batch=batch_spec(
            input={"uri": "s3://lake/users/", "columns": [{"input": "x", "column": "age"}]},
            run="monday",
            maxRefusedRows=7,
            secretName="lake",
        )
    )
    (config,) = (one for one in plan(inference).apply if one["kind"] == "ConfigMap")
    data: Any = config["data"]
    order = DesiredState.model_validate_json(data["desired.json"])
    assert (order.epoch, order.generation, order.version) == (0, 0, 1)
    batch = order.batch
    assert batch is not None
    assert (batch.source, batch.sink, batch.keep) == ("s3://lake/users/", "s3://lake/scores", ("user_id",))
    assert (batch.columns[0].input, batch.columns[0].column) == ("x", "age")
    assert (batch.shards, batch.rows_per_file, batch.max_refused_rows, batch.secret) == (8, 65_536, 7, "lake")
    assert batch.run == _run(plan(inference))


@pytest.mark.parametrize(
    ("changes", "another_run"),
    [
        ({"model": {"version": "2"}}, True),
        ({"batch": batch_spec(run="again")}, True),
        ({"batch": batch_spec(shards=9)}, True),
        ({"batch": batch_spec(output={"keep": ["user_id", "day"]})}, True),
        ({"batching": {"maxBatchSize": 64}}, True),
        ({"replicas": 7}, False),
        ({"batch": batch_spec(deadline="5h")}, False),
        ({"batch": batch_spec(maxRefusedRows=5)}, False),
        ({"resources": {"cpu": "3"}}, False),
        ({"value": {"perRequest": "3"}}, False),
    ],
)
def test_what_changes_results_is_another_run_and_nothing_else(
    changes: dict[str, Any], another_run: bool
) -> None:
    assert (_run(plan(a_batch())) != _run(plan(a_batch(**changes)))) is another_run


def test_parallelism_and_deadline_change_in_place_and_a_template_by_another_job() -> None:
    first = find_job(plan(a_batch()))
    wider = find_job(plan(a_batch(replicas=5, batch=batch_spec(deadline="9h"))))
    assert wider["metadata"]["name"] == first["metadata"]["name"]
    assert wider["spec"]["template"] == first["spec"]["template"]
    assert wider["spec"]["parallelism"] == 5
    larger = find_job(plan(a_batch(resources={"cpu": "3"})))
    assert larger["metadata"]["name"] != first["metadata"]["name"]


def test_the_next_job_waits_until_the_one_before_it_is_gone() -> None:
    old = live(find_job(plan(a_batch())))
    new = a_batch(model={"version": "2"})
    changed = plan(new, old)
    assert find_job(changed) is None
    assert [(one.kind, one.key, one.uid) for one in changed.delete] == [("Job", old.key, "u-1")]
    going = plan(new, JobView(old.key, old.uid, deleting=True))
    assert find_job(going) is None
    assert going.delete == ()
    assert find_job(plan(new)) is not None


def test_zero_replicas_pause_and_say_so() -> None:
    job = live(find_job(plan(a_batch())), completedIndexes="0,2-3")
    paused = plan(a_batch(replicas=0), job)
    assert find_job(paused)["spec"]["parallelism"] == 0
    status, reason, message = said(paused)
    assert (status, reason) == ("False", "ScaledToZero")
    assert "spec.replicas is 0; 3 of 8 shards" in message


def test_a_complete_run_wants_nothing_whatever_becomes_of_its_job() -> None:
    made = find_job(plan(a_batch()))
    ended = live(
        made,
        completedIndexes="0-7",
        startTime="2026-01-01T10:00:00Z",
        completionTime="2026-01-01T11:00:00Z",
        conditions=[{"type": "Complete", "status": "True"}],
    )
    first = plan(a_batch(), ended)
    status, reason, message = said(first)
    assert (status, reason) == ("True", "BatchComplete")
    assert message.endswith(f"the results are in s3://lake/scores/{_run(first)}")
    assert [event.reason for event in first.events] == ["BatchComplete"]
    batch: Any = first.status["batch"]
    assert (batch["done"], batch["startedAt"], batch["completedAt"]) == (
        8,
        "2026-01-01T10:00:00Z",
        "2026-01-01T11:00:00Z",
    )

    # Neither without its Job, nor with other pods, is it done again; and it takes no slice.
    after = a_batch(status=dict(first.status), resources={"cpu": "3"})
    again = plan(after)
    assert (again.apply, again.delete, again.events, again.requeue_after) == ((), (), (), None)
    assert again.status["batch"] == first.status["batch"]
    assert resolve_replicas(after, None).spec.replicas == 0
    # Another run is another matter.
    again = a_batch(status=dict(first.status), batch=batch_spec(run="again"))
    assert resolve_replicas(again, None).spec.replicas == 2
    assert find_job(plan(again)) is not None


def test_no_more_pods_than_shards_are_left() -> None:
    job = live(find_job(plan(a_batch(replicas=6))), completedIndexes="0-3", failedIndexes="5")
    status = plan(a_batch(replicas=6), job).status
    assert resolve_replicas(a_batch(status=dict(status), replicas=6), job.replicas).spec.replicas == 3


@pytest.mark.parametrize("reason", ["FailedIndexes", "DeadlineExceeded"])
def test_a_run_that_has_given_up_takes_no_slice_until_another_job_goes_on_with_it(reason: str) -> None:
    batch = batch_spec(shards=200)
    made = find_job(plan(a_batch(batch=batch)))
    gave_up = {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "lastTransitionTime": "2026-01-01T11:00:00Z",
    }
    # 198 are done, which the status rounds down.
    job = live(made, completedIndexes="0-197", failedIndexes="198", conditions=[gave_up])
    status = dict(plan(a_batch(batch=batch), job).status)
    progress: Any = status["batch"]
    assert (progress["done"], progress["failed"], progress["endedAt"]) == (190, 1, "2026-01-01T11:00:00Z")
    assert "completedAt" not in progress

    def then(*jobs: JobView, **spec: Any) -> tuple[int, str | None]:
        """Pods that it is to have, and what its status says of the end."""
        inference = resolve_replicas(a_batch(status=status, **{"batch": batch, **spec}), None)
        after: Any = plan(inference, *jobs).status["batch"]
        return inference.spec.replicas, after.get("endedAt")

    ended = "2026-01-01T11:00:00Z"
    assert then(job) == (0, ended)
    # Deleted, or with more rows that may be refused, or with larger pods: another Job, and the same run.
    assert then() == (0, None)
    assert plan(a_batch(status=status, batch=batch)).requeue_after == timedelta(seconds=1)
    assert plan(a_batch(status=status, batch=batch), job).requeue_after is None
    assert then(job, batch={**batch, "maxRefusedRows": 5}) == (0, None)
    assert then(job, resources={"cpu": "3"}) == (0, None)
    # Another run at once.
    assert then(job, batch={**batch, "run": "again"}) == (2, None)
    assert then(job, model={"version": "2"}) == (2, None)
    status["batch"] = {name: value for name, value in progress.items() if name != "endedAt"}
    assert then()[0] == 2


def test_a_shard_that_failed_for_good_says_why_and_stalls() -> None:
    made = find_job(plan(a_batch()))
    name = made["metadata"]["name"]
    pods = [a_failed_pod(name, 2, "row 17 of s3://lake/users/a.parquet is refused")]
    working = plan(a_batch(), live(made, completedIndexes="0", failedIndexes="2"), pods=pods)
    assert said(working)[1:] == (
        "Scoring",
        f"1 of 8 shards of run {_run(working)} are done; "
        "shard 2 failed: row 17 of s3://lake/users/a.parquet is refused",
    )
    failed = live(
        made,
        completedIndexes="0-1,3-7",
        failedIndexes="2",
        conditions=[
            {
                "type": "Failed",
                "status": "True",
                "reason": "FailedIndexes",
                "message": "Job has failed indexes",
            }
        ],
    )
    ended = plan(a_batch(), failed, pods=pods)
    status, reason, message = said(ended)
    assert (status, reason) == ("False", "ShardsFailed")
    assert "7 of 8 shards" in message
    assert "shard 2 failed: row 17" in message
    assert find_job(ended) is None
    assert ended.delete == ()
    assert [event.reason for event in ended.events] == ["ShardsFailed"]
    conditions: Any = ended.status["conditions"]
    assert {one["type"]: one["status"] for one in conditions}["Stalled"] == "True"
    assert plan(a_batch(status=dict(ended.status)), failed, pods=pods).events == ()


def test_a_deadline_that_is_over_says_the_way_on() -> None:
    made = find_job(plan(a_batch(batch=batch_spec(deadline="1m"))))
    failed = live(made, conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])
    status, reason, message = said(plan(a_batch(batch=batch_spec(deadline="1m")), failed))
    assert (status, reason) == ("False", "DeadlineExceeded")
    assert f"raise it and delete Job {made['metadata']['name']} to go on" in message


def test_a_pod_that_was_told_to_end_has_not_failed_and_a_later_success_is_no_failure() -> None:
    made = find_job(plan(a_batch()))
    name = made["metadata"]["name"]
    told = a_failed_pod(name, 2, "", code=143)
    assert told.termination_message == ""
    mended = [a_failed_pod(name, 2, "no answer in time", code=1)]
    assert "shard 2 failed: no answer" in said(plan(a_batch(), live(made), pods=mended))[2]
    assert "failed" not in said(plan(a_batch(), live(made, completedIndexes="2"), pods=mended))[2]


def test_a_model_that_cannot_be_had_is_said_in_the_agents_words() -> None:
    made = find_job(plan(a_batch()))
    report = a_report(None, target=1, failure=(1, FailureReason.ARTEFACT_NOT_FOUND, "there is no s3://m/1"))
    status, reason, message = said(plan(a_batch(), live(made), reports={"p0": report}))
    assert (status, reason) == ("False", "ArtefactNotFound")
    assert message.startswith("version 1: there is no s3://m/1; 0 of 8 shards")


def test_ready_is_true_while_the_run_goes_on_or_is_paused_or_complete() -> None:
    made = find_job(plan(a_batch()))
    assert ready(plan(a_batch(), live(made))) == ("False", "WaitingForReplicas")
    assert ready(plan(a_batch(), live(made), pods=[parse_pod(a_pod_body())])) == ("True", "Scoring")
    # Between two shards no pod is ready, and nothing is wrong.
    assert ready(plan(a_batch(), live(made, completedIndexes="0"))) == ("True", "Scoring")
    assert ready(plan(a_batch(replicas=0), live(made))) == ("True", "ScaledToZero")
    failed = live(made, conditions=[{"type": "Failed", "status": "True", "reason": "FailedIndexes"}])
    assert ready(plan(a_batch(), failed)) == ("False", "ShardsFailed")


def test_figures_of_many_shards_are_written_seldom() -> None:
    inference = a_batch(batch=batch_spec(shards=200))
    made = find_job(plan(inference))
    seen = {
        str(plan(inference, live(made, completedIndexes=f"0-{last}")).status["batch"]) for last in range(199)
    }
    assert len(seen) == 20


def test_indexes_are_read_as_kubernetes_writes_them() -> None:
    assert parse_indexes("") == frozenset()
    assert parse_indexes("1,3-5,7") == {1, 3, 4, 5, 7}


def test_waiting_looks_again_for_what_nothing_wakes_us_for() -> None:
    assert plan(a_batch()).requeue_after == timedelta(seconds=15)
    assert plan(a_batch(), JobView(ObjectKey("ads", "old"), "u")).requeue_after == timedelta(seconds=15)
