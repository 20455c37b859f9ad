"""Backfills with the real Job controller: a run is followed to its end, and begins again only when the spec asks for it."""

from __future__ import annotations

import pytest

from builders.waiting import wait_until
from fixtures.batch_jobs import Backfills
from tidegate.api.reasons import Reason

pytestmark = pytest.mark.usefixtures("controllers")

DONE, NEVER = 0, 3


def test_a_backfill_is_followed_to_its_end_and_stays_done_until_another_run_is_asked_for(
    backfills: Backfills,
) -> None:
    backfills.apply()
    backfills.at_work(0, 1)
    assert "0 of 4 shards" in backfills.says(Reason.BACKFILLING)
    for _ in range(2):
        for pod in backfills.pods().values():
            backfills.ends(pod, DONE)
        wait_until(
            lambda: len(backfills.pods()) == 2 or backfills.status()["backfill"]["done"] == 4,
            what="the next two are at work",
        )
    assert "all 4 shards of run " in backfills.says(Reason.BACKFILL_COMPLETE)
    before = backfills.status()["backfill"]
    assert (before["done"], before["planHash"]) == (4, backfills.status()["planHash"])

    (job,) = backfills.jobs()
    backfills.kubectl("delete", "job", job["metadata"]["name"], "-n", backfills.namespace)
    backfills.patch({"eventStorage": "5Gi"})
    wait_until(lambda: backfills.status()["observedGeneration"] >= 2, what="the change is taken up")
    assert backfills.jobs() == []
    assert backfills.status()["backfill"] == before

    backfills.patch({"backfill": {"run": "again"}})
    backfills.at_work(0, 1)
    wait_until(
        lambda: backfills.status()["backfill"]["run"] != before["run"],
        what="the new run's name",
    )

    backfills.patch({"backfill": None})
    wait_until(lambda: "backfill" not in backfills.status(), what="no progress is reported")

    def has_no_job() -> bool:
        backfills.collect()
        return not backfills.jobs()

    wait_until(has_no_job, what="the Job is deleted")


def test_a_failed_shard_of_a_backfill_is_named(backfills: Backfills) -> None:
    backfills.apply()
    pods = backfills.at_work(0, 1)
    backfills.ends(pods[1], NEVER, "row 4 of s3://lake/labels/a.parquet is refused: no")
    pods = backfills.at_work(0, 2)
    backfills.ends(pods[2], DONE)
    pods = backfills.at_work(0, 3)
    for pod in pods.values():
        backfills.ends(pod, DONE)
    message = backfills.says(Reason.SHARDS_FAILED)
    assert message.endswith("shard 1 failed: row 4 of s3://lake/labels/a.parquet is refused: no")
    assert (backfills.status()["backfill"]["done"], backfills.status()["backfill"]["failed"]) == (3, 1)
