"""Simulate allocation policies on the pool of some manifests, with the demand of a trace."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.errors import PermanentError
from tidegate.reports.simulation import SimulationReport
from tidegate.services.manifests import read_manifests
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.day import DayOptions, make_scenario
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import make_policy, select_names
from tidegate.simulation.trace import DemandTrace, parse_trace

_SHOWN_SHARES = 10

PrintStep = Callable[[str], None]
ReportStep = Callable[[str, float], None]
"""Gets the policy that runs and the share of its intervals that is done; it ends the simulation by raising."""


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Files to simulate; `pool` names one of several ComputePools."""

    files: Sequence[Path]
    namespace: str
    pool: str | None
    trace: Path
    options: DayOptions


async def simulate_policies(request: SimulationRequest, print_step: PrintStep) -> SimulationReport:
    """Run each policy over the last part of the trace; what comes before is the history.

    Raises PermanentError that names the object, the field or the line that does not fit.
    """
    return simulate_day(_read_day(request), request.options, print_step, _make_progress(print_step))


def simulate_day(
    day: SimulatedDay, options: DayOptions, print_step: PrintStep, report_step: ReportStep
) -> SimulationReport:
    """Run each policy over a day, with the changes that `options` ask for.

    The command line, the API and the dashboard answer with this. It takes minutes for a long day: run it in a thread.
    Raises TidegateError or InvalidInputError.
    """
    names = select_names(options.policies)
    scenario = make_scenario(day, options, print_step)
    solver, count = Solver(time.monotonic), scenario.interval_count
    outcomes: list[SimulationOutcome] = []
    for name in names:
        run_in, policy = make_policy(name, scenario, solver.solve, options.quantile)

        def report_share(step: int, name: str = name) -> None:
            report_step(name, step / count)

        outcomes.append(run_policy(run_in, policy, report_share))
    return SimulationReport.from_outcomes(scenario, outcomes, options.changes)


def _make_progress(print_step: PrintStep) -> ReportStep:
    """Return a function that prints every tenth of a run, if the run takes longer than a second."""
    began: dict[str, float] = {}
    printed: dict[str, int] = {}

    def report_step(name: str, share: float) -> None:
        now, tenths = time.monotonic(), int(share * _SHOWN_SHARES)
        if tenths > printed.get(name, 0) and now - began.setdefault(name, now) > 1:
            print_step(f"{name}: {100 * tenths // _SHOWN_SHARES} %")
            printed[name] = tenths

    return report_step


def _read_day(request: SimulationRequest) -> SimulatedDay:
    """Read the manifests and the trace. Raises PermanentError."""
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
        and item.spec.placement.find_share(pool.metadata.name) is not None
    ]
    if not inferences:
        message = f"no Inference of {', '.join(map(str, request.files))} is placed in the ComputePool {pool.metadata.name}"
        raise PermanentError(message)
    return SimulatedDay(pool, inferences, _read_trace(request.trace))


def _select_pool(request: SimulationRequest, pools: Sequence[ComputePool]) -> ComputePool:
    selected = [pool for pool in pools if request.pool in (None, pool.metadata.name)]
    if len(selected) == 1:
        return selected[0]
    counts = Counter(pool.metadata.name for pool in selected)
    files = ", ".join(map(str, request.files))
    for name, count in sorted(counts.items()):
        if count > 1:
            message = f"{files} has {count} ComputePools with the name {name}: remove all but one"
            raise PermanentError(message)
    names = ", ".join(sorted(pool.metadata.name for pool in pools)) or "none"
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
