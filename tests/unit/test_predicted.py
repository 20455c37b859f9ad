"""What an assignment is expected to serve."""

from __future__ import annotations

import time
from typing import Any

import pytest

from builders.allocator import a_member, observed, signals
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import PredictedOutcome
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.snapshot_builder import PoolMember, build_allocation_view

CAPACITY = {"requestsPerSecond": "100"}


def of(*members: PoolMember, **rates: float) -> PredictedOutcome:
    snapshot = build_allocation_view(observed(*members, signals=signals(**rates))).snapshot
    return predict_outcome(snapshot, Solver(time.monotonic).solve(snapshot))


def ctr(**more: Any) -> PoolMember:
    return a_member("ctr", 1, capacity=CAPACITY, **more)


def test_demand_that_is_served_counts_by_its_value() -> None:
    assert of(ctr(), ctr=350.0) == PredictedOutcome(value=350.0, slo_misses=0.0)
    worth = ctr(value={"perRequest": "2"})
    assert of(worth, ctr=350.0) == PredictedOutcome(value=700.0, slo_misses=0.0)


def test_what_is_beyond_the_most_replicas_misses_the_slo() -> None:
    assert of(ctr(most=3), ctr=350.0) == PredictedOutcome(value=300.0, slo_misses=50.0)


def test_what_nobody_knows_the_demand_of_counts_as_nothing() -> None:
    assert of(ctr()) == PredictedOutcome()
    assert of(ctr(), a_member("cvr", 2), ctr=50.0).value == pytest.approx(50.0)
