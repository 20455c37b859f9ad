"""How much of a batch's run is still to be done, by its status: what bounds how many pods are of any use."""

from tidegate.api.batch import Batch
from tidegate.api.inference import Inference
from tidegate.resources.batch_run import run_name


def shards_left(inference: Inference) -> int | None:
    """Shards without an end, good or bad, and none of a run that has ended; None where the spec has no batch.

    The status rounds, so of more than 20 shards up to a twentieth may be done already.
    """
    batch, status = inference.spec.batch, inference.status.batch
    if batch is None:
        return None
    if status is None or status.run != run_name(inference, batch):
        return batch.shards
    return 0 if _has_ended(inference, batch) else max(batch.shards - status.done - status.failed, 0)


def useful_pods(inference: Inference) -> int | None:
    """Most pods that its run has work for; None where the spec has no batch.

    In a queue of Kueue not the shards that are left, but all of them until the run has ended: Kueue stops a Job whose
    number of pods changes, also one of which only the word is missing that it is complete, and counts by itself which
    pods are not needed any more.
    """
    batch = inference.spec.batch
    if batch is not None and batch.queue_name is not None:
        return 0 if _has_ended(inference, batch) else batch.shards
    return shards_left(inference)


def _has_ended(inference: Inference, batch: Batch) -> bool:
    status = inference.status.batch
    if status is None or status.run != run_name(inference, batch):
        return False
    return status.ended_at is not None or status.completed_at is not None
