"""Build the conditions beside Ready: placement, overrides, and optional features that a model serves without.

A new one is a row of `SIDE_CONDITIONS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.conditions import Condition, ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.inference import Inference
from tidegate.api.nearline import describe_stream
from tidegate.api.reasons import Reason
from tidegate.planning.inference.compiled_graph import judge_graphs
from tidegate.planning.inference.joined_requests import judge_joins
from tidegate.planning.inference.reported_problems import (
    find_observed_condition,
    judge_reports,
    make_transition_events,
)
from tidegate.planning.inference.serving_status import PlanRefusal, Verdict, make_condition
from tidegate.planning.inference.swap_failures import ObservedReplica
from tidegate.planning.plan import Event, EventType
from tidegate.planning.pools.overrides import judge_overrides, make_override_events
from tidegate.planning.pools.placement import PlacementResult
from tidegate.resources.sample_log import find_sample_url
from tidegate_dataplane.contract import SampleProblem, StreamProblem

SIDE_REQUEUE: Final = timedelta(seconds=15)
"""Nothing wakes the reconciler when a broker or a sink of samples becomes unavailable."""

_UNSCHEDULABLE_REASONS: Final = frozenset({Reason.NO_CAPACITY, Reason.UNSCHEDULABLE})
_Conditions: TypeAlias = Sequence[ObservedCondition]


@dataclass(frozen=True, slots=True)
class SideInputs:
    """What the conditions beside Ready depend on."""

    inference: Inference
    placement: PlacementResult | None
    overrides: Sequence[ComputeOverride]
    pods: Verdict
    desired_pods: int
    """How many pods should run."""
    replicas: Sequence[ObservedReplica] = ()
    stream_refusal: PlanRefusal | None = None
    """Why agents consume nothing although the spec names a stream."""


@dataclass(frozen=True, slots=True)
class SideCondition:
    """One condition: its verdict, None if the object has no such condition, and the events of its changes."""

    kind: ConditionType
    judge: Callable[[SideInputs], Verdict | None]
    make_events: Callable[[_Conditions, _Conditions], tuple[Event, ...]]


def make_side_conditions(inputs: SideInputs) -> tuple[Condition, ...]:
    """Return the conditions beside Ready that the object has."""
    return tuple(
        make_condition(side.kind, verdict, inputs.inference.metadata.generation)
        for side in SIDE_CONDITIONS
        if (verdict := side.judge(inputs)) is not None
    )


def drop_side_conditions(inputs: SideInputs, conditions: _Conditions) -> tuple[ObservedCondition, ...]:
    """Drop the conditions beside Ready that the object has no more."""
    dropped = {side.kind.value for side in SIDE_CONDITIONS if side.judge(inputs) is None}
    return tuple(condition for condition in conditions if condition.type not in dropped)


def make_side_events(previous: _Conditions, current: _Conditions) -> tuple[Event, ...]:
    """Return the events of what has changed in the conditions beside Ready."""
    return tuple(event for side in SIDE_CONDITIONS for event in side.make_events(previous, current))


def _judge_placed(inputs: SideInputs) -> Verdict | None:
    """Return the pool's verdict, or the scheduler's if a pod with slices finds no node."""
    placement, pods = inputs.placement, inputs.pods
    if placement is None:
        return None
    return pods if placement.verdict.holds and pods.reason in _UNSCHEDULABLE_REASONS else placement.verdict


def _make_placed_events(previous: _Conditions, current: _Conditions) -> tuple[Event, ...]:
    """Return one event when replicas wait for slices, and one when they have them."""
    old, new = (
        find_observed_condition(ConditionType.PLACED, conditions) for conditions in (previous, current)
    )
    if new is None or (old is not None and old.status == new.status):
        return ()
    holds = new.status is ConditionStatus.TRUE
    if old is None and holds:
        return ()
    return (Event(EventType.NORMAL if holds else EventType.WARNING, new.reason, new.message),)


def _judge_sample_log(inputs: SideInputs) -> Verdict | None:
    """Return the problem that most replicas have, with the message of the first; True if none has one."""
    logging = inputs.inference.spec.logging
    if logging is None:
        return None
    if inputs.inference.spec.replicas == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, "spec.replicas is 0, no request is answered")
    reports = [
        replica.report.samples
        for replica in inputs.replicas
        if replica.report is not None and replica.report.samples is not None
    ]
    if not reports:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has begun to log yet")
    problem = judge_reports(reports, lambda samples: samples.problem, lambda samples: samples.message)
    if problem is not None:
        return problem
    return Verdict(
        True,
        Reason.SAMPLES_LOGGED,
        f"a share of {logging.sample} of the requests goes to {find_sample_url(logging)}",
    )


def _judge_graphs(inputs: SideInputs) -> Verdict | None:
    resources = inputs.placement.resources if inputs.placement is not None else None
    return judge_graphs(inputs.inference, inputs.replicas, has_gpu=bool(resources and resources.devices))


def _judge_stream(inputs: SideInputs) -> Verdict | None:
    """Return whether the stream is consumed.

    The message has no figures: the lag changes all the time and is in the agents' metrics.
    """
    if inputs.inference.spec.nearline is None:
        return None
    stream = describe_stream(inputs.inference.spec.nearline.consume)
    if inputs.desired_pods == 0:
        return Verdict(False, Reason.SCALED_TO_ZERO, f"no pod is to run; messages wait in {stream}")
    if inputs.stream_refusal is not None:
        return inputs.stream_refusal.to_verdict()
    reports = [
        replica.report.stream
        for replica in inputs.replicas
        if replica.report is not None and replica.report.stream is not None
    ]
    if not reports:
        return Verdict(False, Reason.WAITING_FOR_REPLICAS, "no replica has reached the stream yet")
    problem = judge_reports(reports, lambda report: report.problem, lambda report: report.message)
    return problem or Verdict(True, Reason.CONSUMING, f"messages of {stream} are answered")


def _judge_override(inputs: SideInputs) -> Verdict | None:
    return judge_overrides(inputs.overrides, effective=inputs.inference.spec.scaling is not None)


SIDE_CONDITIONS: Final = (
    SideCondition(ConditionType.PLACED, _judge_placed, _make_placed_events),
    SideCondition(
        ConditionType.SAMPLES_LOGGED,
        _judge_sample_log,
        partial(make_transition_events, ConditionType.SAMPLES_LOGGED, Reason.SAMPLES_LOGGED, SampleProblem),
    ),
    SideCondition(
        ConditionType.COMPILED,
        _judge_graphs,
        partial(
            make_transition_events, ConditionType.COMPILED, Reason.GRAPH_COMPILED, (Reason.COMPILE_FAILED,)
        ),
    ),
    SideCondition(
        ConditionType.BATCHED,
        lambda inputs: judge_joins(inputs.inference, inputs.replicas),
        lambda _previous, _current: (),  # neither is a problem
    ),
    SideCondition(
        ConditionType.CONSUMING,
        _judge_stream,
        partial(
            make_transition_events,
            ConditionType.CONSUMING,
            Reason.CONSUMING,
            (*StreamProblem, Reason.TARGET_NOT_FOUND, Reason.TARGET_NOT_READY, Reason.PLAN_INVALID),
        ),
    ),
    SideCondition(ConditionType.OVERRIDE_ACTIVE, _judge_override, make_override_events),
)
