"""Run a policy over a scenario, interval by interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.shared_spares import SharedSpare, SparePlan
from tidegate.allocation.snapshot import PoolInput, ReplicaCounts
from tidegate.api.inference import Tier
from tidegate.planning.allocator.stream_demand import CATCH_UP_S
from tidegate.simulation.fleet import ReplicaSet, SimulatedFleet
from tidegate.simulation.outcome import IntervalOutcome, SimulationOutcome
from tidegate.simulation.scenario import Scenario, SimulatedModel

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What a policy knows when it decides, at the start of an interval.

    `pool` is without its lost nodes. `rates` are those of the interval before; `backlog` is what near-line streams have pending.
    """

    step: int
    now_s: float
    pool: PoolInput
    rates: Mapping[str, float]
    replicas: Mapping[str, ReplicaCounts]
    since_up_s: Mapping[str, float]
    since_down_s: Mapping[str, float]
    backlog: Mapping[str, float]

    @property
    def demand_rates(self) -> Mapping[str, float]:
        """Return the rates; a near-line stream's includes its backlog, as the allocator counts it."""
        return {key: rate + self.backlog.get(key, 0.0) / CATCH_UP_S for key, rate in self.rates.items()}


class Policy(Protocol):
    """A way to divide a pool."""

    name: str
    """In reports."""

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        """Return the target of each model; those that come first start first."""
        ...


@runtime_checkable
class SparePolicy(Policy, Protocol):
    """A policy that plans shared spares as well."""

    def plan_spares(
        self,
        spread: Mapping[str, Mapping[str, int]],
        missing: Mapping[str, int],
        nodes: Sequence[str],
        current: Sequence[SharedSpare],
    ) -> SparePlan:
        """Return the spares for the replicas that it chose; `spread` has their number by model and node.

        `missing` is how many of a model's do not serve yet.
        """
        ...


def run_policy(
    scenario: Scenario, policy: Policy, report_step: Callable[[int], None] = lambda _: None
) -> SimulationOutcome:
    """Run `policy` over all intervals; `report_step` is called with the number of intervals that are done.

    It is called after each interval and before the loss of each node, and ends the run by raising.
    """
    run = _PolicyRun(scenario, policy, report_step)
    for step in range(scenario.interval_count):
        run.run_interval(step)
        report_step(step + 1)
    return run.finish_run()


def make_instant(scenario: Scenario) -> Scenario:
    """Return the scenario with replicas that load and drain in no time."""
    return replace(
        scenario,
        models=tuple(replace(model, load_s=0.0, drain_s=0.0) for model in scenario.models),
        dwell_s=0.0,
    )


