"""How far a batch's run is behind the even pace that would end it at its deadline: what its slices are worth more."""

from datetime import datetime
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.planning.shards_left import shards_left
from tidegate.resources.batch_run import run_name

MOST_URGENT: Final = 10.0
"""Value of a request of work that cannot wait, relative to work that can."""
_LEAST_LEFT: Final = 1e-9


def urgency(inference: Inference, now: datetime) -> float:
    """Part of the shards that is left over part of the time that is left, from 1 (in time, or no deadline) to MOST_URGENT."""
    batch, status = inference.spec.batch, inference.status.batch
    if batch is None or batch.deadline is None or status is None or status.started_at is None:
        return 1.0
    left = shards_left(inference)
    if not left or status.run != run_name(inference, batch):
        return 1.0
    whole = parse_duration(batch.deadline)
    time_left = (status.started_at + whole - now) / whole
    return min(max(left / batch.shards / max(time_left, _LEAST_LEFT), 1.0), MOST_URGENT)
