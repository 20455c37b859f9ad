"""Simulate allocation policies on the pool of some manifests, with the demand of a trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import DEFAULT_LOAD_S, PoolInput, TierRule
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import MAX_SLICES, ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference, Tier
from tidegate.errors import PermanentError
from tidegate.planning.allocator.event_calendar import read_calendar
from tidegate.planning.allocator.node_losses import is_strict, price_node_loss
from tidegate.reports.simulation import SimulationReport
from tidegate.resources.names import (
    RECORDED_LOAD_ANNOTATION,
    RECORDED_NODES_ANNOTATION,
    RECORDED_SLICES_ANNOTATION,
)
from tidegate.services.manifests import read_manifests
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import make_policy, select_names
from tidegate.simulation.scenario import Scenario, SimulatedModel
from tidegate.simulation.trace import DemandTrace, parse_trace

_SHOWN_SHARES = 10

PrintStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What to simulate; `pool` names one of several ComputePools, and `slices` and `nodes` are what it has.

    What is None was recorded in the manifests, or has a default.
    """

    files: Sequence[Path]
    namespace: str
    pool: str | None
    slices: int | None
    nodes: int | None
    trace: Path
    last: timedelta
    interval: timedelta
    load: timedelta | None
    drain: timedelta
    quantile: float
    policies: Sequence[str]


async def simulate_policies(request: SimulationRequest, print_step: PrintStep) -> SimulationReport:
    """Run each policy over the last part of the trace; what comes before is the history.

    Raises PermanentError that names the object, the field or the line that does not fit.
    """
    names = select_names(request.policies)
    scenario = make_scenario(request, print_step)
    solver = Solver(time.monotonic)
    outcomes: list[SimulationOutcome] = []
    for name in names:
        run_in, policy = make_policy(name, scenario, solver.solve, request.quantile)
        outcomes.append(run_policy(run_in, policy, _make_progress(name, scenario.interval_count, print_step)))
    return SimulationReport.from_outcomes(scenario, outcomes)


