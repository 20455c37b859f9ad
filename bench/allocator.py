"""P11: the time to decide for 1,000 models of 3 tiers on 20 classes of slices, how good that is, and how much it moves.

    python bench/allocator.py [--models 1000] [--pools 20] [--runs 5]
    python bench/allocator.py --models 10000 --pools 1 --runs 2

Two arms, in turn: every model on one class, as `placement.pool` has it, and a fifth of the models on two, which couples all classes.
Cold is the first decision of a new solver. It is then carried out, every model's demand drifts by up to 5 percent, and the warm
decision follows. Objective: the linear program's bound over what was reached, of both. Moves: slices that the warm decision
moves over the fewest that keep every rule and reach as much, by a linear program: a lower bound, near for models on one class,
and far for those on two, which move fractions of a replica there.
Prints one JSON document, with the time of a fixed piece of work beside each run, since the machine may be busy with other
things; exits 1 when the mean of a figure of the first arm misses its target.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.component import Component, split_components
from tidegate.allocation.curves import fit_curve
from tidegate.allocation.highs import SolveOutcome, WarmLinearProgram
from tidegate.allocation.program import UNBOUNDED, LinearProgram
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    ModelInput,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
    TierRule,
)
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier

TARGETS = {"cold_s": 0.5, "warm_s": 0.05, "bound_over_objective": 1.05, "moves_over_fewest": 1.2}
LARGE_TARGETS = {"warm_s": 1.0, "bound_over_objective": 1.05, "moves_over_fewest": 1.2}
"""For more than 1,000 models."""
VALUES = {Tier.REALTIME: 5.0, Tier.NEARLINE: 1.0, Tier.OFFLINE: 0.2}
ROOMY = SolveLimits(seconds=60.0)


def make_fleet(models: int, pools: int, coupled: float, seed: int) -> AllocationSnapshot:
    """Return models with 1 to 6 replicas in each of their pools, and pools with 15 percent more slices than that."""
    random = Random(seed)
    names = [f"class-{number:02}" for number in range(pools)]
    used = dict.fromkeys(names, 0)
    inputs: list[ModelInput] = []
    for number in range(models):
        tier = list(Tier)[number % 3]
        rate = random.uniform(50, 400)
        placements: list[PlacementInput] = []
        for pool in random.sample(names, 2 if len(names) > 1 and random.random() < coupled else 1):
            ready = random.randint(1, 6)
            used[pool] += ready
            local_rate = rate * random.uniform(0.7, 1.3)
            curve = fit_curve((count, local_rate * count**0.95) for count in (1, 2, 4, 8, 16))
            replicas = ReplicaCounts(ready=ready)
            placements.append(PlacementInput(pool, curve, replicas=replicas, load_s=random.uniform(20, 60)))
        inputs.append(
            ModelInput(
                f"ads/model-{number:04}",
                tier,
                tuple(placements),
                DemandInput((rate * random.uniform(0.5, 6),)),
                ReplicaBounds(1, 16),
                VALUES[tier] * random.uniform(0.5, 2),
            )
        )

    def make_pool(name: str) -> PoolInput:
        # A third of the replicas are offline.
        most = max(80, int(used[name] * 0.36))
        rules = (TierRule(Tier.REALTIME, 10), TierRule(Tier.OFFLINE, 0, most))
        return PoolInput(name, int(used[name] * 1.15), nodes=8, spares=2, tiers=rules)

    return AllocationSnapshot(tuple(map(make_pool, names)), tuple(inputs))


def apply_with_drift(snapshot: AllocationSnapshot, assignment: Assignment, seed: int) -> AllocationSnapshot:
    """Return the snapshot some time later: moves applied, demand drifted, prices as decided."""
    random = Random(seed)
    counts = {(entry.inference, entry.pool): entry.replicas for entry in assignment.replicas}
    prices = dict(assignment.prices)

    def with_drift(model: ModelInput) -> ModelInput:
        placements = tuple(
            replace(placement, replicas=ReplicaCounts(ready=counts[model.key, placement.pool]))
            for placement in model.placements
        )
        rates = tuple(rate * random.uniform(0.95, 1.05) for rate in (model.load.rates if model.load else ()))
        return replace(model, placements=placements, load=DemandInput(rates))

    return replace(
        snapshot,
        pools=tuple(replace(pool, price=prices[pool.name]) for pool in snapshot.pools),
        inferences=tuple(with_drift(model) for model in snapshot.inferences),
    )


def find_fewest_slices(part: Component, objective: float) -> float:
    """Return the fewest slices to move in a component that keep every rule and reach `objective`.

    Replicas may be fractions.
    """
    program = LinearProgram(part)
    problem = program.problem
    slices = np.zeros(len(problem.gain))
    for number, _, option in program.iter_options():
        for column, _ in program.iter_columns(number):
            slices[column] = option.slices
    objective_row = len(problem.row_low)
    columns = np.arange(len(problem.gain), dtype=np.int32)
    minimum = objective - program.constant - 1e-6 * max(1.0, abs(objective))
    solved = WarmLinearProgram().solve(
        replace(
            problem,
            gain=-slices,
            row_low=np.append(problem.row_low, minimum),
            row_high=np.append(problem.row_high, UNBOUNDED),
            rows=np.append(problem.rows, np.full(len(columns), objective_row, np.int32)),
            columns=np.append(problem.columns, columns),
            values=np.append(problem.values, problem.gain),
        ),
        60.0,
    )
    if solved.outcome is not SolveOutcome.OPTIMAL:
        raise RuntimeError(f"the fewest moves of {part.pools[0].name}: {solved.outcome}")
    return -solved.objective


def moves_over_fewest(snapshot: AllocationSnapshot, assignment: Assignment) -> float:
    """Return the slices moved over the fewest possible, of all components together."""
    counts = {(entry.inference, entry.pool): entry.replicas for entry in assignment.replicas}
    moved = fewest = 0.0
    for part in split_components(snapshot):
        target = tuple(
            tuple(counts[utility.model.key, option.pool] for option in utility.options)
            for utility in part.utilities
        )
        fewest += find_fewest_slices(part, part.score_counts(target).value)
        moved += sum(
            abs(count - option.current) * option.slices
            for utility, replicas in zip(part.utilities, target, strict=True)
            for option, count in zip(utility.options, replicas, strict=True)
        )
    return moved / fewest if fewest > 0 else 1.0


def time_call(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result of `work`, and its wall and processor seconds."""
    gc.collect()
    wall, processor = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - processor


