"""What the status says about the sample log: a condition of its own, since a broken log takes nothing from Ready."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidegate.api.conditions import Condition, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.reasons import Reason
from tidegate.planning.plan import Event, EventType
from tidegate.planning.serving_status import Verdict, condition
from tidegate.planning.swap_failures import Replica
from tidegate.resources.sample_log import sample_url
from tidegate_dataplane.contract import SampleProblem

LOOK_AGAIN: Final = timedelta(seconds=15)
"""Nothing wakes us when a sink goes away."""


def sample_conditions(inference: Inference, replicas: Sequence[Replica]) -> tuple[Condition, ...]:
    """SamplesLogged where the spec asks for a log, else nothing."""
    if inference.spec.logging is None:
        return ()
    verdict = _verdict(inference, replicas)
    return (condition(ConditionType.SAMPLES_LOGGED, verdict, inference.metadata.generation),)


def without_sample_log(
    inference: Inference, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """The conditions that an object without a log goes on with: what was said about an earlier one is over."""
    if inference.spec.logging is not None:
        return tuple(conditions)
    return tuple(each for each in conditions if each.type != ConditionType.SAMPLES_LOGGED.value)


def sample_events(
    before: Sequence[ObservedCondition], after: Sequence[ObservedCondition]
) -> tuple[Event, ...]:
    """One event when the log breaks, and one when it works again."""
    was, now = (_find(conditions) for conditions in (before, after))
    if now is None or now.reason not in _SAID or (was is not None and was.reason == now.reason):
        return ()
    if now.reason == Reason.SAMPLES_LOGGED.value:
        return (Event(EventType.NORMAL, now.reason, now.message),)
    return (Event(EventType.WARNING, now.reason, now.message),)


_SAID: Final = {Reason.SAMPLES_LOGGED.value, *(problem.value for problem in SampleProblem)}


def _find(conditions: Sequence[ObservedCondition]) -> ObservedCondition | None:
    return next((each for each in conditions if each.type == ConditionType.SAMPLES_LOGGED.value), None)


def _verdict(inference: Inference, replicas: Sequence[Replica]) -> Verdict:
    """The problem that most replicas have, in the words of the first; the log is well where none has one."""
    if inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no request is answered")
    said = [r.report.samples for r in replicas if r.report is not None and r.report.samples is not None]
    if not said:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has begun to log yet")
    problems = Counter(samples.problem for samples in said if samples.problem is not None)
    if problems:
        problem, count = problems.most_common(1)[0]
        message = next(samples.message for samples in said if samples.problem is problem)
        return Verdict(False, Reason(problem.value), f"on {count} of {len(said)} replicas: {message}")
    logging = inference.spec.logging
    share = logging.sample if logging is not None else ""
    return Verdict(
        True, Reason.SAMPLES_LOGGED, f"a share of {share} of the requests goes to {sample_url(logging)}"
    )
