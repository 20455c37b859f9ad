"""Summarise for a ComputePool's status what its allocator does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.allocation.assignment import Assignment
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.allocator.decision import BUDGET_RULE
from tidegate.planning.allocator.forecasts import DemandForecasts
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.inference.serving_status import Verdict

_NAMED = 3


@dataclass(frozen=True, slots=True)
class PoolAllocation:
    """The result of one tick of the allocator; without verdicts if it has nothing to decide."""

    mode: PolicyMode
    last_decision: str | None = None
    allocated_verdict: Verdict | None = None
    signals_verdict: Verdict | None = None
    forecast_verdict: Verdict | None = None
    """None if spec.policy.forecast is absent, or without an Inference to forecast."""
    events_verdict: Verdict | None = None
    """None without spec.policy.events, or without an Inference whose demand they change."""


def summarise_allocation(
    observed: AllocationObserved,
    assignment: Assignment,
    excluded: Mapping[ObjectKey, str],
    forecasts: DemandForecasts | None = None,
) -> PoolAllocation:
    """Summarise a tick; `observed` includes the decision that it made, if any, and `forecasts` those of the pool, if it has any."""
    newest = observed.decisions[0].metadata.name if observed.decisions else None
    return PoolAllocation(
        observed.effective_mode,
        newest,
        _judge_allocation(observed, assignment, excluded),
        _judge_signals(observed),
        _judge_forecasts(frozenset(observed.forecast_leads), forecasts),
        _judge_events(observed),
    )


def _judge_allocation(
    observed: AllocationObserved, assignment: Assignment, excluded: Mapping[ObjectKey, str]
) -> Verdict:
    """Return the condition Allocated, without figures: those change with every tick, and the decision has them."""
    if observed.freeze is not None and observed.freeze.until is None:
        return Verdict(False, Reason.FREEZE_UNREADABLE, observed.freeze.reason)
    if excluded:
        key, reason = next(iter(sorted(excluded.items())))
        rest = f" (and {len(excluded) - 1} more)" if len(excluded) > 1 else ""
        return Verdict(False, Reason.RULES_NOT_KEPT, f"{key} is left as it is{rest}: {reason}")
    decision = observed.decisions[0].metadata.name if observed.decisions else "none"
    rules = [f"{rule.rule} of {rule.subject}" for rule in assignment.relaxed if rule.rule != BUDGET_RULE]
    if rules:
        rest = f" and {len(rules) - _NAMED} more" if len(rules) > _NAMED else ""
        message = (
            f"not kept: {', '.join(rules[:_NAMED])}{rest}; AllocationDecision {decision} has the figures"
        )
        return Verdict(False, Reason.RULES_NOT_KEPT, message)
    current = observed.current_decision
    if current is None or not current.spec.moves:
        return Verdict(True, Reason.NOTHING_TO_MOVE, _explain_no_moves(observed))
    count = len(current.spec.moves)
    inferences = "1 Inference" if count == 1 else f"{count} Inferences"
    if current.should_execute:
        return Verdict(False, Reason.MOVING, f"{decision} moves {inferences}")
    message = f"{decision} would move {inferences}: set spec.policy.mode: Auto to have it done"
    return Verdict(False, Reason.RECOMMENDED, message)


def _explain_no_moves(observed: AllocationObserved) -> str:
    """Explain why nothing moves: all targets are met, or some Inferences cannot be compared."""
    if observed.effective_mode is PolicyMode.HOLD:
        reason = observed.freeze.reason if observed.freeze is not None else "the pool is held"
        return f"{reason}: every Inference keeps its slices"
    unmeasured = [member.key for member in observed.scaled_members if member.lacks_capacity]
    if not unmeasured:
        return "every Inference has its target replicas"
    rest = f" and {len(unmeasured) - _NAMED} more" if len(unmeasured) > _NAMED else ""
    named = ", ".join(str(key) for key in unmeasured[:_NAMED])
    return (
        f"{named}{rest} have no spec.capacity, so they keep their replicas: "
        "measure it with tidegate calibrate"
    )


def _judge_signals(observed: AllocationObserved) -> Verdict:
    signals = observed.signals.select_inferences(member.key for member in observed.members)
    reason = Reason.SIGNALS_FRESH if signals.all_fresh else Reason.SIGNALS_STALE
    return Verdict(signals.all_fresh, reason, signals.message)


def _judge_forecasts(keys: frozenset[ObjectKey], forecasts: DemandForecasts | None) -> Verdict | None:
    """Return the condition Forecasting; None without an Inference to forecast."""
    if not keys or forecasts is None:
        return None
    if forecasts.policy_problem:
        message = f"{forecasts.policy_problem}; until it is corrected the present rates count"
        return Verdict(False, Reason.FORECAST_INVALID, message)
    unforecast = keys - forecasts.peaks.keys()
    if unforecast and (forecasts.is_pending or unforecast - forecasts.short):
        message = (
            "earlier rates are being read or evaluated; until then the present rates of some Inferences count"
        )
        return Verdict(False, Reason.FORECASTS_PENDING, message)
    if short := keys & forecasts.short:
        lack = "has less than a day of history, so its present rate counts"
        if len(short) > 1:
            lack = "have less than a day of history, so their present rates count"
        problem = f"; {forecasts.history_problem}" if forecasts.history_problem else ""
        message = f"{len(short)} of {len(keys)} Inferences {lack}{problem}"
        return Verdict(False, Reason.HISTORY_TOO_SHORT, message)
    message = "1 Inference is forecast" if len(keys) == 1 else f"{len(keys)} Inferences are forecast"
    return Verdict(True, Reason.DEMAND_FORECAST, message)


def _judge_events(observed: AllocationObserved) -> Verdict | None:
    """Return the condition EventsPlanned; None without an event, or without an Inference that one could be about."""
    keys, calendar, events = observed.expectable_keys, observed.calendar, observed.pool.spec.policy.events
    if not keys or not events:
        return None
    unusable = [
        f"{event.name} ignores {inference.object_key}: spec.policy.events[{index}].inferences[{number}] is not a real-time Inference of "
        "the pool with spec.scaling"
        for index, event in enumerate(events)
        for number, inference in enumerate(event.inferences)
        if inference.object_key not in keys
    ]
    described = calendar.describe_events(observed.now)
    if problems := [*calendar.problems, *unusable]:
        return Verdict(False, Reason.EVENT_INVALID, f"{_join_some(problems, '; ')}; {described}")
    demands = observed.event_demands
    if unknown := sorted(key for key in keys & demands.keys() if demands[key].baseline_per_s is None):
        keep = "keeps" if len(unknown) == 1 else "keep"
        message = f"the demand before it is unknown for {_join_some(map(str, unknown), ', ')}, which {keep} at least the present replicas"
        return Verdict(False, Reason.EVENT_BASELINE_UNKNOWN, f"{described}; {message}")
    return Verdict(True, Reason.EVENTS_PLANNED, described)


def _join_some(texts: Iterable[str], separator: str) -> str:
    listed = list(texts)
    rest = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return separator.join(listed[:_NAMED]) + rest
