"""Count the remaining shards of a batch's run: they bound its pods, and determine how urgent it is."""

from datetime import datetime
from typing import Final

from tidegate.api.batch import BatchProgress
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.resources.batch_run import find_progress

MAX_URGENCY: Final = 10.0
"""Value of a request of the most urgent work, relative to work that can wait."""
_MIN_TIME_LEFT: Final = 1e-9


def count_remaining_shards(inference: Inference) -> int | None:
    """Return how many shards have neither succeeded nor failed; 0 once the run has ended, None without a batch.

    The status rounds, so of more than 20 shards up to a twentieth may be done already.
    """
    batch = inference.spec.batch
    if batch is None:
        return None
    progress = find_progress(inference, batch)
    if progress is None:
        return batch.shards
    return 0 if _has_ended(progress) else max(batch.shards - progress.done - progress.failed, 0)


def count_useful_pods(inference: Inference) -> int | None:
    """Return the largest number of pods that the run has work for; None without a batch.

    In a queue of Kueue it is the number of all shards until the run has ended, not of the remaining ones: Kueue stops a Job
    whose number of pods changes, even one that is about to complete, and counts by itself which pods are not needed any more.
    """
    batch = inference.spec.batch
    if batch is None or batch.queue_name is None:
        return count_remaining_shards(inference)
    progress = find_progress(inference, batch)
    return 0 if progress is not None and _has_ended(progress) else batch.shards


def compute_urgency(inference: Inference, now: datetime) -> float:
    """Return the urgency of a run, from 1 (in time, or no deadline) to MAX_URGENCY.

    It is the share of the shards that remain, divided by the share of the time that remains: 1 is the even pace.
    """
    batch, status = inference.spec.batch, inference.status.batch
    if batch is None or batch.deadline is None or status is None or status.started_at is None:
        return 1.0
    remaining = count_remaining_shards(inference)
    if not remaining or find_progress(inference, batch) is None:
        return 1.0
    deadline = parse_duration(batch.deadline)
    time_left = (status.started_at + deadline - now) / deadline
    return min(max(remaining / batch.shards / max(time_left, _MIN_TIME_LEFT), 1.0), MAX_URGENCY)


def _has_ended(progress: BatchProgress) -> bool:
    return progress.ended_at is not None or progress.completed_at is not None
