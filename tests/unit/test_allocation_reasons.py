"""Why a replica moves: one sentence with the object, the number and what it is weighed against."""

from __future__ import annotations

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from tidegate.allocation.assembly import solve_greedily
from tidegate.allocation.assignment import Assignment, BindingConstraint
from tidegate.allocation.snapshot import (
    DemandInput,
    HorizonStep,
    ModelInput,
    PoolInput,
    ReplicaBounds,
    TierRule,
)
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier


def solved(
    *objects: PoolInput | ModelInput, steps: tuple[HorizonStep, ...] = (HorizonStep(600.0),)
) -> Assignment:
    return Solver(lambda: 0.0).solve(a_snapshot(*objects, steps=steps))


def why(assignment: Assignment, inference: str) -> str:
    [sentence] = {move.reason for move in assignment.moves if move.inference == inference}
    return sentence


RT, NEAR, OFF = Tier.REALTIME, Tier.NEARLINE, Tier.OFFLINE


def test_demand_is_named_and_who_gives() -> None:
    assignment = solved(
        a_model("ctr-v3", RT, a_placement(ready=5, per_replica=300.0), rate=1840.0),
        a_model("embed", OFF, a_placement(ready=3, per_replica=1.0), rate=3.0, value=0.01),
    )
    assert why(assignment, "ads/ctr-v3") == (
        "realtime ads/ctr-v3 +2 in gpu-a: demand 1,840/s exceeds 1,500/s;"
        " taken from offline ads/embed, worth 0.6 per slice-minute against 10,200"
    )
    assert why(assignment, "ads/embed") == (
        "offline ads/embed -2 in gpu-a: worth 0.6 per slice-minute, given to realtime ads/ctr-v3 at 10,200"
    )


def test_where_slices_are_left_it_is_named_what_stops_each_model() -> None:
    ctr = a_model("ctr", RT, a_placement(ready=1), rate=250.0)
    embed = a_model("embed", OFF, a_placement(ready=1, per_replica=1.0), rate=9.0, bounds=ReplicaBounds(0, 2))
    assert solved(ctr, embed).bindings == (
        BindingConstraint("demand of ads/ctr: 3 replicas", 0.0),
        BindingConstraint("its maximum of ads/embed: 2 replicas", 0.0),
    )
    # One that stays as it is stops nobody.
    assert solved(a_model("ctr", RT, a_placement(ready=3), rate=250.0)).bindings == ()


def test_a_later_step_is_named() -> None:
    steps = (HorizonStep(300.0), HorizonStep(300.0))
    model = a_model("ctr", RT, a_placement(ready=1), load=DemandInput((50.0, 150.0)))
    assert "demand 150/s in 5 min exceeds 100/s" in why(solved(model, steps=steps), "ads/ctr")


def test_an_expected_demand_is_named() -> None:
    load = DemandInput((150.0,), expectation="expected within 5m")
    model = a_model("ctr", RT, a_placement(ready=1), load=load)
    assert "demand 150/s expected within 5m exceeds 100/s" in why(solved(model), "ads/ctr")
    spare = a_model("ctr", RT, a_placement(ready=2), load=load)
    assert "with one of 4 nodes lost 2 replicas cannot serve 150/s expected within 5m" in why(
        solved(a_pool(nodes=4), spare), "ads/ctr"
    )


def test_a_floor_is_named() -> None:
    assignment = solved(a_model("ctr", RT, a_placement(ready=1), rate=0.0, bounds=ReplicaBounds(3)))
    assert "1 replica are below" not in why(assignment, "ads/ctr")
    assert "1 replica is below its minimum of 3; from free slices" in why(assignment, "ads/ctr")


def test_a_tiers_floor_is_named() -> None:
    pool = a_pool(tiers=(TierRule(OFF, 2),))
    assert "0 slices are below the floor of offline, 2" in why(
        solved(pool, a_model("x", OFF, rate=0.0)), "ads/x"
    )


def test_a_node_to_spare_is_named() -> None:
    model = a_model("ctr", RT, a_placement(ready=2), rate=200.0)
    assert "with one of 4 nodes lost 2 replicas cannot serve 200/s" in why(
        solved(a_pool(nodes=4), model), "ads/ctr"
    )


@pytest.mark.parametrize(
    ("pool", "model", "expected"),
    [
        (
            a_pool(slices=2),
            a_model("x", NEAR, a_placement(ready=4), rate=400.0),
            "gpu-a has 2 slices in good health, and 4 were held",
        ),
        (
            a_pool(),
            a_model("x", NEAR, a_placement(ready=4), rate=400.0, bounds=ReplicaBounds(0, 3)),
            "4 replicas are above its maximum of 3",
        ),
        (
            a_pool(tiers=(TierRule(NEAR, 0, 3),)),
            a_model("x", NEAR, a_placement(ready=4), rate=400.0),
            "4 slices are above the ceiling of nearline, 3",
        ),
        (
            a_pool(slices=4, spares=1),
            a_model("x", NEAR, a_placement(ready=4), rate=400.0),
            "1 slices stay free as warm spares",
        ),
    ],
    ids=["lost", "maximum", "ceiling", "spares"],
)
def test_what_takes_replicas_away_is_named(pool: PoolInput, model: ModelInput, expected: str) -> None:
    assert expected in why(solved(pool, model), "ads/x")


def test_moving_to_another_pool_is_named() -> None:
    model = a_model(
        "x",
        NEAR,
        a_placement("a", ready=1, per_replica=10.0),
        a_placement("b", per_replica=100.0),
        rate=100.0,
    )
    big = a_model("y", NEAR, a_placement("a", per_replica=100.0), rate=100.0, value=50.0)
    assignment = solved(a_pool("a", 1), a_pool("b", 1), model, big)
    assert "given to nearline ads/y" in next(
        m.reason for m in assignment.moves if (m.inference, m.pool) == ("ads/x", "a")
    )


def test_the_price_of_a_slice_is_what_one_more_would_earn() -> None:
    model = a_model("x", NEAR, a_placement(), rate=1000.0, value=2.0)
    few, more = solved(a_pool(slices=4), model), solved(a_pool(slices=5), model)
    assert dict(few.prices)["gpu-a"] == pytest.approx(more.objective - few.objective, rel=1e-4)


def test_where_nothing_lacks_a_slice_is_worth_nothing() -> None:
    assert dict(solved(a_model("x", NEAR, rate=100.0)).prices)["gpu-a"] == 0.0


def test_the_greedy_answer_has_prices_and_reasons_too() -> None:
    model = a_model("x", NEAR, a_placement(), rate=1000.0, value=2.0)
    assignment = solve_greedily(a_snapshot(a_pool(slices=4), model), "killed")
    assert dict(assignment.prices)["gpu-a"] == pytest.approx(199.8)
    assert "worth 12,000 per slice-minute" in why(assignment, "ads/x")
    assert (assignment.bound, assignment.gap, assignment.note) == (None, None, "killed")