def run_yardstick() -> None:
    """Add half a million numbers: some 20 ms on an idle core."""
    total = 0
    for number in range(500_000):
        total += number


def measure_run(models: int, pools: int, coupled: float, seed: int) -> dict[str, Any]:
    """Measure one cold and one warm decision."""
    solver = Solver(time.monotonic)
    first = make_fleet(models, pools, coupled, seed)
    assignment, cold_s, cold_cpu_s = time_call(lambda: solver.solve(first, ROOMY))
    second = apply_with_drift(first, assignment, seed)
    warm, warm_s, warm_cpu_s = time_call(lambda: solver.solve(second, ROOMY))
    _, yardstick_s, yardstick_cpu_s = time_call(run_yardstick)
    for result in (assignment, warm):
        if result.relaxed or result.postponed or result.bound is None:
            raise RuntimeError(
                f"an instance that is not fully feasible: {result.relaxed[:1]} {result.postponed[:1]}"
            )
    return {
        "cold_s": cold_s,
        "cold_cpu_s": cold_cpu_s,
        "warm_s": warm_s,
        "warm_cpu_s": warm_cpu_s,
        "yardstick_s": yardstick_s,
        "yardstick_cpu_s": yardstick_cpu_s,
        "bound_over_objective": max(result.bound / result.objective for result in (assignment, warm)),
        "moves_over_fewest": moves_over_fewest(second, warm),
        "moves": [len(assignment.moves), len(warm.moves)],
        "methods": [str(assignment.method), str(warm.method)],
    }


def summarise_runs(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return mean and spread of every figure."""
    return {
        name: {
            "mean": statistics.mean(result[name] for result in runs),
            "spread": statistics.stdev(result[name] for result in runs) if len(runs) > 1 else 0.0,
        }
        for name in runs[0]
        if isinstance(runs[0][name], float)
    }


def main() -> int:
    """Measure `--runs` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--pools", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    arms = {"one class each": 0.0, "a fifth on two": 0.2}
    measure_run(20, 2, 0.2, 0)
    # As the process does after its start: objects that stay are not collected again.
    gc.collect()
    gc.freeze()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(options.runs):
        for name, coupled in arms.items():
            runs[name].append(measure_run(options.models, options.pools, coupled, number + 1))
    means = {name: summarise_runs(results) for name, results in runs.items()}
    first = means["one class each"]
    targets = TARGETS if options.models <= 1000 else LARGE_TARGETS
    met = {name: first[name]["mean"] <= limit for name, limit in targets.items()}
    print(json.dumps({"met": met, "targets": targets, "summary": means, "runs": runs}, indent=2))
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
