"""Report on the sample log in a condition of its own, because a broken log does not affect Ready."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.inference import side_conditions
from tidegate.planning.inference.serving_status import Verdict, make_condition
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event
from tidegate.resources.sample_log import find_sample_url
from tidegate_dataplane.contract import SampleProblem

SAMPLE_LOG_REQUEUE: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when a sink becomes unavailable."""


def sample_conditions(inference: Inference, replicas: Sequence[ObservedReplica]) -> tuple[Condition, ...]:
    """Return SamplesLogged if the spec asks for a log, else nothing."""
    if inference.spec.logging is None:
        return ()
    verdict = _judge_sample_log(inference, replicas)
    return (make_condition(ConditionType.SAMPLES_LOGGED, verdict, inference.metadata.generation),)


def drop_sample_condition(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop SamplesLogged from the conditions of an object whose spec asks for no log any more."""
    if inference.spec.logging is not None:
        return tuple(conditions)
    return side_conditions.drop_condition(ConditionType.SAMPLES_LOGGED, conditions)


def sample_events(
    previous: Sequence[ObservedCondition], current: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """Return one event when the log breaks, and one when it works again."""
    return side_conditions.transition_events(
        ConditionType.SAMPLES_LOGGED, Reason.SAMPLES_LOGGED, SampleProblem, previous, current
    )


def _judge_sample_log(inference: Inference, replicas: Sequence[ObservedReplica]) -> Verdict:
    """Return the problem that most replicas have, with the message of the first; True if none has one."""
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no request is answered")
    reports = [
        replica.report.samples
        for replica in replicas
        if replica.report is not None and replica.report.samples is not None
    ]
    if not reports:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has begun to log yet")
    problem = side_conditions.judge_reports(
        reports, lambda samples: samples.problem, lambda samples: samples.message
    )
    if problem is not None:
        return problem
    logging = inference.spec.logging
    share = logging.sample if logging is not None else ""
    return Verdict(
        True, Reason.SAMPLES_LOGGED, f"a share of {share} of the requests goes to {find_sample_url(logging)}"
    )
