"""The loss of a node has a price: its formula against every node lost in turn, and what decisions make of it."""

from __future__ import annotations

from itertools import count, pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, curves, solve_snapshot
from tidegate.allocation.curves import CapacityCurve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.node_loss import NodeSpread, make_spread, price_losses, sum_losses
from tidegate.allocation.snapshot import ModelInput, NodeLossInput, NodeReplicas, PoolInput
from tidegate.api.inference import Tier

DAY = 86400.0


def place_singly(replicas: int, nodes: int, placed: tuple[int, ...] = ()) -> list[int]:
    """Start replicas on the emptiest node, or stop them on the fullest, until so many are placed."""
    counts = [*placed, *[0] * (nodes - len(placed))]
    while sum(counts) > replicas:
        counts[counts.index(max(counts))] -= 1
    while sum(counts) < replicas:
        counts[counts.index(min(counts))] += 1
    return counts


def lose_each_node(
    curve: CapacityCurve, rate: float, replicas: int, nodes: int, placed: tuple[int, ...] = ()
) -> float:
    """Place the replicas on nodes, and lose one node after the other."""
    held = place_singly(replicas, nodes, placed)
    served = min(rate, curve.rate_at(replicas))
    return sum(served - min(rate, curve.rate_at(replicas - lost)) for lost in held)


placements = st.lists(st.integers(1, 9), max_size=12).map(lambda counts: tuple(sorted(counts, reverse=True)))


@given(
    curve=curves(),
    rate=st.floats(0.1, 500),
    replicas=st.integers(0, 60),
    nodes=st.integers(1, 12),
    placed=placements,
)
def test_loss_is_that_of_every_node_lost_in_turn(
    curve: CapacityCurve, rate: float, replicas: int, nodes: int, placed: tuple[int, ...]
) -> None:
    placed = placed[:nodes]
    assert sum_losses(curve, rate, replicas, NodeSpread(nodes, placed)) == pytest.approx(
        lose_each_node(curve, rate, replicas, nodes, placed)
    )


@given(needed=st.integers(1, 20), nodes=st.integers(2, 12), placed=placements, is_strict=st.booleans())
def test_fewest_replicas_that_survive_the_loss_of_the_fullest_node(
    needed: int, nodes: int, placed: tuple[int, ...], *, is_strict: bool
) -> None:
    spread = make_spread(nodes, placed, needed, is_strict=is_strict)
    limit = max(needed, 2) if is_strict else needed
    capped = tuple(min(replicas, limit) for replicas in placed[:nodes])
    covering = next(n for n in count(needed) if n - max(place_singly(n, nodes, capped)) >= needed)
    assert spread.count_covering(needed) == covering <= needed + limit
    assert covering >= NodeSpread(nodes).count_covering(needed)


@given(needed=st.integers(1, 12), nodes=st.integers(2, 6), placed=placements, is_strict=st.booleans())
def test_reserve_ends_where_an_even_spread_does(
    needed: int, nodes: int, placed: tuple[int, ...], *, is_strict: bool
) -> None:
    # The number of replicas is followed as the pods' constraint and the order of deletion do: it must not swing forever.
    current = list(placed[:nodes])
    seen: list[int] = []
    for _ in range(4):
        ready = sorted(current, reverse=True)
        target = make_spread(nodes, ready, needed, is_strict=is_strict).count_covering(needed)
        current = place_singly(target, nodes, tuple(current))
        seen.append(target)
    assert seen[2] == seen[3]
    # Pods do not move: a node that had more replicas than count may keep them.
    limit = max(needed, 2) if is_strict else needed
    assert target - min(max(current), limit) >= needed


@given(needed=st.integers(1, 12), nodes=st.integers(2, 6), placed=placements, is_strict=st.booleans())
def test_replicas_that_start_on_the_fullest_node_ask_for_no_others(
    needed: int, nodes: int, placed: tuple[int, ...], *, is_strict: bool
) -> None:
    current = list(placed[:nodes]) or [1]
    target = make_spread(nodes, current, needed, is_strict=is_strict).count_covering(needed)
    current[0] += max(target - sum(current), 0)
    spread = make_spread(nodes, current, needed, is_strict=is_strict)
    assert spread.count_covering(needed) <= (max(2 * needed, 3) if is_strict else 2 * needed)


@pytest.mark.parametrize("nodes", [2, 5])
def test_two_replicas_that_share_a_node_ask_for_a_third_under_strict_and_one_ends_once_it_stands_alone(
    nodes: int,
) -> None:
    def count_covering(*placed: int) -> int:
        return make_spread(nodes, placed, 1, is_strict=True).count_covering(1)

    assert (count_covering(2), count_covering(2, 1), count_covering(1, 1)) == (3, 2, 2)
    assert count_covering(3) == 3, "the third had to start beside them: no fourth follows"
    assert make_spread(nodes, [2], 1).count_covering(1) == 2, "a price asks for no third"
    assert make_spread(nodes, [2], 0, is_strict=True).count_covering(0) == 0


