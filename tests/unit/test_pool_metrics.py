"""Metrics of pools: what Prometheus hears of their slices and of what is asked, from whom, and what it does not hear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from builders.allocator import NOW, a_decision
from builders.compute_pool import compute_pool_body
from tidegate.allocation.snapshot import DemandInput
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.solver_inputs import SolverInput, SolverInputs
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocator.value_mix import ValueRates

POOL = ObjectKey("", "cpu-a")
STATUS = {
    "observedGeneration": 1,
    "slices": {"total": 10, "healthy": 8, "free": 3},
    "tiers": [{"name": "realtime", "slices": 5}],
    "lastDecision": "cpu-a-1",
}


class World:
    """What the controllers know of pool cpu-a."""

    def __init__(self, status: Mapping[str, Any] | None = None, *, leading: bool = True) -> None:
        self.pools, self.decisions = (ObjectStore(kinds.COMPUTE_POOL), ObjectStore(kinds.ALLOCATION_DECISION))
        self.pools.observe("ADDED", {**compute_pool_body(), "status": STATUS if status is None else status})
        decision = a_decision(("ctr", 1, 3), price=2.5)
        self.decisions.observe("ADDED", {"apiVersion": "tidegate.io/v1alpha1", **decision.dump()})
        self.questions = SolverInputs()
        self.registry = CollectorRegistry()
        metrics = PoolMetrics(self.pools, self.decisions, self.questions, lambda: leading)
        self.registry.register(metrics)

    def asked(self, rate: float = 250.0, *, measured: bool = True) -> None:
        """The allocator decides about one real-time Inference that is short, an offline one and one of unknown demand."""
        models = [
            a_model("ctr", Tier.REALTIME, a_placement("cpu-a", ready=2, slices=2), load=DemandInput((rate,))),
            a_model("batch", Tier.OFFLINE, a_placement("cpu-a", per_replica=1.0), load=DemandInput((3.0,))),
            a_model("young", Tier.NEARLINE, a_placement("cpu-a"), rate=None),
        ]
        snapshot = a_snapshot(a_pool("cpu-a", slices=8), *models)
        values = {"ads/ctr": ValueRates(120.0, 100.0, 15.0, 5.0), "ads/cvr": ValueRates(30.0, 30.0, 0.0, 0.0)}
        self.questions.put(POOL, SolverInput(NOW, PolicyMode.AUTO, snapshot, values if measured else {}))

    def value(self, gauge: str, tier: str = "") -> float | None:
        labels = {"pool": "cpu-a", **({"tier": tier} if tier else {})}
        return self.registry.get_sample_value(f"tidegate_pool_{gauge}", labels)

    def samples(self) -> list[str]:
        return [sample.name for family in self.registry.collect() for sample in family.samples]


def test_the_price_is_that_of_the_newest_decision() -> None:
    assert World().value("slice_price") == 2.5


def test_demand_is_in_slices_and_in_requests_and_what_is_not_known_is_counted() -> None:
    world = World()
    world.asked()

    assert world.value("needed_slices", "realtime") == 6  # three replicas of two slices
    assert world.value("needed_slices", "offline") == 3
    assert world.value("allocatable_slices") == 8
    assert (
        world.value("demand_requests_per_second", "realtime"),
        world.value("servable_requests_per_second", "realtime"),
    ) == (
        250,
        200,
    )
    assert world.value("demand_requests_per_second", "offline") is None
    assert world.value("demand_unknown", "nearline") == 1


def test_the_value_is_that_of_all_inferences_by_outcome_and_none_where_none_was_measured() -> None:
    world = World()
    world.asked()
    shown = {
        outcome: world.registry.get_sample_value(
            "tidegate_pool_value_per_second", {"pool": "cpu-a", "outcome": outcome}
        )
        for outcome in ("offered", "served", "refused", "lost")
    }
    assert shown == {"offered": None, "served": 130.0, "refused": 15.0, "lost": 5.0}
    world.asked(measured=False)
    assert "tidegate_pool_value_per_second" not in world.samples()


def test_it_is_that_of_the_last_question() -> None:
    world = World()
    world.asked(250.0)
    world.asked(100.0)
    assert world.value("demand_requests_per_second", "realtime") == 100
    world.asked(50.0)
    assert world.value("demand_requests_per_second", "realtime") == 50


def test_a_pool_about_which_nothing_is_decided_has_a_price_and_no_demand() -> None:
    world = World()
    world.asked()
    assert world.value("needed_slices", "realtime") is not None
    world.questions.forget(POOL)

    assert world.value("needed_slices", "realtime") is None
    assert world.value("allocatable_slices") is None
    assert world.value("slice_price") == 2.5


@pytest.mark.parametrize("status", [{}, {"observedGeneration": 0}])
def test_a_pool_that_nobody_has_looked_at_has_no_price_rather_than_none(status: dict[str, Any]) -> None:
    assert World(status).samples() == []


def test_a_follower_says_nothing() -> None:
    world = World(leading=False)
    world.asked()
    assert world.samples() == []
