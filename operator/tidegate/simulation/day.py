"""Make the scenario of a recorded day, or of the same day with the changes of a what-if."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from tidegate.allocation.errors import MAX_AMOUNT, InvalidInputError
from tidegate.allocation.shared_spares import SpareRules
from tidegate.allocation.snapshot import DEFAULT_DRAIN_S, DEFAULT_LOAD_S, NodeLossInput, PoolInput, TierRule
from tidegate.api.compute_pool import MAX_SLICES, ComputePool, SharedSpareLimits
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, NodeLossMode, Tier
from tidegate.api.what_if import DayWhatIf
from tidegate.errors import PermanentError
from tidegate.planning.allocator.event_calendar import read_calendar
from tidegate.planning.allocator.measured_capacity import list_together
from tidegate.planning.allocator.node_losses import is_strict, price_node_loss
from tidegate.planning.allocator.schedules import UnknownTimeZoneError, load_time_zone
from tidegate.resources.names import (
    RECORDED_DRAIN_ANNOTATION,
    RECORDED_LOAD_ANNOTATION,
    RECORDED_NODES_ANNOTATION,
    RECORDED_SLICES_ANNOTATION,
)
from tidegate.simulation.changes import SimulatedDay, change_day, place_outages
from tidegate.simulation.policies import FORECAST, select_names
from tidegate.simulation.scenario import Scenario, SimulatedModel
from tidegate.simulation.trace import DemandTrace


@dataclass(frozen=True, slots=True)
class DayOptions:
    """What of the day is simulated, and how: `last` is the end of the trace, what comes before is the history.

    `load` and `drain` of None were recorded in the manifests, or have a default. `policies` are names; none stands for all.
    """

    last: timedelta = timedelta(hours=24)
    interval: timedelta = timedelta(minutes=1)
    load: timedelta | None = None
    drain: timedelta | None = None
    quantile: float = 0.9
    policies: Sequence[str] = ()
    changes: DayWhatIf = field(default_factory=DayWhatIf)


def make_scenario(
    recorded: SimulatedDay, options: DayOptions, report_problem: Callable[[str], None]
) -> Scenario:
    """Build the scenario; `report_problem` gets a line about columns and events that are not used.

    Raises TidegateError or InvalidInputError that names the object, the field or the line that does not fit.
    """
    if options.last < options.interval:
        raise InvalidInputError("last", "is shorter than an interval")
    day = change_day(recorded, options.changes)
    models = tuple(_make_model(day.pool, inference, options) for inference in day.inferences)
    trace, pool = day.trace, day.pool
    unused = sorted(trace.rates.keys() - {model.key for model in models})
    if unused:
        report_problem(f"columns that are no Inference of {pool.metadata.name}: {', '.join(unused[:10])}")
    interval_s = options.interval.total_seconds()
    rates = {model.key: _sample_demand(model, trace, interval_s) for model in models}
    simulated = int(options.last.total_seconds() // interval_s)
    total = trace.count_intervals(interval_s)
    if total < simulated:
        message = (
            f"the trace has {total * interval_s / 3600:.1f} h, less than the {options.last.total_seconds() / 3600:.1f} h "
            "to simulate: give a smaller --last"
        )
        raise PermanentError(message)
    begin = datetime.fromtimestamp(trace.times[0] + (total - simulated) * interval_s, UTC)
    calendar = read_calendar(pool.spec.policy, [model.load_s for model in models], begin)
    for problem in calendar.problems:
        report_problem(problem)
    pool_input = _make_pool_input(pool)
    return Scenario(
        pool_input,
        models,
        {key: values[total - simulated :] for key, values in rates.items()},
        interval_s,
        dwell_s=parse_duration(pool.spec.policy.dwell).total_seconds(),
        history={key: values[: total - simulated] for key, values in rates.items()},
        begin=begin,
        # Without its zone a pool forecasts nothing, so only the other policies can be simulated.
        zone=_read_zone(pool) if FORECAST in select_names(options.policies) else UTC,
        calendar=calendar,
        outages=place_outages(options.changes.lost_nodes, pool_input.nodes),
        spare_rules=_read_spare_rules(pool, pool_input) if _shares_spares(pool) else None,
    )


def _shares_spares(pool: ComputePool) -> bool:
    return pool.spec.policy.node_loss.mode is NodeLossMode.SHARED


def _read_zone(pool: ComputePool) -> tzinfo:
    """Return the time zone of the pool's forecasts. Raises PermanentError."""
    forecast = pool.spec.policy.forecast
    try:
        return UTC if forecast is None else load_time_zone(forecast.time_zone)
    except UnknownTimeZoneError as error:
        message = f"ComputePool {pool.key}: spec.policy.forecast.{error}"
        raise PermanentError(message) from error


