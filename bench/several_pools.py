"""What dividing Inferences among their pools by one solve earns, compared with one solve per pool alone (ADR 90).

    python bench/several_pools.py [--models 36] [--hours 12] [--seeds 3] [--room 0.9]

Two pools of equal size; a third of the real-time models may use the first one, a third the second, and the others both, in that
order, with a capacity there of 0.5 to 1.5 times that of the first. Their demand follows days that peak at different hours, with
noise. Offline work fills each pool. A day is simulated by the minute: a replica takes 45 to 120 s to load, and what a decision
starts in its first wave starts now; the next minute decides again.

Three ways to decide about one pool after the other: `per pool` with what the other one leaves of the demand as it is
(planning/allocator/other_pools.py), as beside a pool that only recommends; `divided` as the controllers do, with what one solve
over both pools leaves to it; and `joint` carries the one solve out, which two pools with decisions of their own cannot.
Prints one JSON document: the value of each over that of the joint solve where replicas load in no time, the share of real-time
requests that the ready replicas do not serve, and the median seconds of a decision; the means of the seeds, and each.

The solver serves as many real-time requests as it can before it looks at their value, so a way to decide may miss fewer requests
and serve less value.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random
from typing import Final

from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment, MoveAction
from tidegate.allocation.curves import CapacityCurve, linear_curve
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    ModelInput,
    NodeLossInput,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
)
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.planning.allocator.other_pools import (
    OtherPool,
    follow_division,
    narrow_bounds,
    reduce_demand,
)

MINUTE_S: Final = 60.0
PEAK_MINUTES: Final = 5
BEGIN_HOUR: Final = 8
POOLS: Final = ("first", "second")
_SELDOM: Final = NodeLossInput(expected_every_s=1e9)
"""The loss of a node is not what is compared."""


class Way(StrEnum):
    """A way to decide about two pools."""

    PER_POOL = "per_pool"
    DIVIDED = "divided"
    JOINT = "joint"


Place = tuple[str, str]
"""A model and a pool."""


@dataclass(frozen=True, slots=True)
class PooledModel:
    """A model, with the capacity of a replica in each of its pools, in order of preference."""

    key: str
    tier: Tier
    capacities: Mapping[str, float]
    value: float
    load_s: float
    demand: Sequence[float]
    """By minute."""


@dataclass
class PoolState:
    """The replicas of each model in each pool: those that are ready, and when the others will be."""

    slices: int
    ready: dict[Place, int] = field(default_factory=dict[Place, int])
    loading: dict[Place, list[float]] = field(default_factory=dict[Place, list[float]])
    up_s: dict[Place, float] = field(default_factory=dict[Place, float])
    down_s: dict[Place, float] = field(default_factory=dict[Place, float])

    def count_replicas(self, place: Place) -> ReplicaCounts:
        """Return the replicas of a model in a pool."""
        return ReplicaCounts(ready=self.ready.get(place, 0), loading=len(self.loading.get(place, ())))

    def count_free(self, pool: str) -> int:
        """Return the slices of a pool that no replica has."""
        places = {place for place in (*self.ready, *self.loading) if place[1] == pool}
        return self.slices - sum(self.count_replicas(place).current for place in places)

    def finish_loading(self, now_s: float) -> None:
        """Make the replicas ready that have loaded until now."""
        for place, times in self.loading.items():
            self.ready[place] = self.ready.get(place, 0) + sum(time_s <= now_s for time_s in times)
            self.loading[place] = [time_s for time_s in times if time_s > now_s]

    def apply_moves(self, assignment: Assignment, models: Mapping[str, PooledModel], now_s: float) -> None:
        """Carry out the first wave of a decision: stops take effect at once, and starts after the time to load."""
        for move in assignment.moves:
            place = move.inference, move.pool
            if move.wave or move.action not in (MoveAction.START, MoveAction.STOP):
                continue
            if move.action is MoveAction.START:
                ready_at = now_s + models[move.inference].load_s
                self.loading.setdefault(place, []).extend([ready_at] * move.replicas)
                self.up_s[place] = now_s
            else:
                waiting = self.loading.get(place, [])
                canceled = min(len(waiting), move.replicas)
                self.loading[place] = waiting[: len(waiting) - canceled]
                self.ready[place] = self.ready.get(place, 0) - (move.replicas - canceled)
                self.down_s[place] = now_s


def make_models(count: int, minutes: int, seed: int) -> tuple[tuple[PooledModel, ...], int]:
    """Return real-time models of three kinds and offline work, and the slices that their peaks need in each pool."""
    random, models, needed = Random(seed), list[PooledModel](), 0.0
    for number in range(count):
        names = ((POOLS[0],), (POOLS[1],), POOLS)[number % 3]
        capacity, peak_hour = random.uniform(40, 120), random.choice((10, 14, 20))
        mean, swing = random.uniform(100, 900), random.uniform(0.3, 0.7)
        demand = [
            mean
            * (1 + swing * math.cos((BEGIN_HOUR + minute / 60 - peak_hour) * math.pi / 12))
            * math.exp(random.gauss(0, 0.03))
            for minute in range(minutes)
        ]
        ratio = random.uniform(0.5, 1.5)
        capacities = {name: capacity * (1.0 if name == names[0] else ratio) for name in names}
        value, load_s = 3.0 * random.uniform(0.5, 2.0), random.uniform(45, 120)
        models.append(PooledModel(f"ads/model-{number:02}", Tier.REALTIME, capacities, value, load_s, demand))
        needed += math.ceil(max(demand) / capacity)
    for name in POOLS:
        offline = random.uniform(3, 12)
        models.append(
            PooledModel(f"ads/work-{name}", Tier.OFFLINE, {name: 1.0}, offline, 60.0, [1e4] * minutes)
        )
    return tuple(models), math.ceil(needed / len(POOLS))


class PooledDay:
    """One day under one way to decide."""

    def __init__(self, models: Sequence[PooledModel], slices: int, way: Way, *, loads: bool) -> None:
        self._models = {model.key: model if loads else replace(model, load_s=0.0) for model in models}
        self._state = PoolState(slices)
        self._prices: dict[str, float] = dict.fromkeys(POOLS, 0.0)
        self._way = way
        self._groups = (POOLS,) if way is Way.JOINT else tuple((name,) for name in POOLS)
        self._solver = Solver(time.monotonic)
        self.value = 0.0
        self.asked = self.missed = 0.0
        self.seconds: list[float] = []

    def run_minute(self, minute: int) -> None:
        """Decide, then count what the ready replicas serve."""
        now_s = minute * MINUTE_S
        self._state.finish_loading(now_s)
        for names in self._groups:
            started_s = time.monotonic()
            division = self._divide_models(minute) if self._way is Way.DIVIDED else {}
            snapshot = self._make_snapshot(names, minute, division)
            assignment = self._solver.solve(snapshot, SolveLimits(seconds=10.0))
            self.seconds.append(time.monotonic() - started_s)
            self._prices.update({name: min(assignment.get_price(name), 1e6) for name in names})
            self._state.apply_moves(assignment, self._models, now_s)
            self._state.finish_loading(now_s)
        for model in self._models.values():
            rate = sum(
                self._state.ready.get((model.key, name), 0) * capacity
                for name, capacity in model.capacities.items()
            )
            demand = model.demand[minute]
            self.value += model.value * min(rate, demand) * MINUTE_S
            if model.tier is Tier.REALTIME:
                self.asked += demand
                self.missed += max(demand - rate, 0.0)

    def _divide_models(self, minute: int) -> Mapping[str, Mapping[str, int]]:
        """Return the replicas by model and pool that one solve over both pools gives."""
        assignment = self._solver.solve(self._make_snapshot(POOLS, minute, {}), SolveLimits(seconds=10.0))
        division: dict[str, dict[str, int]] = {}
        for assigned in assignment.replicas:
            division.setdefault(assigned.inference, {})[assigned.pool] = assigned.replicas
        return division

    def _make_snapshot(
        self, names: Sequence[str], minute: int, division: Mapping[str, Mapping[str, int]]
    ) -> AllocationSnapshot:
        pools = tuple(
            PoolInput(name, self._state.slices, nodes=8, price=self._prices[name], node_loss=_SELDOM)
            for name in names
        )
        inputs = tuple(
            self._make_input(model, names, minute, division.get(model.key, {}))
            for model in self._models.values()
            if set(names) & model.capacities.keys()
        )
        return AllocationSnapshot(pools, inputs)

    def _make_input(
        self, model: PooledModel, names: Sequence[str], minute: int, divided: Mapping[str, int]
    ) -> ModelInput:
        load = DemandInput((max(model.demand[max(minute - PEAK_MINUTES + 1, 0) : minute + 1]),))
        bounds = ReplicaBounds(1 if model.tier is Tier.REALTIME else 0)
        places = [name for name in model.capacities if name in names]
        if len(names) == 1:
            name, others = names[0], follow_division(self._list_others(model, names[0]), divided)
            replicas = self._state.count_replicas((model.key, name)).current
            load = reduce_demand(load, replicas, model.capacities[name], others)
            bounds = narrow_bounds(bounds, replicas, others)
        placements = tuple(self._make_placement(model, name, minute * MINUTE_S) for name in places)
        return ModelInput(model.key, model.tier, placements, load, bounds, model.value)

    def _make_placement(self, model: PooledModel, name: str, now_s: float) -> PlacementInput:
        place = model.key, name
        return PlacementInput(
            name,
            CapacityCurve(((1, model.capacities[name]),)),
            replicas=self._state.count_replicas(place),
            load_s=model.load_s,
            since_up_s=now_s - self._state.up_s.get(place, -math.inf),
            since_down_s=now_s - self._state.down_s.get(place, -math.inf),
            rank=list(model.capacities).index(name),
        )

    def _list_others(self, model: PooledModel, pool: str) -> Sequence[OtherPool]:
        names = list(model.capacities)
        others: list[OtherPool] = []
        for name in names:
            if name != pool:
                counts, is_before = (
                    self._state.count_replicas((model.key, name)),
                    names.index(name) < names.index(pool),
                )
                room = self._state.count_free(name)
                others.append(
                    OtherPool(
                        counts.current,
                        counts.ready,
                        room,
                        linear_curve(model.capacities[name]),
                        is_before,
                        name,
                    )
                )
        return others


def run_day(
    models: Sequence[PooledModel], slices: int, way: Way, *, loads: bool = True
) -> Mapping[str, float]:
    """Return the value of a day, the share of real-time requests that was missed, and the median seconds of a decision."""
    day = PooledDay(models, slices, way, loads=loads)
    for minute in range(len(models[0].demand)):
        day.run_minute(minute)
    return {
        "value": day.value,
        "missed": day.missed / day.asked,
        "p50_s": statistics.median(day.seconds),
    }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=36)
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--room", type=float, default=0.9, help="slices over those that the peaks need")
    asked = parser.parse_args()
    rows: list[dict[str, float]] = []
    for seed in range(asked.seeds):
        models, needed = make_models(asked.models, round(asked.hours * 60), seed)
        slices = round(asked.room * needed)
        instant = run_day(models, slices, Way.JOINT, loads=False)
        row = {"slices": float(slices)}
        for way in Way:
            outcome = run_day(models, slices, way)
            row[f"{way}_value"] = round(outcome["value"] / instant["value"], 4)
            row[f"{way}_missed"] = round(outcome["missed"], 4)
            row[f"{way}_p50_s"] = round(outcome["p50_s"], 4)
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    means = {name: round(statistics.mean(row[name] for row in rows), 4) for name in rows[0]}
    print(json.dumps({"room": asked.room, "mean": means, "seeds": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
