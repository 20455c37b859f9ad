"""What the allocator refuses, and what it does with inputs that are odd but true."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, solve_snapshot
from tidegate.allocation.curves import linear_curve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    DemandInput,
    HorizonStep,
    ModelInput,
    PlacementInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
    TierRule,
)
from tidegate.api.inference import Tier

WRONG = [
    (lambda: PoolInput("a", -1), "pool a: slices"),
    (lambda: PoolInput("a", 8, spares=-1), "pool a: spares"),
    (lambda: PoolInput("a", 8, budget=-1), "pool a: budget"),
    (lambda: PoolInput("a", 8, price=nan), "pool a: price"),
    (lambda: PoolInput("a", 8, price=1e308), "pool a: price"),
    (lambda: PoolInput("a", 8, tiers=(TierRule(Tier.OFFLINE, -1),)), "pool a: tiers.offline.floor"),
    (lambda: PoolInput("a", 8, tiers=(TierRule(Tier.OFFLINE, 3, 2),)), "pool a: tiers.offline.ceiling"),
    (lambda: PoolInput("a", 8, tiers=(TierRule(Tier.OFFLINE),) * 2), "pool a: tiers"),
    (lambda: a_model(value=nan), "inference ads/ctr: value"),
    (lambda: a_model(value=-1.0), "inference ads/ctr: value"),
    (lambda: a_model(value=0.0), "inference ads/ctr: value"),
    (lambda: a_model(value=1e308), "inference ads/ctr: value"),
    (lambda: a_model(rate=nan), "inference ads/ctr: load.rates[0]"),
    (lambda: a_model(rate=-1.0), "inference ads/ctr: load.rates[0]"),
    (lambda: a_model(rate=inf), "inference ads/ctr: load.rates[0]"),
    (lambda: a_model(rate=1e308), "inference ads/ctr: load.rates[0]"),
    (lambda: a_model(load=DemandInput((1.0,), (nan,))), "inference ads/ctr: load.urgency[0]"),
    (lambda: a_model(load=DemandInput((1.0,), (1.0, 1.0))), "inference ads/ctr: load.urgency"),
    (lambda: a_model(bounds=ReplicaBounds(-1)), "inference ads/ctr: bounds.floor"),
    (lambda: a_model(bounds=ReplicaBounds(3, 2)), "inference ads/ctr: bounds.ceiling"),
    (lambda: ModelInput("ads/ctr", Tier.REALTIME, (), None), "inference ads/ctr: placements"),
    (lambda: a_model("ctr", Tier.REALTIME, a_placement(), a_placement()), "inference ads/ctr: placements"),
    (
        lambda: a_model("ctr", Tier.REALTIME, a_placement(slices=0)),
        "inference ads/ctr: placement gpu-a: slices",
    ),
    (
        lambda: a_model("ctr", Tier.REALTIME, a_placement(load_s=nan)),
        "inference ads/ctr: placement gpu-a: load_s",
    ),
    (
        lambda: a_model("ctr", Tier.REALTIME, a_placement(since_up_s=-1.0)),
        "inference ads/ctr: placement gpu-a: since_up_s",
    ),
    (
        lambda: a_model("ctr", Tier.REALTIME, a_placement(ready=-1)),
        "inference ads/ctr: placement gpu-a: replicas.ready",
    ),
    (lambda: a_snapshot(a_model("ctr", Tier.REALTIME, a_placement("b"))), "inference ads/ctr: placement b"),
    (lambda: a_snapshot(a_pool(), a_pool()), "pools"),
    (lambda: a_snapshot(a_model(), a_model()), "inferences"),
    (lambda: a_snapshot(steps=()), "steps"),
    (lambda: a_snapshot(steps=(HorizonStep(0.0),)), "steps[0].seconds"),
    (lambda: a_snapshot(steps=(HorizonStep(1.0, nan),)), "steps[0].weight"),
    (lambda: a_snapshot(a_model(), steps=(HorizonStep(1.0), HorizonStep(1.0))), "inference ads/ctr: load"),
    (lambda: a_snapshot(dwell_s=nan), "dwell_s"),
]


@pytest.mark.parametrize(
    ("make", "path"), WRONG, ids=[f"{number}-{path}" for number, (_, path) in enumerate(WRONG)]
)
def test_the_error_names_the_field(make, path: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        make()
    assert raised.value.path == path


def test_nothing_at_all_is_an_answer() -> None:
    assignment = solve_snapshot(AllocationSnapshot((), ()))
    assert (assignment.replicas, assignment.moves, assignment.relaxed) == ((), (), ())


def test_a_pool_without_models_moves_nothing() -> None:
    assert solve_snapshot(a_snapshot(a_pool(slices=0), a_pool("b", 4))).moves == ()


def test_a_pool_without_slices_gives_none_and_says_whose_floor_that_breaks() -> None:
    assignment = solve_snapshot(a_snapshot(a_pool(slices=0), a_model(bounds=ReplicaBounds(2))))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 0
    assert [(each.rule, each.subject) for each in assignment.relaxed] == [
        ("realtime floor", "ads/ctr"),
        ("SLO", "ads/ctr"),
    ]


def test_floors_beyond_the_pool_give_way_in_order() -> None:
    """Offline first, then near-line; of two real-time models the less valuable one."""
    assignment = solve_snapshot(
        a_snapshot(
            a_pool(slices=5),
            a_model("dear", rate=0.0, bounds=ReplicaBounds(3), value=5.0),
            a_model("cheap", rate=0.0, bounds=ReplicaBounds(3), value=1.0),
            a_model("near", Tier.NEARLINE, bounds=ReplicaBounds(1)),
            a_model("off", Tier.OFFLINE, bounds=ReplicaBounds(1)),
        )
    )
    found = {each.inference: each.replicas for each in assignment.replicas}
    assert found == {"ads/dear": 3, "ads/cheap": 2, "ads/near": 0, "ads/off": 0}
    assert [(each.rule, each.subject) for each in assignment.relaxed] == [
        ("realtime floor", "ads/cheap"),
        ("nearline floor", "ads/near"),
        ("offline floor", "ads/off"),
    ]
    assert "2 of 3 replicas (its minimum): gpu-a has no room" in assignment.relaxed[0].message


def test_spares_give_way_to_floors_and_not_to_value() -> None:
    models = (a_model("ctr", rate=0.0, bounds=ReplicaBounds(2)), a_model("off", Tier.OFFLINE, rate=1e4))
    keeps = solve_snapshot(a_snapshot(a_pool(slices=4, spares=2), *models))
    assert keeps.get_replicas("ads/off", "gpu-a") == 0
    assert keeps.relaxed == ()
    gives = solve_snapshot(a_snapshot(a_pool(slices=3, spares=2), *models))
    assert gives.get_replicas("ads/ctr", "gpu-a") == 2
    assert [each.message for each in gives.relaxed] == ["1 of 2 slices stay free"]


def test_missing_signals_keep_what_is_held() -> None:
    """However much somebody else would gain."""
    silent = a_model("ctr", Tier.REALTIME, a_placement(ready=5), rate=None)
    hungry = a_model("off", Tier.OFFLINE, rate=1e6, value=1e6)
    assignment = solve_snapshot(a_snapshot(silent, hungry))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 5
    assert assignment.get_replicas("ads/off", "gpu-a") == 3


@pytest.mark.parametrize(
    "bounds", [ReplicaBounds(0, 3), ReplicaBounds(3, 3, "override pin-ctr", "override pin-ctr")]
)
def test_missing_signals_do_not_hold_off_a_maximum(bounds: ReplicaBounds) -> None:
    silent = a_model("ctr", Tier.REALTIME, a_placement(ready=5), rate=None, bounds=bounds)
    assignment = solve_snapshot(a_snapshot(silent))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 3
    assert assignment.relaxed == ()
    waits = solve_snapshot(a_snapshot(a_pool(budget=1), silent))
    assert waits.get_replicas("ads/ctr", "gpu-a") == 4
    assert [each.rule for each in waits.relaxed] == ["ceiling"]


def test_a_second_pool_of_one_node_does_not_switch_the_spare_node_off() -> None:
    """Two nodes in one pool: it serves 400/s with one of them lost as well."""
    model = a_model("ctr", Tier.REALTIME, a_placement("a"), a_placement("b"), rate=400.0)
    assignment = solve_snapshot(a_snapshot(a_pool("a", 8, nodes=2), a_pool("b", 2, nodes=1), model))
    in_a, in_b = (assignment.get_replicas("ads/ctr", pool) for pool in ("a", "b"))
    assert in_a / 2 + in_b >= 4
    assert assignment.relaxed == ()


def test_missing_signals_do_not_keep_what_a_lost_node_took() -> None:
    silent = a_model("ctr", Tier.REALTIME, a_placement(ready=5), rate=None)
    assignment = solve_snapshot(a_snapshot(a_pool(slices=4), silent))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 4
    assert "its signals are missing" in assignment.relaxed[0].message


def test_one_absurd_but_finite_demand_does_not_touch_other_pools() -> None:
    calm = a_model("calm", Tier.REALTIME, a_placement("b", ready=1), rate=150.0)
    normal = a_snapshot(a_pool(), a_pool("b", 8), a_model(rate=100.0), calm)
    absurd = a_snapshot(a_pool(), a_pool("b", 8), a_model(rate=1e12), calm)
    of_b = [[m for m in solve_snapshot(each).moves if m.pool == "b"] for each in (normal, absurd)]
    assert of_b[0] == of_b[1] != []


def test_demand_beyond_every_pool_is_said() -> None:
    assignment = solve_snapshot(a_snapshot(a_model(rate=1e12)))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 8
    assert [each.rule for each in assignment.relaxed] == ["SLO"]
    assert "add slices" in assignment.relaxed[0].message


def test_demand_beyond_its_maximum_is_said_with_the_way_out() -> None:
    assignment = solve_snapshot(a_snapshot(a_model(rate=1000.0, bounds=ReplicaBounds(0, 3))))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 3
    assert "700/s are more than 3 replicas serve; raise its maximum" in assignment.relaxed[0].message


def test_no_floor_of_a_tier_lifts_a_model_above_its_maximum() -> None:
    pool = a_pool(tiers=(TierRule(Tier.REALTIME, 5),))
    assignment = solve_snapshot(a_snapshot(pool, a_model(rate=100.0, bounds=ReplicaBounds(0, 2))))
    assert assignment.get_replicas("ads/ctr", "gpu-a") == 2
    assert [each.rule for each in assignment.relaxed] == ["realtime floor"]


def test_a_curve_that_serves_nothing_gets_nothing() -> None:
    model = a_model("ctr", Tier.REALTIME, a_placement(curve=linear_curve(0.0)), rate=10.0)
    assert solve_snapshot(a_snapshot(model)).get_replicas("ads/ctr", "gpu-a") == 0


def test_values_far_apart_do_not_hide_each_other() -> None:
    models = [
        a_model("dear", Tier.NEARLINE, rate=300.0, value=1e6),
        a_model("cheap", Tier.OFFLINE, rate=300.0, value=1.0),
    ]
    assignment = solve_snapshot(a_snapshot(a_pool(slices=6), *models))
    assert [each.replicas for each in assignment.replicas] == [3, 3]


def test_hold_moves_nothing_but_for_safety() -> None:
    busy = a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=500.0)
    idle = a_model("off", Tier.OFFLINE, a_placement(ready=4), rate=0.0)
    held = a_snapshot(a_pool(hold=True), busy, idle)
    assert solve_snapshot(held).moves == ()
    assert [each.rule for each in solve_snapshot(held).relaxed] == ["SLO"]
    lost = a_snapshot(a_pool(slices=5, hold=True), busy, idle)
    assert [(each.inference, each.replicas) for each in solve_snapshot(lost).moves] == [("ads/off", 1)]


def test_an_override_is_a_bound_and_is_named() -> None:
    pinned = ReplicaBounds(4, 4, "override pin-ctr", "override pin-ctr")
    [move] = solve_snapshot(a_snapshot(a_model(rate=0.0, bounds=pinned))).moves
    assert "0 replicas are below override pin-ctr of 4" in move.reason


def test_work_that_nears_its_deadline_goes_first() -> None:
    def model(name: str, urgency: float) -> ModelInput:
        return a_model(name, Tier.NEARLINE, load=DemandInput((800.0,), (urgency,)))

    assignment = solve_snapshot(a_snapshot(model("calm", 1.0), model("late", 3.0)))
    assert [each.replicas for each in assignment.replicas] == [0, 8]


def test_a_real_time_replica_that_was_just_started_is_not_taken_away() -> None:
    young = PlacementInput("gpu-a", linear_curve(1.0), replicas=ReplicaCounts(ready=8), since_up_s=40.0)
    mine = replace(a_model("idle", rate=0.0), placements=(young,))
    other = a_model("near", Tier.NEARLINE, rate=800.0, value=100.0)
    assert solve_snapshot(a_snapshot(mine, other, dwell_s=60.0)).moves == ()
    assert len(solve_snapshot(a_snapshot(mine, other, dwell_s=35.0)).moves) > 0


def test_other_tiers_give_what_was_just_started_as_soon_as_it_is_loaded() -> None:
    """Real-time demand is served from them, and cannot wait for minutes."""

    def moves(since_up_s: float) -> int:
        young = PlacementInput(
            "gpu-a", linear_curve(1.0), replicas=ReplicaCounts(ready=8), since_up_s=since_up_s, load_s=20.0
        )
        mine = replace(a_model("off", Tier.OFFLINE), placements=(young,))
        other = a_model("near", Tier.NEARLINE, rate=800.0, value=100.0)
        return len(solve_snapshot(a_snapshot(mine, other, dwell_s=300.0)).moves)

    assert moves(15.0) == 0
    assert moves(25.0) > 0


def test_a_small_gain_moves_nothing_when_moving_is_dear() -> None:
    """Hysteresis is a price: 5 percent more is not worth half the horizon without a slice."""
    mine = a_model("a", Tier.NEARLINE, a_placement(ready=8, load_s=60.0, drain_s=60.0), rate=800.0)
    other = a_model("b", Tier.NEARLINE, a_placement(load_s=60.0, drain_s=60.0), rate=800.0, value=1.05)
    assert (
        solve_snapshot(a_snapshot(a_pool(price=100.0), mine, other, steps=(HorizonStep(240.0),))).moves == ()
    )
    assert solve_snapshot(a_snapshot(a_pool(price=0.0), mine, other, steps=(HorizonStep(240.0),))).moves != ()


def test_the_budget_limits_what_is_chosen() -> None:
    mine = a_model("a", Tier.OFFLINE, a_placement(ready=8), rate=800.0)
    other = a_model("b", Tier.NEARLINE, rate=800.0, value=10.0)
    assignment = solve_snapshot(a_snapshot(a_pool(budget=6), mine, other))
    assert [each.replicas for each in assignment.replicas] == [5, 3]
    assert any(each.constraint.startswith("budget of gpu-a") for each in assignment.bindings)