def _read_spare_rules(pool: ComputePool, pool_input: PoolInput) -> SpareRules:
    limits = pool.spec.policy.node_loss.shared_spares or SharedSpareLimits()
    return SpareRules(limits.max_slices or pool_input.slices, limits.max_models)


def _make_pool_input(pool: ComputePool) -> PoolInput:
    tiers = pool.spec.tiers
    slices = _read_recorded(pool, RECORDED_SLICES_ANNOTATION)
    if slices is None:
        message = f"ComputePool {pool.key} has no recorded slices: give their number with --slices"
        raise PermanentError(message)
    return PoolInput(
        pool.metadata.name,
        slices,
        nodes=_read_recorded(pool, RECORDED_NODES_ANNOTATION) or 1,
        spares=tiers.realtime.warm_spares,
        tiers=tuple(
            TierRule(tier, tiers.bounds_for(tier).floor, tiers.bounds_for(tier).ceiling) for tier in Tier
        ),
        # With shared spares, replicas in reserve are worth nothing.
        node_loss=NodeLossInput(MAX_AMOUNT) if _shares_spares(pool) else price_node_loss(pool),
    )


def _read_recorded(pool: ComputePool, annotation: str) -> int | None:
    """Return a number that was recorded; None if none was. Raises PermanentError."""
    text = pool.metadata.annotations.get(annotation)
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text[:10]) <= MAX_SLICES:
        message = f"ComputePool {pool.key}: annotation {annotation} is {text[:40]!r}, and no number from 1 to {MAX_SLICES}"
        raise PermanentError(message)
    return int(text)


def _choose_seconds(
    inference: Inference, chosen: timedelta | None, annotation: str, default_s: float
) -> float:
    """Return a time in seconds: the chosen, the recorded or the default one. Raises PermanentError."""
    if chosen is not None:
        return chosen.total_seconds()
    text = inference.metadata.annotations.get(annotation)
    if text is None:
        return default_s
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        message = f"inference {inference.key}: annotation {annotation}: {error}"
        raise PermanentError(message) from error


def _make_model(pool: ComputePool, inference: Inference, options: DayOptions) -> SimulatedModel:
    spec, key = inference.spec, str(inference.key)
    if spec.placement is not None and len(spec.placement.pool_shares) > 1:
        message = f"inference {key}: runs in several pools, and a simulation has one; set spec.placement.pool"
        raise PermanentError(message)
    share = spec.placement.find_share(pool.metadata.name) if spec.placement is not None else None
    slices = share.slices if share is not None else 1
    together: Sequence[tuple[int, float]] = ()
    if spec.tier is Tier.OFFLINE:
        rate = float(slices)
    elif spec.capacity is None:
        message = f"inference {key}: has no spec.capacity; measure it with tidegate calibrate"
        raise PermanentError(message)
    else:
        rate, together = float(spec.capacity.requests_per_second), list_together(spec.capacity)
    scaling = spec.scaling
    return SimulatedModel(
        key,
        spec.tier,
        rate,
        slices=slices,
        value=float(spec.value.per_request),
        floor=spec.replicas if scaling is None else scaling.min_replicas,
        ceiling=spec.replicas if scaling is None else scaling.max_replicas,
        load_s=_choose_seconds(inference, options.load, RECORDED_LOAD_ANNOTATION, DEFAULT_LOAD_S),
        drain_s=_choose_seconds(inference, options.drain, RECORDED_DRAIN_ANNOTATION, DEFAULT_DRAIN_S),
        keeps_node_spare=is_strict(pool, inference),
        together=together,
    )


def _sample_demand(model: SimulatedModel, trace: DemandTrace, interval_s: float) -> list[float]:
    """Return the rates of a model; offline work that the trace does not have can use all that it may."""
    if model.key in trace.rates:
        return trace.sample_rates(model.key, interval_s)
    if model.tier is Tier.OFFLINE and model.ceiling is not None:
        return [float(model.ceiling * model.slices)] * trace.count_intervals(interval_s)
    listed = ", ".join(sorted(trace.rates)[:5])
    raise InvalidInputError("trace", f"has no column {model.key}; it has {listed}")
