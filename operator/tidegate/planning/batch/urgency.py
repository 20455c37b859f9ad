"""Compute how urgent a batch's run is: how far it is behind the even pace that would end it at its deadline."""

from datetime import datetime
from typing import Final

from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.planning.batch.remaining_shards import count_remaining_shards
from tidegate.resources.batch_run import make_run_name

MAX_URGENCY: Final = 10.0
"""Value of a request of the most urgent work, relative to work that can wait."""
_MIN_TIME_LEFT: Final = 1e-9


def compute_urgency(inference: Inference, now: datetime) -> float:
    """Return the urgency of a run, from 1 (in time, or no deadline) to MAX_URGENCY.

    It is the share of the shards that remain, divided by the share of the time that remains.
    """
    batch, status = inference.spec.batch, inference.status.batch
    if batch is None or batch.deadline is None or status is None or status.started_at is None:
        return 1.0
    remaining = count_remaining_shards(inference)
    if not remaining or status.run != make_run_name(inference, batch):
        return 1.0
    deadline = parse_duration(batch.deadline)
    time_left = (status.started_at + deadline - now) / deadline
    return min(max(remaining / batch.shards / max(time_left, _MIN_TIME_LEFT), 1.0), MAX_URGENCY)
