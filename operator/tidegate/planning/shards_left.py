"""How much of a batch's run is still to be done, by its status: what bounds how many pods are of any use."""

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
    ended = status.ended_at is not None or status.completed_at is not None
    return 0 if ended else max(batch.shards - status.done - status.failed, 0)


def useful_pods(inference: Inference) -> int | None:
    """Most pods that its run has work for; None where the spec has no batch.

    In a queue of Kueue not the shards that are left, but all of them until none is: Kueue stops a Job whose number of pods
    changes, and counts by itself which of them are not needed any more.
    """
    batch, left = inference.spec.batch, shards_left(inference)
    return batch.shards if left and batch is not None and batch.queue_name is not None else left
