"""How much of a batch's run is still to be done, by its status: what bounds how many pods are of any use."""

from tidegate.api.batch import Batch, BatchProgress
from tidegate.api.inference import Inference
from tidegate.resources.batch_run import run_name


def shards_left(inference: Inference) -> int | None:
    """Shards without an end, good or bad, and none of a run that has ended; None where the spec has no batch.

    The status rounds, so of more than 20 shards up to a twentieth may be done already.
    """
    batch = inference.spec.batch
    if batch is None:
        return None
    known = _progress(inference, batch)
    if known is None:
        return batch.shards
    return 0 if _has_ended(known) else max(batch.shards - known.done - known.failed, 0)


def useful_pods(inference: Inference) -> int | None:
    """Most pods that its run has work for; None where the spec has no batch.

    In a queue of Kueue not the shards that are left, but all of them until the run has ended: Kueue stops a Job whose
    number of pods changes, also one of which only the word is missing that it is complete, and counts by itself which
    pods are not needed any more.
    """
    batch = inference.spec.batch
    if batch is None or batch.queue_name is None:
        return shards_left(inference)
    known = _progress(inference, batch)
    return 0 if known is not None and _has_ended(known) else batch.shards


def _progress(inference: Inference, batch: Batch) -> BatchProgress | None:
    """What the status says of the run that the spec asks for; None where it is of another, or of none."""
    known = inference.status.batch
    return known if known is not None and known.run == run_name(inference, batch) else None


def _has_ended(known: BatchProgress) -> bool:
    return known.ended_at is not None or known.completed_at is not None
