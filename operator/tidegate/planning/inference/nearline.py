"""Report on a near-line stream in a condition of its own, because a model is Ready without its broker."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.nearline import ConsumeSpec
from tidegate.api.reasons import Reason
from tidegate.planning.inference import side_conditions
from tidegate.planning.inference.serving_status import Verdict, make_condition
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event
from tidegate_dataplane.contract import StreamProblem

STREAM_REQUEUE: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when a broker becomes unavailable."""


def stream_conditions(
    inference: Inference, desired_pods: int, replicas: Sequence[ObservedReplica]
) -> tuple[Condition, ...]:
    """Return Consuming if the spec names a stream, else nothing; `desired_pods` is how many pods should run.

    The message has no figures: the lag changes all the time and is in the agents' metrics.
    """
    if inference.spec.nearline is None:
        return ()
    verdict = _judge_stream(inference.spec.nearline.consume, desired_pods, replicas)
    return (make_condition(ConditionType.CONSUMING, verdict, inference.metadata.generation),)


def drop_stream_condition(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop Consuming from the conditions of an object whose spec names no stream any more."""
    if inference.spec.nearline is not None:
        return tuple(conditions)
    return side_conditions.drop_condition(ConditionType.CONSUMING, conditions)


def stream_events(
    previous: Sequence[ObservedCondition], current: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return one event when the stream cannot be consumed any more, and one when it can again."""
    return side_conditions.transition_events(
        ConditionType.CONSUMING, Reason.CONSUMING, StreamProblem, previous, current
    )


def _judge_stream(consume: ConsumeSpec, desired_pods: int, replicas: Sequence[ObservedReplica]) -> Verdict:
    stream = _describe_stream(consume)
    if desired_pods == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"no pod is to run; messages wait in {stream}")
    reports = [
        replica.report.stream
        for replica in replicas
        if replica.report is not None and replica.report.stream is not None
    ]
    if not reports:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has reached the stream yet")
    problem = side_conditions.judge_reports(
        reports, lambda report: report.problem, lambda report: report.message
    )
    return problem or Verdict(True, Reason.CONSUMING, f"messages of {stream} are answered")


def _describe_stream(consume: ConsumeSpec) -> str:
    if consume.kafka is not None:
        return f"topic {consume.kafka.topic} at {','.join(consume.kafka.bootstrap_servers)}"
    return f"stream {consume.nats.stream} at {consume.nats.url}" if consume.nats is not None else "no stream"
