"""Decides when a pool is due for a decision, and solves what its Inferences get."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInput, SolverInputs
from tidegate.kube.port import Manifest
from tidegate.planning.allocator.corrections import Corrections, update_corrections
from tidegate.planning.allocator.decision import SolvedAllocation, plan_decision
from tidegate.planning.allocator.forecasts import DemandForecasts
from tidegate.planning.allocator.latency import measure_latencies
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.peaks import Peaks, apply_peaks
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.shared_spares import keep_spares, plan_pool_spares
from tidegate.planning.allocator.signals import Signals
from tidegate.planning.allocator.snapshot_builder import AllocationView, build_allocation_view
from tidegate.planning.allocator.stream_demand import find_deadline_shortfalls
from tidegate.planning.allocator.triggers import DecisionInputs, find_trigger, resolve_trigger
from tidegate.planning.allocator.value_mix import ValueMix, measure_values, update_mixes
from tidegate.runtime.clock import Clock
from tidegate.telemetry.tracing import add_attributes
from tidegate_controllers.allocator.events import AllocationEvents
from tidegate_controllers.allocator.forecasts import AllocationForecasts
from tidegate_controllers.allocator.observer import Neighbours
from tidegate_controllers.allocator.pool_groups import AllocationSolver, PoolGroups


class DemandSource(Protocol):
    """The demand of every Inference; telemetry's SignalReader in a cluster."""

    async def read(self) -> Signals:
        """Return the signals that are reliable now. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class PoolSolve:
    """When a pool was solved, from which inputs, and with which result."""

    started_s: float
    inputs: DecisionInputs
    assignment: Assignment
    excluded: Mapping[ObjectKey, str]
    observed: AllocationObserved
    """The pool with all that it was decided from."""
    forecasts: DemandForecasts | None = None


@dataclass(slots=True, kw_only=True)
class PoolSolver:
    """Remembers each pool's last solve and the corrections of its Inferences, for one term."""

    solver: AllocationSolver
    demand: DemandSource
    forecasts: AllocationForecasts
    events: AllocationEvents
    inputs: SolverInputs
    metrics: AllocatorMetrics
    clock: Clock
    _last_solves: dict[ObjectKey, PoolSolve] = field(default_factory=dict, init=False)
    _corrections: dict[ObjectKey, Corrections] = field(default_factory=dict, init=False)
    _peaks: dict[ObjectKey, Peaks] = field(default_factory=dict, init=False)
    _mixes: dict[ObjectKey, Mapping[ObjectKey, ValueMix]] = field(default_factory=dict, init=False)
    _last_read: tuple[float, Signals] | None = field(default=None, init=False)
    _groups: PoolGroups = field(init=False)

    def __post_init__(self) -> None:
        self._groups = PoolGroups(self.solver)

    def find_due_trigger(self, observed: AllocationObserved) -> DecisionTrigger | None:
        """Return why a decision is due now; None if it is not."""
        last = self._last_solves.get(observed.pool.key)
        if last is None:
            return DecisionTrigger.STARTED
        event = find_trigger(last.inputs, DecisionInputs.from_observed(observed))
        is_overdue = self.time_until_due(observed) <= timedelta()
        return event or (DecisionTrigger.INTERVAL if is_overdue else None)

    def time_until_due(self, observed: AllocationObserved) -> timedelta:
        """Return the time until the pool's interval is over, negative afterwards; the pool has been solved before."""
        since_s = self.clock.monotonic() - self._last_solves[observed.pool.key].started_s
        return parse_duration(observed.pool.spec.policy.interval) - timedelta(seconds=since_s)

    def get_last(self, pool: ObjectKey) -> PoolSolve:
        """Return the last solve of a pool. Raises KeyError if there is none."""
        return self._last_solves[pool]

    def put_last(self, pool: ObjectKey, solve: PoolSolve) -> None:
        """Take the last solve of a pool."""
        self._last_solves[pool] = solve

    def refresh_inputs(self, observed: AllocationObserved) -> None:
        """Take the current nodes as a basis, so that the loss of one that joined since the last solve is noticed."""
        last = self._last_solves[observed.pool.key]
        self._last_solves[observed.pool.key] = replace(last, inputs=DecisionInputs.from_observed(observed))

    async def read_signals(self, interval: timedelta) -> Signals:
        """Read the demand, at most once per half interval.

        Pools that decide at about the same time share one read: rates over less than half an interval would be noise.
        """
        now = self.clock.monotonic()
        if self._last_read is None or now - self._last_read[0] >= interval.total_seconds() / 2:
            self._last_read = now, await self.demand.read()
        return self._last_read[1]

    def hold_peaks(self, observed: AllocationObserved, signals: Signals) -> Signals:
        """Return the signals of the pool's Inferences with the peaks of late, and remember these."""
        with_peaks, self._peaks[observed.pool.key] = self._apply_peaks(observed, signals)
        return with_peaks

    def _apply_peaks(self, observed: AllocationObserved, signals: Signals) -> tuple[Signals, Peaks]:
        signals = signals.select_inferences(member.key for member in observed.members)
        peaks = self._peaks.get(observed.pool.key, {})
        return apply_peaks(peaks, signals, observed.now, observed.peak_windows)

    def list_deciding(self, observed: AllocationObserved) -> frozenset[str]:
        """Return the names of the pools that execute decisions about as often as this one."""
        return self._groups.list_deciding(observed)

    def read_neighbours(self, neighbours: Neighbours, signals: Signals) -> Neighbours:
        """Return the other pools of a group with the demand of their Inferences that was just read."""
        pools = (replace(pool, signals=self._apply_peaks(pool, signals)[0]) for pool in neighbours.pools)
        return replace(neighbours, pools=tuple(pools))

    def put_executed(self, pool: ObjectKey) -> None:
        """Let other pools count on the last decision of a pool: it is written, and its next step is taken."""
        last = self._last_solves[pool]
        self._groups.put_decided(last.observed, last.assignment.get_price(pool.name))

    async def solve_pool(
        self,
        observed: AllocationObserved,
        trigger: DecisionTrigger,
        neighbours: Neighbours = Neighbours(),  # noqa: B008  it is frozen
    ) -> tuple[PoolSolve, Manifest | None]:
        """Solve a pool; return the result, and the decision to write if it differs from the current one.

        `neighbours` are the other pools of its group, with the demand that was just read.
        """
        key, signals = observed.pool.key, observed.signals
        last = self._last_solves.get(key)
        inputs = DecisionInputs.from_observed(observed)
        trigger = resolve_trigger(trigger, last.inputs if last is not None else None, inputs)
        add_attributes({"tidegate.trigger": trigger.value})
        # 1. Build the snapshot, with capacities corrected by what production shows, with the demand that is expected, and with
        # the mix of values that clients send; what-if plans start from it too.
        forecasts = await self.forecasts.forecast_pool(observed)
        event_demands = await self.events.plan_pool(observed)
        observed = replace(self._apply_corrections(observed), event_demands=event_demands)
        observed = self._apply_forecasts(observed, forecasts)
        self._mixes[key] = update_mixes(
            self._mixes.get(key, {}), (member.inference for member in observed.members), signals
        )
        price = None if last is None else last.assignment.get_price(observed.name)
        observed = replace(observed, mixes=self._mixes[key], price=price)
        values = measure_values((member.inference for member in observed.members), signals)
        self.metrics.show_offers(observed.name, {name: rates.offered for name, rates in values.items()})
        self.metrics.show_values(observed.name, {name: rates.by_outcome for name, rates in values.items()})
        # What Inferences of several pools are to have in the others comes before anything is decided about this one.
        started_s = self.clock.monotonic()
        divided = await self._groups.divide_pool(observed, neighbours.pools)
        # The first solve of a process may lack demand; the predecessor's decision, made with better data, goes on.
        is_blind_start = trigger is DecisionTrigger.STARTED and bool(signals.problem)
        observed, view = self._plan_spares(divided.observed, is_blind=is_blind_start)
        latencies = measure_latencies(observed)
        self.inputs.put(
            key, SolverInput(observed.now, observed.effective_mode, view.snapshot, values, latencies)
        )
        # 2. Solve it. The solver always answers, if need be by the greedy method, which the metrics show.
        assignment = await self.solver.solve(view.snapshot)
        notes = assignment.note, divided.note, neighbours.note
        assignment = replace(assignment, note="; ".join(filter(None, notes)))
        seconds = self.clock.monotonic() - started_s
        self._show_solve(observed, assignment, seconds)
        self.metrics.show_deadlines(observed.name, find_deadline_shortfalls(view.snapshot))
        # 3. Plan the decision: none if it would equal the current one.
        solved = SolvedAllocation(
            assignment,
            predict_outcome(view.snapshot, assignment),
            trigger,
            seconds,
            choose_warm_spares(view.snapshot, assignment),
            values,
            observed.spare_plan.spares,
        )
        decision = plan_decision(observed, solved)
        if is_blind_start and observed.current_decision is not None:
            decision = None
        return PoolSolve(started_s, inputs, assignment, dict(view.excluded), observed, forecasts), decision

    def suspend_pool(self, observed: AllocationObserved) -> None:
        """Remove what is shown of a pool that needs no solve now."""
        if not observed.scaled_members and self._corrections.pop(observed.pool.key, None) is not None:
            self.metrics.show_corrections(observed.name, {})
        if not observed.expectable_keys:
            self.events.forget_pool(observed.pool.key)
            self.forecasts.forget_pool(observed.pool.key)
            self.metrics.show_forecasts(observed.name, {})
        self.inputs.forget(observed.pool.key)
        self._groups.forget_pool(observed.pool.key)
        self.metrics.hide_pool(observed.name)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a deleted pool."""
        self._last_solves.pop(pool, None)
        self._corrections.pop(pool, None)
        self._peaks.pop(pool, None)
        self._mixes.pop(pool, None)
        self.forecasts.forget_pool(pool)
        self.events.forget_pool(pool)
        self.inputs.forget(pool)
        self._groups.forget_pool(pool)
        self.metrics.forget_pool(pool.name)

    def _plan_spares(
        self, observed: AllocationObserved, *, is_blind: bool
    ) -> tuple[AllocationObserved, AllocationView]:
        """Plan the spares that Inferences share; the others get what these leave."""
        view = build_allocation_view(observed)
        plan = keep_spares(observed) if is_blind else plan_pool_spares(observed, view.snapshot.inferences)
        planned_slices = plan.count_slices(observed.slices.healthy_nodes)
        if plan == observed.spare_plan and planned_slices <= observed.spare_slices:
            return observed, view
        slices = max(observed.spare_slices, planned_slices)
        observed = replace(observed, spare_plan=plan, spare_slices=slices)
        return observed, build_allocation_view(observed)

    def _apply_corrections(self, observed: AllocationObserved) -> AllocationObserved:
        key = observed.pool.key
        updated = self._corrections[key] = update_corrections(self._corrections.get(key, {}), observed)
        factors = {member: state.correction for member, state in updated.items()}
        self.metrics.show_corrections(
            observed.name, {str(member): correction.factor for member, correction in factors.items()}
        )
        return replace(observed, corrections=factors)

    def _apply_forecasts(
        self, observed: AllocationObserved, forecasts: DemandForecasts | None
    ) -> AllocationObserved:
        peaks = {} if forecasts is None else dict(forecasts.peaks)
        brought = {
            key: max(demand.rate_per_s, peaks.get(key, 0.0))
            for key, demand in observed.event_demands.items()
            if demand.baseline_per_s is not None
        }
        expected = {str(key): rate for key, rate in {**peaks, **brought}.items()}
        self.metrics.show_forecasts(observed.name, expected)
        return replace(observed, forecasts=peaks)

    def _show_solve(self, observed: AllocationObserved, assignment: Assignment, seconds: float) -> None:
        add_attributes({"tidegate.method": assignment.method.value, "tidegate.solve_seconds": seconds})
        metrics, pool = self.metrics, observed.name
        metrics.solve_seconds.labels(pool).observe(seconds)
        metrics.solves.labels(pool, assignment.method.value).inc()
        now_s = self.clock.now().timestamp()
        metrics.show_decided(pool, now_s=now_s, signals_usable=not observed.signals.problem)
