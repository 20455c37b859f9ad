"""What the status says about a near-line stream: a condition of its own, since a model is Ready without its broker."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.nearline import Consume
from tidegate.api.reasons import Reason
from tidegate.planning import side_conditions
from tidegate.planning.plan import Event
from tidegate.planning.serving_status import Verdict, condition
from tidegate.planning.swap_failures import Replica
from tidegate_dataplane.contract import StreamProblem

LOOK_AGAIN: Final = timedelta(seconds=15)
"""Nothing wakes us when a broker goes away."""


def stream_conditions(
    inference: Inference, wanted: int, replicas: Sequence[Replica]
) -> tuple[Condition, ...]:
    """Consuming where the spec names a stream, else nothing; `wanted` pods are to run.

    It has no figures: how much waits changes all the time, and stands in the agents' metrics.
    """
    if inference.spec.nearline is None:
        return ()
    verdict = _verdict(inference.spec.nearline.consume, wanted, replicas)
    return (condition(ConditionType.CONSUMING, verdict, inference.metadata.generation),)


def without_stream(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """The conditions that an object without a stream goes on with: what was said about an earlier one is over."""
    if inference.spec.nearline is not None:
        return tuple(conditions)
    return side_conditions.without(ConditionType.CONSUMING, conditions)


def stream_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """One event when the stream cannot be consumed any more, and one when it can."""
    return side_conditions.turns(ConditionType.CONSUMING, Reason.CONSUMING, StreamProblem, before, after)


def _verdict(consume: Consume, wanted: int, replicas: Sequence[Replica]) -> Verdict:
    stream = _stream(consume)
    if wanted == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"no pod is to run; messages wait in {stream}")
    said = [r.report.stream for r in replicas if r.report is not None and r.report.stream is not None]
    if not said:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has reached the stream yet")
    broken = side_conditions.worst(said, lambda report: report.problem, lambda report: report.message)
    return broken or Verdict(True, Reason.CONSUMING, f"messages of {stream} are answered")


def _stream(consume: Consume) -> str:
    if consume.kafka is not None:
        return f"topic {consume.kafka.topic} at {','.join(consume.kafka.bootstrap_servers)}"
    return f"stream {consume.nats.stream} at {consume.nats.url}" if consume.nats is not None else "no stream"