class _PolicyRun:
    """State of one run."""

    def __init__(self, scenario: Scenario, policy: Policy, report_step: Callable[[int], None]) -> None:
        self._scenario = scenario
        self._policy = policy
        self._report_step = report_step
        self._fleet = SimulatedFleet(scenario, {})
        rules = scenario.spare_rules
        self._spare_slices = scenario.pool.spares if rules is None else min(rules.slices, scenario.pool.nodes)
        self._backlog = {model.key: 0.0 for model in scenario.models if model.tier is Tier.NEARLINE}
        self._outcome = SimulationOutcome(policy.name)

    def run_interval(self, step: int) -> None:
        scenario, fleet = self._scenario, self._fleet
        start_s = step * scenario.interval_s
        fleet.advance_to(start_s)
        lost_now = {outage.node for outage in scenario.outages if outage.start_s < start_s < outage.end_s}
        for outage in scenario.outages:
            ended = start_s - scenario.interval_s < outage.end_s <= start_s
            if ended and outage.node not in lost_now:
                fleet.restore_node(outage.node)
        targets = self._policy.choose_replicas(self._make_view(step, start_s))
        if step == 0:
            # The day begins with what the policy wants, loaded.
            self._start_loaded(targets)
            fleet = self._fleet
        decided = targets
        losses = [
            outage for outage in scenario.outages if start_s <= outage.start_s < start_s + scenario.interval_s
        ]
        interval = IntervalOutcome(start_s, dict.fromkeys(Tier, 0.0))
        end_s = start_s + scenario.interval_s
        now_s: float | None = start_s
        while now_s is not None:
            fleet.advance_to(now_s)
            interval.moved_slices += fleet.apply_targets(targets, now_s)
            while losses and losses[0].start_s <= now_s:
                self._report_step(step)
                lost = fleet.lose_node(losses.pop(0).node)
                # Controllers notice the loss at the next decision; until then nothing replaces these replicas.
                targets = {key: max(target - lost.get(key, 0), 0) for key, target in targets.items()}
            # What did not fit starts as soon as replicas that drain are gone.
            changes = [end_s, fleet.find_next_end(targets, end_s), losses[0].start_s if losses else end_s]
            if scenario.spare_rules is not None:
                if now_s == start_s:
                    self._plan_spares(decided, now_s, loaded=step == 0)
                changes.append(fleet.find_next_change(now_s))
            until_s = min(change_s for change_s in changes if change_s is not None)
            spare_rates = self._serve_on_spares(decided, step, now_s, until_s, interval)
            for model in scenario.models:
                self._serve_model(model, step, now_s, until_s, interval, spare_rates.get(model.key, 0.0))
            now_s = until_s if until_s < end_s else None
        self._outcome.intervals.append(interval)
        self._outcome.missed_minutes += interval.missed_minutes
        self._outcome.moved_slices += interval.moved_slices

    def finish_run(self) -> SimulationOutcome:
        self._outcome.backlog = sum(self._backlog.values())
        return self._outcome

    def _make_view(self, step: int, now_s: float) -> PolicyView:
        sets = self._fleet.sets
        return PolicyView(
            step,
            now_s,
            replace(self._fleet.remaining_pool, spares=self._spare_slices),
            {key: self._rate_before(key, step) for key in sets},
            {key: replicas.phase_counts for key, replicas in sets.items()},
            {key: now_s - replicas.raised_s for key, replicas in sets.items()},
            {key: now_s - replicas.lowered_s for key, replicas in sets.items()},
            dict(self._backlog),
        )

    def _rate_before(self, key: str, step: int) -> float:
        if step:
            return self._scenario.demand[key][step - 1]
        history = self._scenario.history.get(key)
        return history[-1] if history else self._scenario.demand[key][0]

    def _start_loaded(self, targets: Mapping[str, int]) -> None:
        free = self._scenario.pool.slices
        initial: dict[str, int] = {}
        for key, target in targets.items():
            slices = self._scenario.by_key[key].slices
            initial[key] = min(target, free // slices)
            free -= initial[key] * slices
        self._fleet = SimulatedFleet(self._scenario, initial)

    def _plan_spares(self, decided: Mapping[str, int], now_s: float, *, loaded: bool) -> None:
        """Plan the spares for the replicas as they are spread now."""
        fleet, policy = self._fleet, self._policy
        if not isinstance(policy, SparePolicy):
            raise InvalidInputError(
                f"policy {policy.name}", "plans no shared spares; use one of the allocator's"
            )
        realtime = self._scenario.select_tier(Tier.REALTIME)
        spread: dict[str, Mapping[str, int]] = {}
        for model in realtime:
            placed = fleet.spread_replicas(model.key)
            unplaced = max(decided[model.key] - sum(placed.values()), 0)
            # Those that have no slices yet count as on a node of their own.
            spread[model.key] = {**placed, f"?{model.key}": unplaced} if unplaced else placed
        missing = {model.key: max(decided[model.key] - fleet.sets[model.key].ready, 0) for model in realtime}
        plan = policy.plan_spares(spread, missing, fleet.remaining_nodes, fleet.spares.list_spares(now_s))
        self._spare_slices = plan.slice_count
        fleet.spares.follow_plan(plan, now_s, fleet.free_slices, loaded=loaded)

    def _serve_on_spares(
        self, decided: Mapping[str, int], step: int, start_s: float, end_s: float, interval: IntervalOutcome
    ) -> Mapping[str, float]:
        """Return the requests per second that spares serve of each model.

        They get the share of the decided replicas that do not serve, each that of one, as from Envoy; with
        `spares_take_overflow`, of the replicas that the demand needs, if these are more.
        """
        scenario, spares = self._scenario, self._fleet.spares
        slice_s = spares.slice_count * (end_s - start_s)
        interval.slices[Tier.REALTIME] += slice_s / scenario.interval_s
        self._outcome.slice_s[Tier.REALTIME] += slice_s
        rates: dict[str, float] = {}
        for model in scenario.select_tier(Tier.REALTIME) if spares.slice_count else ():
            ready, target = self._fleet.sets[model.key].ready, decided[model.key]
            demand = scenario.demand[model.key][step]
            work = model.capacity_curve.useful_work_of(demand) if scenario.spares_take_overflow else 0.0
            needed = max(target, work)
            if missing := min(max(needed - ready, 0), spares.count_serving(model.key, start_s)):
                rates[model.key] = demand * missing / (ready + missing)
        return spares.serve_rates(rates, start_s)

    def _serve_model(
        self,
        model: SimulatedModel,
        step: int,
        start_s: float,
        end_s: float,
        interval: IntervalOutcome,
        spare_rate: float,
    ) -> None:
        scenario, replicas = self._scenario, self._fleet.sets[model.key]
        demand = scenario.demand[model.key][step]
        served = missed_s = 0.0
        for seconds, ready in replicas.iter_phases(start_s, end_s):
            capacity = (model.capacity_curve.rate_at(ready) + spare_rate) * seconds
            offered = demand * seconds + self._backlog.get(model.key, 0.0)
            answered = min(offered, capacity)
            served += answered
            if model.key in self._backlog:
                self._backlog[model.key] = offered - answered
            elif model.tier.traits.has_slo and answered < offered * (1 - _TOLERANCE):
                missed_s += seconds
                self._outcome.unserved += offered - answered
        interval.missed_minutes += missed_s / 60
        slice_s = replicas.occupied_slices * (end_s - start_s)
        interval.slices[model.tier] += slice_s / scenario.interval_s
        interval.value += model.value * served
        self._outcome.value[model.tier] += model.value * served
        self._outcome.slice_s[model.tier] += slice_s
        self._outcome.idle_slice_s += _count_idle_seconds(replicas, start_s, end_s)


def _count_idle_seconds(replicas: ReplicaSet, start_s: float, end_s: float) -> float:
    """Return the slice-seconds of a time in which replicas loaded or drained."""
    phases = [*replicas.loading, *replicas.draining]
    return sum((min(done_s, end_s) - start_s) * count for done_s, count in phases) * replicas.model.slices
