"""In the simulator, shared spares serve the share of the replicas that are gone, at once and no more than they can."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tidegate.allocation.shared_spares import SharedSpare, SparePlan, SpareRules
from tidegate.allocation.snapshot import NodeLossInput, PoolInput, TierRule
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import make_policy
from tidegate.simulation.scenario import NodeOutage, Scenario, SimulatedModel
from tidegate.simulation.spare_slots import SpareSlots

CTR = SimulatedModel("ads/ctr", Tier.REALTIME, 100.0, floor=1, load_s=90.0, drain_s=10.0)
CVR = replace(CTR, key="ads/cvr")
RARE = NodeLossInput(1e9, 55.0)
MINUTES = 6


def run_day(
    rates: Mapping[str, Sequence[float]],
    spares: SpareRules | None,
    *outages: NodeOutage,
    overflow: bool = False,
    policy: str = "present",
    tiers: tuple[TierRule, ...] = (),
) -> SimulationOutcome:
    """Run six minutes of two models on twelve slices of four nodes; their first replicas are on the nodes 0 and 1."""
    pool = PoolInput("pool", 12, nodes=4, node_loss=RARE, tiers=tiers)
    scenario = Scenario(
        pool, (CTR, CVR), rates, outages=outages, spare_rules=spares, spares_take_overflow=overflow
    )
    run_in, chosen = make_policy(policy, scenario, Solver(time.monotonic).solve, 0.9)
    return run_policy(run_in, chosen)


STEADY = {CTR.key: [80.0] * MINUTES, CVR.key: [60.0] * MINUTES}
RISING = {CTR.key: [80.0] + [160.0] * (MINUTES - 1), CVR.key: [60.0] * MINUTES}
SPARES = SpareRules(4)


@pytest.mark.parametrize(("node", "rate"), [(0, 80.0), (1, 60.0)])
def test_one_spare_serves_for_the_node_of_either_model(node: int, rate: float) -> None:
    lost = NodeOutage(node, 65.0, 400.0)
    without = run_day(STEADY, None, lost)
    # Noticed at 120 s, and a replacement loads for 90 s.
    assert without.unserved == pytest.approx(rate * (55 + 90))
    shared = run_day(STEADY, SPARES, lost)
    assert (shared.unserved, shared.missed_minutes) == (0, 0)


def test_a_spare_takes_a_slice_all_the_time() -> None:
    slice_s = [run_day(STEADY, spares).slice_s[Tier.REALTIME] for spares in (None, SPARES)]
    assert slice_s == [2 * 60 * MINUTES, 3 * 60 * MINUTES]


def test_without_slices_or_places_for_models_nothing_is_served() -> None:
    lost = NodeOutage(1, 65.0, 400.0)
    unserved = run_day(STEADY, None, lost).unserved
    assert run_day(STEADY, SpareRules(0), lost).unserved == unserved
    # The spare is for ctr, which has more to lose.
    assert run_day(STEADY, SpareRules(1, max_models=1), lost).unserved == unserved
    assert run_day(STEADY, SpareRules(2, max_models=1), lost).unserved == 0


def test_a_spare_that_is_lost_with_its_node_costs_nothing_and_comes_back() -> None:
    outcome = run_day(STEADY, SPARES, NodeOutage(2, 65.0, 400.0))
    assert outcome.missed_minutes == 0
    # It is lost at 65 s; the next one begins to load at 120 s, ctr until 210 s and cvr until 300 s.
    again = run_day(STEADY, SPARES, NodeOutage(2, 65.0, 400.0), NodeOutage(0, 250.0, 400.0))
    assert again.missed_minutes == 0
    too_soon = run_day(STEADY, SPARES, NodeOutage(2, 65.0, 400.0), NodeOutage(0, 125.0, 400.0))
    assert too_soon.unserved == pytest.approx(80.0 * (210 - 125))


def test_a_spare_serves_while_a_decided_replica_loads_and_overflow_only_where_gateways_send_it() -> None:
    # 160/s from 60 s on; decided at 120 s, loaded at 210 s.
    assert run_day(RISING, None).unserved == pytest.approx(60 * 150)
    assert run_day(RISING, SPARES).unserved == pytest.approx(60 * 60)
    assert run_day(RISING, SPARES, overflow=True).unserved == 0


def test_a_spare_divides_its_capacity_and_loads_one_model_after_the_other() -> None:
    slots = SpareSlots({CTR.key: CTR, CVR.key: CVR})
    plan = SparePlan((SharedSpare(0, "2", 1, (CTR.key, CVR.key)),))
    slots.follow_plan(plan, 0.0, 0)
    assert slots.slice_count == 0
    slots.follow_plan(plan, 0.0, 1)
    assert slots.find_next_ready(0.0) == 90.0
    assert slots.serve_rates({CTR.key: 60.0, CVR.key: 60.0}, 89.0) == {}
    assert slots.serve_rates({CTR.key: 60.0, CVR.key: 60.0}, 100.0) == {CTR.key: 60.0}
    assert slots.find_next_ready(100.0) == 180.0
    assert [slots.count_serving(key, 100.0) for key in (CTR.key, CVR.key)] == [1, 0]
    assert slots.serve_rates({CTR.key: 60.0, CVR.key: 60.0}, 180.0) == {CTR.key: 50.0, CVR.key: 50.0}
    # A model that stays is not loaded again.
    slots.follow_plan(replace(plan, spares=(SharedSpare(0, "2", 1, (CVR.key,)),)), 200.0, 0)
    assert slots.serve_rates({CTR.key: 60.0, CVR.key: 60.0}, 200.0) == {CVR.key: 60.0}
    slots.lose_node("1")
    assert slots.slice_count == 1
    slots.lose_node("2")
    assert (slots.slice_count, slots.serve_rates({CVR.key: 60.0}, 200.0)) == (0, {})


def test_a_model_with_replicas_on_all_nodes_holds_its_own_reserve() -> None:
    rates = {CTR.key: [380.0] * MINUTES, CVR.key: [60.0] * MINUTES}
    for node in range(4):
        assert run_day(rates, SPARES, NodeOutage(node, 65.0, 400.0)).missed_minutes == 0


@pytest.mark.parametrize(
    ("rule", "spares"),
    [
        (TierRule(Tier.OFFLINE, 9, None), 1),
        (TierRule(Tier.OFFLINE, 10, None), 0),
        (TierRule(Tier.REALTIME, 0, 3), 1),
        (TierRule(Tier.REALTIME, 0, 2), 0),
    ],
)
def test_spares_have_what_demand_floors_and_the_ceiling_leave(rule: TierRule, spares: int) -> None:
    outcome = run_day(STEADY, SPARES, tiers=(rule,))
    assert [interval.slices[Tier.REALTIME] for interval in outcome.intervals] == [2.0 + spares] * MINUTES


def test_a_policy_without_a_plan_of_spares_runs_without() -> None:
    without, asked = (run_day(STEADY, spares, policy="static") for spares in (None, SPARES))
    assert asked.slice_s == without.slice_s
    assert run_day(STEADY, SPARES).slice_s != without.slice_s
