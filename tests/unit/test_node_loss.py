"""The loss of a node has a price: its formula against every node lost in turn, and what decisions make of it."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, curves, solve_snapshot
from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.node_loss import count_with_spare_node, price_losses, sum_losses
from tidegate.allocation.snapshot import ModelInput, NodeLossInput, PoolInput
from tidegate.api.inference import Tier

DAY = 86400.0


def lose_each_node(curve: CapacityCurve, rate: float, replicas: int, nodes: int) -> float:
    """Place the replicas on nodes in turn, and lose one node after the other."""
    held = [0] * nodes
    for number in range(replicas):
        held[number % nodes] += 1
    served = min(rate, curve.rate_at(replicas))
    return sum(served - min(rate, curve.rate_at(replicas - lost)) for lost in held)


@given(curve=curves(), rate=st.floats(0.1, 500), replicas=st.integers(0, 60), nodes=st.integers(1, 12))
def test_loss_is_that_of_every_node_lost_in_turn(
    curve: CapacityCurve, rate: float, replicas: int, nodes: int
) -> None:
    assert sum_losses(curve, rate, replicas, nodes) == pytest.approx(
        lose_each_node(curve, rate, replicas, nodes)
    )


@given(curve=curves(), rate=st.floats(0.1, 2000), nodes=st.integers(2, 12))
def test_price_is_the_largest_convex_function_below_the_loss(
    curve: CapacityCurve, rate: float, nodes: int
) -> None:
    rate = min(rate, curve.rate_at(200))
    needed = curve.replicas_for(rate) or 0
    most = count_with_spare_node(needed, nodes)
    points = price_losses(curve, rate, needed, most, nodes, factor=1.0)
    assert (points[0][0], points[-1][0]) == (needed, most)
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
    assert slopes == sorted(slopes)
    assert all(slope <= 1e-9 for slope in slopes)
    for replicas, loss in points:
        assert loss == pytest.approx(lose_each_node(curve, rate, replicas, nodes))
    assert points[-1][1] == pytest.approx(0, abs=1e-9)


def decide(
    price: NodeLossInput | None, *, offline: float | None = 1.0, ready: int = 2, **model: object
) -> tuple[int, str]:
    """Return the replicas of a model of 200/s with 100/s each on 8 slices of 4 nodes, and why they change.

    `offline` is what a slice is worth per second in another tier that can use all of them.
    """
    objects: list[PoolInput | ModelInput] = [
        a_pool(nodes=4, node_loss=price),
        a_model("ctr", Tier.REALTIME, a_placement(ready=ready, load_s=90.0), rate=200.0, **model),
    ]
    if offline is not None:
        work = a_placement(ready=8 - ready, per_replica=1.0, drain_s=10.0)
        objects.append(a_model("embed", Tier.OFFLINE, work, rate=8.0, value=offline))
    assignment = solve_snapshot(a_snapshot(*objects))
    reasons = [move.reason for move in assignment.moves if move.inference == "ads/ctr"]
    return assignment.get_replicas("ads/ctr", "gpu-a"), next(iter(reasons), "")


def test_replica_is_held_only_where_it_is_worth_more_than_its_slice() -> None:
    # A node of two that have a replica takes 100/s with it for 50 + 10 + 90 s: 30,000 requests every expected time.
    worth_per_s = 30_000 / DAY
    assert decide(NodeLossInput(DAY, 50.0), offline=worth_per_s * 1.05)[0] == 2
    assert decide(NodeLossInput(DAY, 50.0), offline=worth_per_s * 0.95)[0] == 3
    assert decide(NodeLossInput(30 * DAY, 50.0), offline=worth_per_s * 0.95)[0] == 2
    assert decide(NodeLossInput(DAY, 50.0), offline=worth_per_s * 1.05, value=1.2)[0] == 3
    assert decide(NodeLossInput(30 * DAY, 50.0, 30.0), offline=worth_per_s * 0.95)[0] == 3
    assert decide(NodeLossInput(30 * DAY, 50.0, 30.0), offline=worth_per_s * 1.05)[0] == 2


def test_strict_inference_holds_it_at_any_price() -> None:
    dear = 1000.0
    assert decide(None, offline=dear)[0] == 3
    assert decide(NodeLossInput(DAY, 50.0), offline=dear, keeps_node_spare=True)[0] == 3
    assert decide(NodeLossInput(DAY, 50.0), offline=dear)[0] == 2


def test_free_slices_are_held_for_the_least_price() -> None:
    assert decide(NodeLossInput(720 * 3600.0, 80.0), offline=None)[0] == 3


def test_price_is_named_where_nothing_else_limits_the_replicas() -> None:
    pool = a_pool(nodes=4, node_loss=NodeLossInput(DAY, 50.0))
    model = a_model("ctr", Tier.REALTIME, a_placement(ready=2, load_s=90.0), rate=200.0)
    [binding] = solve_snapshot(a_snapshot(pool, model)).bindings
    assert binding.constraint == "the price of losing a node for ads/ctr: 3 replicas"


def test_spare_is_given_up_when_it_is_not_worth_its_slice() -> None:
    replicas, reason = decide(NodeLossInput(30 * DAY, 50.0), offline=5.0, ready=3)
    assert replicas == 2
    assert reason.endswith("worth 0.694 per slice-minute, given to offline ads/embed at 300")


def test_reason_names_the_risk_and_what_it_costs() -> None:
    _, reason = decide(NodeLossInput(30 * DAY, 50.0), offline=0.001, value=3.0)
    assert reason == (
        "realtime ads/ctr +1 in gpu-a: 1 replica more than 200/s needs: each of 4 nodes is lost every 30 days, and the 150 s until "
        "replacements serve would lose 15,000 requests worth 45,000; taken from offline ads/embed, worth 0.06 per slice-minute "
        "against 2.08"
    )


def test_reason_says_that_lost_requests_count_more() -> None:
    _, reason = decide(NodeLossInput(30 * DAY, 50.0, 100.0), offline=1.0, value=3.0)
    assert "would lose 15,000 requests worth 45,000, which count 100 times; taken from" in reason


def test_reason_of_more_demand_names_the_spare_as_well() -> None:
    _, reason = decide(NodeLossInput(2 * 3600.0, 50.0), offline=0.001, ready=1)
    assert reason.startswith(
        "realtime ads/ctr +2 in gpu-a: demand 200/s exceeds 100/s, and 1 replica more than 200/s needs: each of 4 nodes is lost "
        "every 2 h, and"
    )


@pytest.mark.parametrize(
    ("price", "path", "message"),
    [
        (NodeLossInput(0.0), "nodeLoss.expectedEvery", "0 is outside 1 to 1e+12"),
        (NodeLossInput(-3600.0), "nodeLoss.expectedEvery", "-3600 is outside"),
        (NodeLossInput(nan), "nodeLoss.expectedEvery", "nan is not a number"),
        (NodeLossInput(inf), "nodeLoss.expectedEvery", "inf is not a number"),
        (NodeLossInput(1e13), "nodeLoss.expectedEvery", "1e+13 is outside"),
        (NodeLossInput(DAY, -1.0), "nodeLoss.notice", "-1 is outside"),
        (NodeLossInput(DAY, nan), "nodeLoss.notice", "nan is not a number"),
        (NodeLossInput(DAY, 1.0, -1.0), "nodeLoss.lostFactor", "-1 is outside"),
        (NodeLossInput(DAY, 1.0, inf), "nodeLoss.lostFactor", "inf is not a number"),
    ],
)
def test_impossible_price_is_refused(price: NodeLossInput, path: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        a_pool(node_loss=price)
    assert raised.value.path == f"pool gpu-a: {path}"
    assert message in str(raised.value)