def _make_progress(name: str, intervals: int, print_step: PrintStep) -> Callable[[int], None]:
    """Return a function that prints every tenth of a run, if the run takes longer than a second."""
    every, began = max(intervals // _SHOWN_SHARES, 1), time.monotonic()

    def report_step(step: int) -> None:
        if step % every == 0 and time.monotonic() - began > 1:
            print_step(f"{name}: {100 * step // intervals} %")

    return report_step


def make_scenario(request: SimulationRequest, print_step: PrintStep) -> Scenario:
    """Build the scenario; `print_step` gets a line about columns that are not used. Raises PermanentError."""
    if request.last < request.interval:
        raise InvalidInputError("last", "is shorter than an interval")
    manifests = read_manifests(request.files, request.namespace)
    if manifests.rejected:
        first = manifests.rejected[0]
        message = f"{first.kind} {first.key}: {'; '.join(first.messages)}"
        raise PermanentError(message)
    pool = _select_pool(request, [item for item in manifests.objects if isinstance(item, ComputePool)])
    inferences = [
        item
        for item in manifests.objects
        if isinstance(item, Inference)
        and item.spec.placement is not None
        and item.spec.placement.pool == pool.metadata.name
    ]
    if not inferences:
        message = f"no Inference of {', '.join(map(str, request.files))} is placed in the ComputePool {pool.metadata.name}"
        raise PermanentError(message)
    trace = _read_trace(request.trace)
    models = tuple(_make_model(pool, inference, request) for inference in inferences)
    unused = sorted(trace.rates.keys() - {model.key for model in models})
    if unused:
        print_step(f"columns that are no Inference of {pool.metadata.name}: {', '.join(unused[:10])}")
    interval_s = request.interval.total_seconds()
    rates = {model.key: _sample_demand(model, trace, interval_s) for model in models}
    simulated = int(request.last.total_seconds() // interval_s)
    total = len(next(iter(rates.values())))
    if total < simulated:
        message = (
            f"{request.trace} has {total * interval_s / 3600:.1f} h, less than the {request.last.total_seconds() / 3600:.1f} h "
            "to simulate: give a smaller --last"
        )
        raise PermanentError(message)
    begin = datetime.fromtimestamp(trace.times[0] + (total - simulated) * interval_s, UTC)
    calendar = read_calendar(pool.spec.policy, [model.load_s for model in models], begin)
    for problem in calendar.problems:
        print_step(problem)
    return Scenario(
        _make_pool_input(pool, request),
        models,
        {key: values[total - simulated :] for key, values in rates.items()},
        interval_s,
        dwell_s=parse_duration(pool.spec.policy.dwell).total_seconds(),
        history={key: values[: total - simulated] for key, values in rates.items()},
        begin=begin,
        calendar=calendar,
    )


def _select_pool(request: SimulationRequest, pools: Sequence[ComputePool]) -> ComputePool:
    selected = [pool for pool in pools if request.pool in (None, pool.metadata.name)]
    if len(selected) == 1:
        return selected[0]
    names = ", ".join(sorted(pool.metadata.name for pool in pools)) or "none"
    files = ", ".join(map(str, request.files))
    if request.pool is None and pools:
        message = f"{files} has several ComputePools; name one with --pool: {names}"
    else:
        message = f"{files} has no ComputePool {request.pool or ''}".rstrip() + f"; there are: {names}"
    raise PermanentError(message)


def _read_trace(path: Path) -> DemandTrace:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_trace(lines)
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise PermanentError(message) from error


def _make_pool_input(pool: ComputePool, request: SimulationRequest) -> PoolInput:
    tiers = pool.spec.tiers
    slices = request.slices or _read_recorded(pool, RECORDED_SLICES_ANNOTATION)
    if slices is None:
        message = f"ComputePool {pool.key} in {', '.join(map(str, request.files))} has no recorded slices: give their number with --slices"
        raise PermanentError(message)
    return PoolInput(
        pool.metadata.name,
        slices,
        nodes=request.nodes or _read_recorded(pool, RECORDED_NODES_ANNOTATION) or 1,
        spares=tiers.realtime.warm_spares,
        tiers=tuple(
            TierRule(tier, tiers.bounds_for(tier).floor, tiers.bounds_for(tier).ceiling) for tier in Tier
        ),
        node_loss=price_node_loss(pool),
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


def _find_load(inference: Inference, request: SimulationRequest) -> timedelta:
    """Return the time until a new replica serves: the chosen, the recorded or the default one. Raises PermanentError."""
    if request.load is not None:
        return request.load
    text = inference.metadata.annotations.get(RECORDED_LOAD_ANNOTATION)
    if text is None:
        return timedelta(seconds=DEFAULT_LOAD_S)
    try:
        return parse_duration(text)
    except ValueError as error:
        message = f"inference {inference.key}: annotation {RECORDED_LOAD_ANNOTATION}: {error}"
        raise PermanentError(message) from error


def _make_model(pool: ComputePool, inference: Inference, request: SimulationRequest) -> SimulatedModel:
    spec, key = inference.spec, str(inference.key)
    slices = spec.placement.slices if spec.placement is not None else 1
    if spec.tier is Tier.OFFLINE:
        rate = float(slices)
    elif spec.capacity is None:
        message = f"inference {key}: has no spec.capacity; measure it with tidegate calibrate"
        raise PermanentError(message)
    else:
        rate = float(spec.capacity.requests_per_second)
    scaling = spec.scaling
    return SimulatedModel(
        key,
        spec.tier,
        rate,
        slices=slices,
        value=float(spec.value.per_request),
        floor=spec.replicas if scaling is None else scaling.min_replicas,
        ceiling=spec.replicas if scaling is None else scaling.max_replicas,
        load_s=_find_load(inference, request).total_seconds(),
        drain_s=request.drain.total_seconds(),
        keeps_node_spare=is_strict(pool, inference),
    )


def _sample_demand(model: SimulatedModel, trace: DemandTrace, interval_s: float) -> list[float]:
    """Return the rates of a model; offline work that the trace does not have can use all that it may."""
    if model.key in trace.rates:
        return trace.sample_rates(model.key, interval_s)
    if model.tier is Tier.OFFLINE and model.ceiling is not None:
        return [float(model.ceiling * model.slices)] * trace.count_intervals(interval_s)
    listed = ", ".join(sorted(trace.rates)[:5])
    raise InvalidInputError("trace", f"has no column {model.key}; it has {listed}")
