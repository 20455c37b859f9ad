"""A pool that cannot keep all SLOs: a move has to be worth its cost, and a slice costs what it would earn."""

from __future__ import annotations

import math
import time
from random import Random

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, solve_snapshot
from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot, PoolInput, TierRule
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.simulation.allocator_policy import AllocatorPolicy
from tidegate.simulation.engine import run_policy
from tidegate.simulation.scenario import Scenario, SimulatedModel


def solve_pair(rate: float, slices: int = 5) -> Assignment:
    """Solve for ads/ctr, which lacks half a replica of three, and ads/cvr with two of the replicas that `rate` takes."""
    return solve_snapshot(
        a_snapshot(
            a_pool(slices=slices, price=50.0),
            a_model("ctr", Tier.REALTIME, a_placement(ready=3), rate=250.0),
            a_model("cvr", Tier.REALTIME, a_placement(ready=2), rate=rate),
        )
    )


def count_replicas(assignment: Assignment) -> dict[str, int]:
    return {assigned.inference: assigned.replicas for assigned in assignment.replicas}


@pytest.mark.parametrize(
    ("rate", "ctr", "cvr"),
    [
        pytest.param(252.0, 3, 2, id="2/s more are not worth a move"),
        pytest.param(290.0, 2, 3, id="40/s more are"),
    ],
)
def test_replicas_move_between_models_that_miss_their_slo_if_that_is_worth_it(
    rate: float, ctr: int, cvr: int
) -> None:
    assert count_replicas(solve_pair(rate)) == {"ads/ctr": ctr, "ads/cvr": cvr}


@pytest.mark.parametrize("price", [50.0, 1e6])
def test_the_least_miss_is_worth_a_slice_that_is_free_whatever_slices_cost_before(price: float) -> None:
    short = a_model("short", Tier.REALTIME, a_placement(ready=5, slices=2), rate=900.0)
    model = a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=200.1)
    assignment = solve_snapshot(a_snapshot(a_pool(slices=13, price=price), short, model))
    assert count_replicas(assignment) == {"ads/ctr": 3, "ads/short": 5}


def test_a_price_of_before_stops_no_move_that_is_worth_a_replica() -> None:
    """The dearest model of the last decision is gone; its price would freeze the others."""
    low = a_model("low", Tier.REALTIME, a_placement(ready=3), rate=210.0)
    high = a_model("high", Tier.REALTIME, a_placement(ready=1), rate=900.0)
    assignment = solve_snapshot(a_snapshot(a_pool(slices=4, price=1e6), low, high))
    assert count_replicas(assignment) == {"ads/high": 2, "ads/low": 2}


def test_offline_work_above_its_floor_yields_to_the_least_miss() -> None:
    offline = a_model("embed", Tier.OFFLINE, a_placement(ready=2, per_replica=1.0), rate=2.0, value=60.0)
    model = a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=200.1)
    floor = (TierRule(Tier.OFFLINE, floor=1),)
    assignment = solve_snapshot(a_snapshot(a_pool(slices=4, price=50.0, tiers=floor), offline, model))
    assert count_replicas(assignment) == {"ads/ctr": 3, "ads/embed": 1}


@pytest.mark.parametrize("rate", [252.0, 290.0])
def test_a_slice_costs_what_it_would_earn(rate: float) -> None:
    [(_, price)] = solve_pair(rate).prices
    # 50 or 52 to 90 requests more per second, less the cost of the start.
    assert 40.0 <= price <= 90.0


def test_no_price_of_a_noisy_hour_is_above_what_the_best_slice_serves() -> None:
    random = Random(3)
    models = tuple(
        SimulatedModel(
            f"ads/m{number:02}", Tier.REALTIME, random.uniform(40, 120), value=random.uniform(1, 6)
        )
        for number in range(20)
    )
    rates = {model.key: random.uniform(90, 900) for model in models}
    demand = {
        key: tuple(rate * math.exp(random.gauss(0, 0.03)) for _ in range(60)) for key, rate in rates.items()
    }
    prices: list[float] = []
    solver = Solver(time.monotonic)

    def solve(snapshot: AllocationSnapshot, limits: SolveLimits) -> Assignment:
        assignment = solver.solve(snapshot, limits)
        prices.append(dict(assignment.prices)["pool"])
        return assignment

    scenario = Scenario(PoolInput("pool", 90), models, demand)
    outcome = run_policy(scenario, AllocatorPolicy("allocator", scenario, solve))

    assert outcome.missed_minutes > 60
    assert 0 < max(prices) <= max(model.value_density for model in models)
