"""Follow the run of a sharded Job, of a batch or a backfill: its Jobs, its progress, and why shards fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tidegate.api.batch import BatchProgress
from tidegate.api.reasons import Reason
from tidegate.planning.batch.jobs import JobView
from tidegate.planning.inference.serving_status import Verdict
from tidegate.planning.pods import PodView

_PROGRESS_STEPS: Final = 20
"""With more shards than this, the status changes this often in the course of a run."""
_DEADLINE: Final = "DeadlineExceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRun:
    """Run that the spec asks for, and its Jobs."""

    name: str
    shards: int
    folder: str
    """The folder of its results."""
    plan_hash: str | None
    """The plan of its features; None if it has none."""
    recorded: BatchProgress | None
    """What the status records of this run."""
    job: JobView | None
    """The Job with the planned name; None if it does not exist or is being deleted."""
    other_jobs: Sequence[JobView]
    """Jobs of earlier runs, or of this one with another template."""

    @property
    def jobs(self) -> Sequence[JobView]:
        """Return all Jobs of this run, with any template."""
        return [job for job in (self.job, *self.other_jobs) if job is not None and job.run == self.name]

    @property
    def completed_at(self) -> datetime | None:
        """Return when the last shard was done; the status keeps it, because the Job may be deleted."""
        if self.recorded is not None and self.recorded.completed_at is not None:
            return self.recorded.completed_at
        return next((job.completed_at for job in self.jobs if job.complete), None)

    @property
    def complete(self) -> bool:
        """Return whether every shard is done."""
        return self.completed_at is not None

    @property
    def done_shards(self) -> int:
        """Return how many shards are done, by the Job that has most of them."""
        return self.shards if self.complete else max((len(job.done_shards) for job in self.jobs), default=0)

    @property
    def can_start(self) -> bool:
        """Return whether its Job may be applied: the next one waits until the previous one and its pods are deleted."""
        return not self.other_jobs and not (self.job is not None and self.job.finished)

    def describe_progress(self) -> str:
        """Return how many shards are done, as a clause of a message."""
        return f"{self._count_done()} of {self.shards} shards of run {self.name} are done"

    def make_progress(self, ended_at: datetime | None) -> BatchProgress:
        """Return the progress for the status; `ended_at` is when the run completed or failed."""
        started = self.job.started_at if self.job is not None else None
        # Keep the start of the first Job: another one may have resumed the run.
        recorded = self.recorded.started_at if self.recorded is not None else None
        return BatchProgress(
            run=self.name,
            output=self.folder,
            plan_hash=self.plan_hash,
            shards=self.shards,
            done=self._count_done(),
            failed=len(self.job.failed_shards) if self.job is not None else 0,
            started_at=recorded or started,
            ended_at=ended_at,
            completed_at=self.completed_at,
        )

    def judge_failure(self, pods: Sequence[PodView], spec_path: str) -> Verdict | None:
        """Return why the Job has failed; None if it has not. `spec_path` is the field of the spec."""
        job = self.job
        if job is None or not job.failure_reason:
            return None
        so_far = self.describe_progress()
        if job.failure_reason == _DEADLINE:
            message = f"the run took longer than {spec_path}.deadline; {so_far}; raise it and delete Job {job.key.name} to go on"
            return Verdict(False, Reason.DEADLINE_EXCEEDED, message, stalled=True)
        cause = self.describe_failures(pods) or f"{job.failure_message}; see the logs of Job {job.key.name}"
        return Verdict(False, Reason.SHARDS_FAILED, f"{so_far}; {cause}", stalled=True)

    def describe_failures(self, pods: Sequence[PodView]) -> str:
        """Return the message of a failed pod whose shard is not done since; empty if there is none."""
        job = self.job
        if job is None:
            return ""
        messages = {
            pod.shard: pod.termination_message
            for pod in sorted(pods, key=lambda pod: pod.key)
            if pod.termination_message
            and pod.shard is not None
            and pod.shard not in job.done_shards
            and pod.job == job.key.name
        }
        if not messages:
            return ""
        # A shard that has failed permanently explains more than one that is retried.
        shard = min(messages, key=lambda index: (index not in job.failed_shards, index))
        suffix = f" ({len(messages) - 1} other shards failed too)" if len(messages) > 1 else ""
        return f"shard {shard} failed{suffix}: {messages[shard]}"

    def _count_done(self) -> int:
        """Return the done shards, rounded down to a step, so that the status changes rarely."""
        step = max(self.shards // _PROGRESS_STEPS, 1) if self.shards > _PROGRESS_STEPS else 1
        done = self.done_shards
        return done if done == self.shards else done // step * step


def select_job(jobs: Sequence[JobView], name: str) -> tuple[JobView | None, tuple[JobView, ...]]:
    """Return the Job of that name unless it is being deleted, and all other Jobs."""
    current = next((job for job in jobs if job.key.name == name and not job.deleting), None)
    return current, tuple(job for job in jobs if job is not current)
