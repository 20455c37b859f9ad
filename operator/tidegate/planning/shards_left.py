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
