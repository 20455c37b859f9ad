"""Whose the warm spares are: in what is left free, where they promise most, and not somebody else's with every look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.allocation import a_model, a_placement, a_pool, a_snapshot, snapshots
from stages.examples import examples
from tidegate.allocation.snapshot import (
    AllocationSnapshot,
    ModelInput,
    PoolInput,
    ReplicaBounds,
    ReplicaCounts,
    TierRule,
)
from tidegate.allocation.solver import Solver
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.inference import Tier

RT, NEAR, OFF = Tier.REALTIME, Tier.NEARLINE, Tier.OFFLINE


def spares(*objects: PoolInput | ModelInput) -> dict[str, int]:
    snapshot = a_snapshot(*objects)
    assignment = Solver(lambda: 0.0).solve(snapshot)
    return {
        each.inference.partition("/")[2]: each.replicas for each in choose_warm_spares(snapshot, assignment)
    }


def serves(name: str, rate: float | None, ready: int = 2, spare: int = 0, **more: Any) -> ModelInput:
    """A hundred requests per second for each of its replicas."""
    placement = a_placement(
        replicas=ReplicaCounts(ready=ready, spare=spare),
        **({"slices": more.pop("slices")} if "slices" in more else {}),
    )
    more.setdefault("bounds", ReplicaBounds(ready, 8))
    return a_model(name, RT, placement, rate=rate, **more)


def test_nobody_has_one_where_none_are_asked_for() -> None:
    assert spares(a_pool(), serves("ctr", 150)) == {}


def test_the_one_that_is_nearest_to_its_capacity_comes_first() -> None:
    assert spares(a_pool(spares=1), serves("idle", 20), serves("busy", 190)) == {"busy": 1}


def test_what_a_request_is_worth_counts_as_well() -> None:
    cheap, dear = serves("cheap", 190, value=1.0), serves("dear", 100, value=5.0)
    assert spares(a_pool(spares=1), cheap, dear) == {"dear": 1}


def test_everybody_gets_one_before_anybody_gets_a_second() -> None:
    models = serves("a", 190, ready=1, value=9.0), serves("b", 20, ready=1)
    models = (replace(models[0], load=serves("x", 90).load), models[1])
    assert spares(a_pool(spares=3), *models) == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("now", "expected"), [(120, "holder"), (199, "other")], ids=["little-better", "twice-as-good"]
)
def test_a_spare_stays_where_it_is_for_small_differences(now: float, expected: str) -> None:
    assert spares(a_pool(spares=1), serves("holder", 80, spare=1), serves("other", now)) == {expected: 1}


def test_a_replica_that_is_not_needed_any_more_becomes_the_spare_before_one_is_started() -> None:
    """So what is kept warm costs no pod: it was one that served."""
    falling, other = serves("falling", 50, bounds=ReplicaBounds(1, 8)), serves("other", 80, ready=1)
    assert spares(a_pool(slices=3, spares=1), falling, other) == {"falling": 1}
    assert spares(a_pool(slices=3, spares=1), serves("falling", 50, ready=1), other) == {"other": 1}


def test_a_model_at_its_maximum_or_of_another_tier_has_none() -> None:
    full = a_model("full", RT, a_placement(ready=2), rate=190.0, bounds=ReplicaBounds(2, 2))
    near = a_model("near", NEAR, a_placement(ready=1), rate=50.0)
    off = a_model("off", OFF, a_placement(ready=1), rate=50.0)
    assert spares(a_pool(slices=8, spares=2), full, near, off) == {}


def test_those_whose_load_nobody_knows_come_last_and_keep_what_they_have() -> None:
    blind, seen = serves("blind", None, spare=1), serves("seen", 20)
    assert spares(a_pool(spares=1), blind, seen) == {"seen": 1}
    assert spares(a_pool(spares=2), blind, seen) == {"blind": 1, "seen": 1}
    # Where nothing is known of anybody, nobody's spare moves.
    assert spares(a_pool(spares=1), blind, serves("also", None)) == {"blind": 1}


def test_a_held_pool_starts_none_and_stops_none() -> None:
    held = a_pool(spares=2, hold=True)
    assert spares(held, serves("has", 20, spare=1), serves("would", 190)) == {"has": 1}


def test_they_count_in_the_ceiling_of_their_tier() -> None:
    rule = TierRule(RT, 0, 3)
    assert spares(a_pool(spares=2, tiers=(rule,)), serves("ctr", 190)) == {"ctr": 1}


def test_larger_replicas_leave_what_is_too_small_for_them_to_others() -> None:
    large = serves("large", 190, ready=1, slices=2, value=9.0)
    large = replace(large, load=serves("x", 90).load)
    assert spares(a_pool(slices=8, spares=3), large, serves("small", 20)) == {"large": 1, "small": 1}


def test_real_time_demand_takes_the_spare_where_nobody_else_gives() -> None:
    """A loaded replica that waits for worse days while requests are refused helps nobody."""
    busy = serves("ctr", 290, spare=1)
    assignment = Solver(lambda: 0.0).solve(a_snapshot(a_pool(slices=3, spares=1), busy))
    assert [each.replicas for each in assignment.replicas] == [3]
    assert [each.rule for each in assignment.relaxed] == ["warm spares"]
    assert "; from a warm spare" in assignment.moves[0].reason
    assert spares(a_pool(slices=3, spares=1), busy) == {}


def test_floors_of_other_tiers_go_before_spares_and_their_value_after() -> None:
    pool = a_pool(slices=4, spares=1, tiers=(TierRule(NEAR, 2),))
    near = a_model("near", NEAR, a_placement(ready=2), rate=400.0, value=50.0)
    assert spares(pool, serves("ctr", 190), near) == {}
    assert spares(replace(pool, tiers=()), serves("ctr", 190), near) == {"ctr": 1}


@settings(deadline=None, max_examples=examples(150))
@given(snapshot=snapshots(), data=st.data())
def test_they_fit_and_the_order_of_the_inputs_says_nothing(
    snapshot: AllocationSnapshot, data: st.DataObject
) -> None:
    solver = Solver(lambda: 0.0)
    assignment = solver.solve(snapshot)
    found = choose_warm_spares(snapshot, assignment)
    inferences = {each.key: each for each in snapshot.inferences}
    for pool in snapshot.pools:
        given_ = sum(
            each.replicas * spot.slices
            for each in assignment.replicas
            for spot in inferences[each.inference].placements
            if each.pool == spot.pool == pool.name
        )
        kept = sum(each.replicas * each.slices for each in found if each.pool == pool.name)
        assert kept <= pool.spares
        assert not kept or given_ + kept <= pool.slices
    for each in found:
        most = inferences[each.inference].bounds.ceiling
        assert inferences[each.inference].tier is RT
        assert most is None or assignment.get_replicas(each.inference, each.pool) + each.replicas <= most
    shuffled = replace(snapshot, inferences=tuple(data.draw(st.permutations(snapshot.inferences))))
    assert choose_warm_spares(shuffled, assignment) == found


@settings(deadline=None, max_examples=examples(60))
@given(snapshot=snapshots())
def test_what_was_decided_is_decided_again(snapshot: AllocationSnapshot) -> None:
    """With the spares in place nothing has changed, so nobody's spare moves."""
    assignment = Solver(lambda: 0.0).solve(snapshot)
    found = {(each.inference, each.pool): each.replicas for each in choose_warm_spares(snapshot, assignment)}
    settled = replace(
        snapshot,
        inferences=tuple(
            replace(
                each,
                placements=tuple(
                    replace(
                        spot,
                        replicas=ReplicaCounts(
                            ready=assignment.get_replicas(each.key, spot.pool),
                            spare=found.get((each.key, spot.pool), 0),
                        ),
                    )
                    for spot in each.placements
                ),
            )
            for each in snapshot.inferences
        ),
    )
    again = {(each.inference, each.pool): each.replicas for each in choose_warm_spares(settled, assignment)}
    assert again == found
