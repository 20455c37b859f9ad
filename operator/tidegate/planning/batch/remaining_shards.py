"""Count the remaining shards of a batch's run, which bound the pods that it has work for."""

from tidegate.api.batch import BatchProgress, BatchSpec
from tidegate.api.inference import Inference
from tidegate.resources.batch_run import make_run_name


def count_remaining_shards(inference: Inference) -> int | None:
    """Return how many shards have neither succeeded nor failed; 0 once the run has ended, None without a batch.

    The status rounds, so of more than 20 shards up to a twentieth may be done already.
    """
    batch = inference.spec.batch
    if batch is None:
        return None
    progress = _get_progress(inference, batch)
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
    progress = _get_progress(inference, batch)
    return 0 if progress is not None and _has_ended(progress) else batch.shards


def _get_progress(inference: Inference, batch: BatchSpec) -> BatchProgress | None:
    """Return the recorded progress of the run that the spec asks for; None if it is of another run."""
    progress = inference.status.batch
    return progress if progress is not None and progress.run == make_run_name(inference, batch) else None


def _has_ended(progress: BatchProgress) -> bool:
    return progress.ended_at is not None or progress.completed_at is not None
