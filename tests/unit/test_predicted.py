"""What an assignment is expected to serve."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from builders.allocator import a_member, observed, signals
from tidegate.allocation.snapshot import ValueClass
from tidegate.allocation.solver import Solver
from tidegate.api.allocation_decision import PredictedOutcome
from tidegate.api.inference import Tier
from tidegate.planning.allocator.observed_pool import PoolMember
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.value_mix import ValueMix

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
    assert of(ctr(most=3), ctr=350.0) == PredictedOutcome(value=300.0, slo_misses=50.0, lost=50.0)


def test_where_low_values_are_refused_first_the_lowest_are_lost() -> None:
    member = ctr(most=3)
    classes = (ValueClass(5.0, 0.2), ValueClass(1.0, 0.8))
    mixes = {member.key: ValueMix(1.8, classes)}
    seen = observed(member, signals=signals(ctr=400.0))
    snapshot = build_allocation_view(replace(seen, mixes=mixes)).snapshot
    predicted = predict_outcome(snapshot, Solver(time.monotonic).solve(snapshot))
    # 80 requests of 5 and 220 of 1 are served, 100 of 1 are not.
    assert predicted == PredictedOutcome(value=620.0, slo_misses=100.0, lost=100.0)
    # At the mean value, they would be worth 180.
    mean = build_allocation_view(replace(seen, mixes={member.key: ValueMix(1.8)})).snapshot
    assert predict_outcome(mean, Solver(time.monotonic).solve(mean)).lost == pytest.approx(180.0)


def test_work_without_an_slo_waits_and_is_not_lost() -> None:
    stream = a_member("log", 1, tier=Tier.NEARLINE, capacity=CAPACITY, most=3)
    waits = of(stream, log=350.0)
    assert (waits.slo_misses, waits.lost) == (0.0, 0.0)


def test_what_nobody_knows_the_demand_of_counts_as_nothing() -> None:
    assert of(ctr()) == PredictedOutcome()
    assert of(ctr(), a_member("cvr", 2), ctr=50.0).value == pytest.approx(50.0)
