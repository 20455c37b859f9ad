"""Report on a near-line stream in a condition of its own, because a model is Ready without its broker."""

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
"""Nothing wakes the reconciler when a broker becomes unavailable."""


def stream_conditions(
    inference: Inference, wanted: int, replicas: Sequence[Replica]
) -> tuple[Condition, ...]:
    """Return Consuming if the spec names a stream, else nothing; `desired_pods` is how many pods should run.

    The message has no figures: the lag changes all the time and is in the agents' metrics.
    """
    if inference.spec.nearline is None:
        return ()
    verdict = _verdict(inference.spec.nearline.consume, wanted, replicas)
    return (condition(ConditionType.CONSUMING, verdict, inference.metadata.generation),)


def without_stream(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop Consuming from the conditions of an object whose spec names no stream any more."""
    if inference.spec.nearline is not None:
        return tuple(conditions)
    return side_conditions.without(ConditionType.CONSUMING, conditions)


def stream_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return one event when the stream cannot be consumed any more, and one when it can again."""
    return side_conditions.turns(ConditionType.CONSUMING, Reason.CONSUMING, StreamProblem, before, after)


def _verdict(consume: Consume, wanted: int, replicas: Sequence[Replica]) -> Verdict:
    stream = _stream(consume)
    if wanted == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"no pod is to run; messages wait in {stream}")
    reports = [
        replica.report.stream
        for replica in replicas
        if replica.report is not None and replica.report.stream is not None
    ]
    if not reports:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has reached the stream yet")
    problem = side_conditions.worst(reports, lambda report: report.problem, lambda report: report.message)
    return problem or Verdict(True, Reason.CONSUMING, f"messages of {stream} are answered")


def _stream(consume: Consume) -> str:
    if consume.kafka is not None:
        return f"topic {consume.kafka.topic} at {','.join(consume.kafka.bootstrap_servers)}"
    return f"stream {consume.nats.stream} at {consume.nats.url}" if consume.nats is not None else "no stream"
