"""Nodes are lost in the simulator with the replicas on them, and what that costs is counted exactly."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import NodeLossInput, PoolInput
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.simulation.engine import PolicyView, run_policy
from tidegate.simulation.fleet import ReplicaSet, SimulatedFleet
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import make_policy
from tidegate.simulation.scenario import NodeOutage, Scenario, SimulatedModel

CTR = SimulatedModel("ads/ctr", Tier.REALTIME, 100.0, floor=1, load_s=90.0, drain_s=10.0)
EMBED = SimulatedModel("ads/embed", Tier.OFFLINE, 1.0, value=5.0, ceiling=12, load_s=60.0, drain_s=10.0)
LOST_AT_S = 65.0
"""55 s before the third interval, at which the loss is noticed."""


def lose_one(
    price: NodeLossInput | None = None, outages: Sequence[NodeOutage] | None = None, *, strict: bool = False
) -> SimulationOutcome:
    """Run six minutes of 400/s on twelve slices of four nodes; offline work fills them. Node 0 is lost."""
    pool = PoolInput("pool", 12, nodes=4, node_loss=price)
    models = (replace(CTR, keeps_node_spare=strict), EMBED)
    demand = {CTR.key: [400.0] * 6, EMBED.key: [12.0] * 6}
    if outages is None:
        outages = [NodeOutage(0, LOST_AT_S, 240.0)]
    scenario = Scenario(pool, models, demand, outages=outages)
    run_in, policy = make_policy("present", scenario, Solver(time.monotonic).solve, 0.9)
    return run_policy(run_in, policy)


RARE = NodeLossInput(1e9, 55.0)


def test_replicas_of_a_node_are_lost_in_every_phase_and_evenly() -> None:
    replicas = ReplicaSet(CTR, 5)
    replicas.start_replicas(3, 0.0)
    replicas.stop_replicas(1, 0.0)
    # Nodes 0 to 3 hold replicas in turn: ready 0 1 2 3 0, loading 1 2, draining 3.
    assert replicas.lose_node(3, 4) == 1
    assert (replicas.ready, replicas.phase_counts.loading, replicas.phase_counts.draining) == (4, 2, 0)
    assert [ReplicaSet(CTR, 7, first_node=2).lose_node(node, 3) for node in range(3)] == [2, 2, 3]
    assert ReplicaSet(CTR, 1).lose_node(1, 4) == 0


def test_lost_node_takes_its_slices_until_it_is_back() -> None:
    pool = PoolInput("pool", 12, nodes=4)
    fleet = SimulatedFleet(Scenario(pool, (CTR, EMBED), {CTR.key: [1.0], EMBED.key: [1.0]}), {CTR.key: 4})
    assert fleet.lose_node(1) == {CTR.key: 1, EMBED.key: 0}
    assert (fleet.remaining_pool.slices, fleet.remaining_pool.nodes, fleet.free_slices) == (9, 3, 6)
    assert fleet.lose_node(1) == {}
    fleet.restore_node(1)
    fleet.restore_node(1)
    assert (fleet.remaining_pool.slices, fleet.remaining_pool.nodes, fleet.free_slices) == (12, 4, 9)


def test_demand_is_missed_until_a_replacement_has_loaded() -> None:
    # Lost at 65 s, noticed at 120 s; offline work drains 10 s, and a replacement loads 90 s. 100/s of 400/s are lost.
    outcome = lose_one(RARE)
    missed_s = 55 + 10 + 90
    assert outcome.missed_minutes == pytest.approx(missed_s / 60)
    assert outcome.unserved == pytest.approx(100 * missed_s)
    assert lose_one(RARE, []).missed_minutes == 0


def test_strict_reserve_misses_nothing_and_costs_offline_work() -> None:
    strict, none = lose_one(), lose_one(RARE)
    assert strict.missed_minutes == 0
    assert strict.value[Tier.OFFLINE] < none.value[Tier.OFFLINE]
    assert lose_one(RARE, strict=True) == strict


def test_price_decides_between_them() -> None:
    often = NodeLossInput(1800.0, 55.0)
    assert lose_one(often) == lose_one()
    assert lose_one(NodeLossInput(1e6, 55.0)) == lose_one(RARE)


def test_lost_nodes_leave_replicas_on_the_others() -> None:
    all_nodes = [NodeOutage(node, LOST_AT_S, 600.0) for node in range(4)]
    assert lose_one(RARE, all_nodes).unserved == pytest.approx(400 * (360 - LOST_AT_S))


def test_thousands_of_lost_nodes_take_seconds_and_can_be_stopped_between_two() -> None:
    pool = PoolInput("pool", 5_000, nodes=5_000)
    demand = {CTR.key: [4e5], EMBED.key: [12.0]}
    outages = [NodeOutage(node, LOST_AT_S - 60, 600.0) for node in range(5_000)]
    scenario = Scenario(pool, (CTR, EMBED), demand, outages=outages)
    began_s = time.process_time()
    outcome = run_policy(scenario, FixedTargets())
    assert time.process_time() - began_s < 10
    assert outcome.unserved == pytest.approx(4e5 * 55)

    def stop_third(step: int) -> None:
        reported.append(step)
        if len(reported) == 3:
            raise TimeoutError

    reported: list[int] = []
    with pytest.raises(TimeoutError):
        run_policy(scenario, FixedTargets(), stop_third)
    assert reported == [0, 0, 0]


class FixedTargets:
    """Enough replicas for all demand."""

    name = "fixed"

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        return {CTR.key: 4_000, EMBED.key: 12}


@pytest.mark.parametrize(
    ("node", "start_s", "end_s", "message"),
    [
        (4, 0.0, 60.0, "outage of node 4: the pool has 4 nodes, the first is 0"),
        (-1, 0.0, 60.0, "outage of node -1: -1 is below 0"),
        (0, -1.0, 60.0, "outage of node 0: start: -1 is outside 0"),
        (0, float("nan"), 60.0, "outage of node 0: start: nan is not a number"),
        (0, 60.0, 59.0, "outage of node 0: end: 59 is not after its start 60"),
        (0, 120.0, 120.0, "outage of node 0: end: 120 is not after its start 120"),
    ],
)
def test_impossible_outage_is_refused(node: int, start_s: float, end_s: float, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        lose_one(RARE, [NodeOutage(node, start_s, end_s)])


@pytest.mark.parametrize(
    ("outages", "message"),
    [
        (
            ((0, 60.0, 240.0), (0, 120.0, 300.0)),
            "outage of node 0: starts at 120, while the node is lost until 240",
        ),
        (((0, 120.0, 240.0), (1, 60.0, 300.0)), "outage of node 1: starts at 60, before the one before it"),
    ],
)
def test_outages_that_overlap_or_are_not_in_order_are_refused(
    outages: Sequence[tuple[int, float, float]], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        lose_one(RARE, [NodeOutage(*outage) for outage in outages])


def test_a_node_that_is_lost_again_stays_lost_until_the_second_end() -> None:
    again = [NodeOutage(0, 65.0, 90.0), NodeOutage(0, 100.0, 250.0)]
    once = [NodeOutage(0, 65.0, 250.0)]
    assert lose_one(RARE, again).value == pytest.approx(lose_one(RARE, once).value)
    ended = [NodeOutage(0, 65.0, 90.0)]
    assert lose_one(RARE, again).value != pytest.approx(lose_one(RARE, ended).value)


class FallingTargets:
    """Nine replicas at first, then one."""

    name = "falling"

    def choose_replicas(self, view: PolicyView) -> Mapping[str, int]:
        assert all(counts.ready >= 0 for counts in view.replicas.values())
        return {CTR.key: 9 if view.step == 0 else 1, EMBED.key: 0}


def test_a_node_that_is_lost_when_the_targets_fall_leaves_no_negative_replicas() -> None:
    pool = PoolInput("pool", 12, nodes=2)
    demand = {CTR.key: [100.0] * 4, EMBED.key: [0.0] * 4}
    # The one that stays is on node 0 or on node 1.
    lost_rates = [
        run_policy(
            Scenario(pool, (CTR, EMBED), demand, outages=[NodeOutage(node, 60.0, 240.0)]), FallingTargets()
        ).unserved
        for node in (0, 1)
    ]
    assert lost_rates == pytest.approx([100.0 * (60 + 90), 0.0])