@given(curve=curves(), rate=st.floats(0.1, 2000), nodes=st.integers(2, 12), placed=placements)
def test_price_is_the_largest_convex_function_below_the_loss(
    curve: CapacityCurve, rate: float, nodes: int, placed: tuple[int, ...]
) -> None:
    rate = min(rate, curve.rate_at(200))
    needed = curve.replicas_for(rate) or 0
    spread = make_spread(nodes, placed, needed)
    most = spread.count_covering(needed)
    points = price_losses(curve, rate, needed, most, spread, factor=1.0)
    assert (points[0][0], points[-1][0]) == (needed, most)
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
    assert slopes == sorted(slopes)
    assert all(slope <= 1e-9 for slope in slopes)
    for replicas, loss in points:
        assert loss == pytest.approx(lose_each_node(curve, rate, replicas, nodes, spread.placed))
    assert points[-1][1] == pytest.approx(0, abs=1e-9)


def decide(
    price: NodeLossInput | None,
    *,
    offline: float | None = 1.0,
    ready: int = 2,
    placed: tuple[int, ...] = (),
    **model: object,
) -> tuple[int, str]:
    """Return the replicas of a model of 200/s with 100/s each on 8 slices of 4 nodes, and why they change.

    `offline` is what a slice is worth per second in another tier that can use all of them. `placed` are the replicas by node.
    """
    by_node = tuple(NodeReplicas(f"node-{number}", replicas) for number, replicas in enumerate(placed))
    placement = a_placement(ready=ready, load_s=90.0, ready_by_node=by_node)
    objects: list[PoolInput | ModelInput] = [
        a_pool(nodes=4, node_loss=price),
        a_model("ctr", Tier.REALTIME, placement, rate=200.0, **model),
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


def test_replicas_on_one_node_are_moved_by_a_reserve_that_ends_again() -> None:
    # Both are on one node: two start on others, then two stop on the fullest, and three would be enough.
    assert decide(None, ready=2, placed=(2,))[0] == 4
    assert decide(None, ready=4, placed=(2, 1, 1))[0] == 3
    assert decide(None, ready=3, placed=(1, 1, 1))[0] == 3
    assert decide(None, ready=2, placed=(1, 1))[0] == 3
    # The constraint prefers, and does not force: both started on the full node, and no others follow.
    assert decide(None, ready=4, placed=(4,))[0] == 4


def test_price_counts_where_replicas_are() -> None:
    # With both on one node, a loss takes 200/s once rather than 100/s twice; a replica elsewhere saves half of it.
    worth_per_s = 15_000 / DAY
    price = NodeLossInput(DAY, 50.0)
    assert decide(price, offline=worth_per_s * 0.95, placed=(2,))[0] == 4
    assert decide(price, offline=worth_per_s * 1.05, placed=(2,))[0] == 2
    assert decide(price, offline=worth_per_s * 1.05)[0] == 3


def test_reason_names_the_node_that_has_too_many() -> None:
    _, strict = decide(None, ready=2, placed=(2,))
    assert "+2 in gpu-a: with one of 4 nodes lost 2 replicas cannot serve 200/s; " in strict
    assert "; 2 of 2 replicas are on node node-0, and spread evenly 3 would be enough; taken from" in strict
    _, priced = decide(NodeLossInput(DAY, 50.0), offline=0.001, placed=(2,))
    assert (
        "would lose 30,000 requests worth 30,000; 2 of 2 replicas are on node node-0, and spread evenly 3 would be enough; taken from"
        in priced
    )
    assert "on node" not in decide(None, ready=2, placed=(1, 1))[1]


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


@pytest.mark.parametrize(
    ("by_node", "message"),
    [
        ((NodeReplicas("a", 0),), "readyByNode.a: 0 is below 1"),
        ((NodeReplicas("a", -1),), "readyByNode.a: -1 is below 1"),
        (
            (NodeReplicas("a", 1), NodeReplicas("b", 2)),
            "readyByNode: is not sorted; put the fullest node first",
        ),
        ((NodeReplicas("a", 1), NodeReplicas("a", 1)), "readyByNode: names a node twice"),
    ],
)
def test_impossible_placement_is_refused(by_node: tuple[NodeReplicas, ...], message: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        a_model("ctr", Tier.REALTIME, a_placement(ready_by_node=by_node))
    assert message in str(raised.value)
