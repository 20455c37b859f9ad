"""Shared spares serve what the loss of any node takes, checked by losing each node in turn and against every packing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.allocation.curves import linear_curve
from tidegate.allocation.errors import InvalidInputError
from tidegate.allocation.shared_spares import (
    NodeShares,
    SharedSpare,
    SparePlan,
    SpareRules,
    measure_node_shares,
    plan_shared_spares,
)

NODES: tuple[str, ...] = ("n0", "n1", "n2", "n3", "n4")
ROOM = SpareRules(100)


def a_model(key: str, slices: int = 1, model_bytes: float = 0.0, **busy: float) -> NodeShares:
    return NodeShares(key, slices, busy, model_bytes)


def spare_loads(plan: SparePlan, models: Sequence[NodeShares], lost: str) -> list[float]:
    """Lose a node; return the busy replicas that come to each of the other spares, divided evenly by Envoy."""
    left = [spare for spare in plan.spares if spare.node != lost]
    loads: defaultdict[int, float] = defaultdict(float)
    for model in models:
        holders = [number for number, spare in enumerate(left) if model.key in spare.models]
        if model.key not in plan.uncovered and model.busy_by_node.get(lost, 0.0) > 1e-9:
            assert holders, f"no spare of {model.key} is left without {lost}"
        for number in holders:
            loads[number] += model.busy_by_node.get(lost, 0.0) / len(holders)
    return list(loads.values())


@st.composite
def models(draw: st.DrawFn, largest: int = 12, most_busy: int = 1) -> list[NodeShares]:
    """Draw models with replicas on up to four of the five nodes, busy in steps of a hundredth."""
    busy = st.integers(0, most_busy * 100).map(lambda hundredths: hundredths / 100)
    return [
        NodeShares(
            f"ads/m{number}",
            draw(st.sampled_from((1, 1, 2))),
            draw(st.dictionaries(st.sampled_from(NODES), busy, max_size=len(NODES) - 1)),
            draw(st.floats(0.0, 4.0)),
        )
        for number in range(draw(st.integers(0, largest)))
    ]


rules = st.builds(
    SpareRules,
    slices=st.integers(0, 12),
    max_models=st.integers(1, 5),
    slice_bytes=st.sampled_from((4.0, 9.0, inf)),
)


@given(models=models(most_busy=2), rules=rules)
def test_no_spare_gets_more_than_it_serves_whichever_node_is_lost(
    models: list[NodeShares], rules: SpareRules
) -> None:
    plan = plan_shared_spares(models, NODES, rules, ())
    by_key = {model.key: model for model in models}
    for node in NODES:
        assert max(spare_loads(plan, models, node), default=0.0) <= 1 + 1e-6
    assert plan.slice_count <= rules.slices
    for spare in plan.spares:
        assert 0 < len(spare.models) <= rules.max_models
        taken = [by_key[key].model_bytes for key in spare.models]
        assert sum(taken) + max(taken) <= rules.limit_bytes(spare.slices) + 1e-6
        assert all(by_key[key].slices <= spare.slices for key in spare.models)
        assert not any(by_key[key].busy_by_node.get(spare.node) for key in spare.models)


@given(models=models(most_busy=2), rules=rules, order=st.randoms())
def test_plan_is_kept_as_long_as_nothing_changes_and_does_not_depend_on_the_order(
    models: list[NodeShares], rules: SpareRules, order: Random
) -> None:
    plan = plan_shared_spares(models, NODES, rules, ())
    assert plan_shared_spares(models, NODES, rules, plan.spares) == plan
    order.shuffle(models)
    assert plan_shared_spares(models, NODES, rules, ()) == plan


@given(models=models())
def test_every_model_with_a_node_to_itself_is_covered_when_slices_are_enough(
    models: list[NodeShares],
) -> None:
    plan = plan_shared_spares(models, NODES, ROOM, ())
    assert plan.uncovered == ()
    covered = {key for spare in plan.spares for key in spare.models}
    assert covered == {model.key for model in models if model.spares_needed}


def list_partitions(items: Sequence[NodeShares]) -> Iterator[list[list[NodeShares]]]:
    """Yield every way to divide models into groups."""
    if not items:
        yield []
        return
    for groups in list_partitions(items[1:]):
        yield [[items[0]], *groups]
        for number, group in enumerate(groups):
            yield [*groups[:number], [items[0], *group], *groups[number + 1 :]]


def count_fewest(models: Sequence[NodeShares], limit: SpareRules) -> int:
    """Return the fewest slices of any packing, over all groups and all nodes of each."""

    def is_possible(group: Sequence[NodeShares]) -> bool:
        slices = max(model.slices for model in group)
        free = [node for node in NODES if not any(model.busy_by_node.get(node) for model in group)]
        fullest = max(sum(model.busy_by_node.get(node, 0.0) for model in group) for node in NODES)
        taken = sum(model.model_bytes for model in group)
        return (
            bool(free)
            and fullest <= 1 + 1e-9
            and len(group) <= limit.max_models
            and taken <= limit.slice_bytes * slices
        )

    return min(
        sum(max(model.slices for model in group) for group in groups)
        for groups in list_partitions([model for model in models if model.spares_needed])
        if all(is_possible(group) for group in groups)
    )


@given(models=models(largest=5), max_models=st.integers(1, 4))
def test_plan_takes_at_most_two_slices_more_than_the_best_packing(
    models: list[NodeShares], max_models: int
) -> None:
    limit = SpareRules(100, max_models)
    plan = plan_shared_spares(models, NODES, limit, ())
    fewest = count_fewest(models, limit)
    assert fewest <= plan.slice_count <= fewest + 2


def test_models_of_different_nodes_share_a_spare_and_those_of_one_node_only_as_far_as_it_serves() -> None:
    apart = [a_model("ads/a", n0=0.9), a_model("ads/b", n1=0.9), a_model("ads/c", n2=0.9)]
    plan = plan_shared_spares(apart, NODES, ROOM, ())
    assert plan.spares == (SharedSpare(0, "n3", 1, ("ads/a", "ads/b", "ads/c")),)
    together = [a_model("ads/a", n0=0.6), a_model("ads/b", n0=0.5), a_model("ads/c", n0=0.4)]
    plan = plan_shared_spares(together, NODES, ROOM, ())
    assert plan.spares == (SharedSpare(0, "n1", 1, ("ads/a", "ads/c")), SharedSpare(1, "n2", 1, ("ads/b",)))


def test_a_spare_that_was_opened_for_a_model_that_finds_no_second_one_is_closed() -> None:
    wide, small = a_model("ads/wide", 2, n0=1.5), a_model("ads/small", n0=0.5)
    free = dict.fromkeys(NODES, 0) | {"n3": 2}
    plan = plan_shared_spares([wide, small], NODES, SpareRules(3), (), free)
    assert plan == SparePlan((SharedSpare(0, "n3", 1, ("ads/small",)),), ("ads/wide",))
    # With room for both of its spares it has them, and the other shares one.
    plan = plan_shared_spares([wide, small], NODES, SpareRules(5), ())
    assert [(spare.slices, spare.models) for spare in plan.spares] == [
        (2, ("ads/wide",)),
        (2, ("ads/wide",)),
        (1, ("ads/small",)),
    ]


def test_limits_leave_models_uncovered_by_name() -> None:
    both = [a_model("ads/a", n0=0.6, model_bytes=5.0), a_model("ads/b", n1=0.5, model_bytes=5.0)]
    plan = plan_shared_spares(both, NODES, SpareRules(1, slice_bytes=14.0), ())
    assert (plan.slice_count, plan.uncovered) == (1, ("ads/b",))
    # One of them is loaded a second time for its next version.
    assert plan_shared_spares(both, NODES, SpareRules(1, slice_bytes=15.0), ()).uncovered == ()
    crowded = SpareRules(1, slice_bytes=16.0, server_bytes=2.0)
    assert plan_shared_spares(both, NODES, crowded, ()).uncovered == ("ads/b",)
    assert plan_shared_spares(both, NODES, SpareRules(1, max_models=1), ()).uncovered == ("ads/b",)
    assert plan_shared_spares(both, NODES, SpareRules(0), ()) == SparePlan((), ("ads/a", "ads/b"))
    assert plan_shared_spares(both, (), ROOM, ()).uncovered == ("ads/a", "ads/b")
    everywhere = NodeShares("ads/e", 1, dict.fromkeys(NODES, 0.5))
    assert plan_shared_spares([everywhere], NODES, ROOM, ()).uncovered == ("ads/e",)


def test_a_spare_goes_with_its_node_and_a_model_leaves_where_it_no_longer_fits() -> None:
    pair = [a_model("ads/a", n0=0.6), a_model("ads/b", n1=0.5)]
    [spare] = plan_shared_spares(pair, NODES, ROOM, ()).spares
    assert spare == SharedSpare(0, "n2", 1, ("ads/a", "ads/b"))
    others = tuple(node for node in NODES if node != "n2")
    assert plan_shared_spares(pair, others, ROOM, (spare,)).spares == (replace(spare, node="n3"),)
    moved = [a_model("ads/a", n0=0.6), a_model("ads/b", n0=0.5)]
    assert plan_shared_spares(moved, NODES, ROOM, (spare,)).spares == (
        replace(spare, models=("ads/a",)),
        SharedSpare(1, "n1", 1, ("ads/b",)),
    )
    # Deleted, or with a reserve of its own.
    assert plan_shared_spares([pair[0]], NODES, ROOM, (spare,)).spares == (replace(spare, models=("ads/a",)),)
    assert plan_shared_spares([], NODES, ROOM, (spare,)) == SparePlan(())


def test_a_model_stays_where_it_is_loaded_until_its_next_spare_has_loaded_it() -> None:
    pair = [a_model("ads/a", n0=0.6), a_model("ads/b", n1=0.5)]
    old = SharedSpare(0, "n2", 1, ("ads/a", "ads/b"), frozenset(("ads/a", "ads/b")))
    # The replacement of ads/b starts on the spare's node.
    moving = [pair[0], a_model("ads/b", n2=0.5)]
    plan = plan_shared_spares(moving, NODES, ROOM, (old,))
    new = SharedSpare(1, "n1", 1, ("ads/b",))
    assert plan.spares == (replace(old, loaded=frozenset()), new)
    assert plan_shared_spares(moving, NODES, ROOM, (old, new)) == plan
    moved = plan_shared_spares(moving, NODES, ROOM, (old, replace(new, loaded=frozenset(("ads/b",)))))
    assert moved.spares == (replace(old, models=("ads/a",), loaded=frozenset()), new)
    # What did not serve there has nothing to stay for, and no spare exceeds its limits for it.
    loading = replace(old, loaded=frozenset(("ads/a",)))
    assert plan_shared_spares(moving, NODES, ROOM, (loading,)).spares == moved.spares
    crowd = [*moving, a_model("ads/c", n3=0.5)]
    full = replace(old, models=("ads/a", "ads/b", "ads/c"))
    tight = plan_shared_spares(crowd, NODES, SpareRules(9, max_models=2), (full,))
    assert all(len(spare.models) <= 2 for spare in tight.spares)


@pytest.mark.parametrize(
    ("rate", "spread", "expected"),
    [
        (80.0, {"n0": 1}, {"n0": 0.8}),
        (150.0, {"n0": 1, "n1": 1}, {"n0": 0.75, "n1": 0.75}),
        # The other three serve without any one node; without n0 they do not.
        (250.0, {"n0": 2, "n1": 1, "n2": 1}, {"n0": 1.25}),
        (100.0, {"n0": 1, "n1": 1}, {}),
        # Demand that is missed with all nodes makes every replica busy, and none more than that.
        (900.0, {"n0": 1, "n1": 2}, {"n0": 1.0, "n1": 2.0}),
        (80.0, {}, {}),
        (0.0, {"n0": 1}, {}),
    ],
)
def test_what_a_lost_node_takes(
    rate: float, spread: Mapping[str, int], expected: Mapping[str, float]
) -> None:
    shares = measure_node_shares(linear_curve(100.0), rate, spread, "ads/ctr", 1)
    assert shares.busy_by_node == pytest.approx(expected)
    assert shares.spares_needed == ceil(max(expected.values(), default=0.0))


def test_other_models_do_not_take_the_room_of_one_that_a_spare_serves_for_missing_replicas() -> None:
    # Its node is gone, and its replacement loads on the spare's own node.
    lost = replace(a_model("lost", n1=0.5), missing=1)
    others = [a_model("other-0", n2=0.5), a_model("other-1", n3=0.5)]
    rules = SpareRules(4, max_models=2)
    serving = SharedSpare(0, "n1", 1, ("lost",), frozenset({"lost"}))
    plan = plan_shared_spares([lost, *others], ("n1", "n2", "n3"), rules, [serving])
    assert "lost" in next(spare for spare in plan.spares if spare.number == 0).models
    assert plan.uncovered == ()
    # The next one has loaded it: it leaves.
    moved = [
        replace(spare, loaded=frozenset(spare.models) if spare.number else serving.loaded)
        for spare in plan.spares
    ]
    after = plan_shared_spares([lost, *others], ("n1", "n2", "n3"), rules, moved)
    assert [spare.number for spare in after.spares if "lost" in spare.models] != [0]
    assert "lost" not in next(spare for spare in after.spares if spare.number == 0).models


def test_only_replicas_that_serve_stay_without_a_node() -> None:
    shares = measure_node_shares(linear_curve(100.0), 190.0, {"n0": 2, "?": 2}, "ads/ctr", 1, {"n0": 2})
    # The two that are missing serve nothing without n0, which the other two could serve without.
    assert shares.busy_by_node == pytest.approx({"n0": 0.95})
    assert shares.missing == 2
    assert measure_node_shares(linear_curve(100.0), 190.0, {"n0": 2, "n1": 2}, "ads/ctr", 1).missing == 0


def test_the_spares_of_a_node_have_at_most_its_slices() -> None:
    large = a_model("ads/a", 3, n0=0.9)
    sizes = dict.fromkeys(NODES, 2)
    assert plan_shared_spares([large], NODES, ROOM, (), None, sizes).uncovered == ("ads/a",)
    [spare] = plan_shared_spares([large], NODES, ROOM, (), None, sizes | {"n4": 3}).spares
    assert (spare.node, spare.slices) == ("n4", 3)
    assert plan_shared_spares([large], NODES, ROOM, (spare,), None, sizes).spares == ()
    # Two of them do not fit on one node.
    two = [large, a_model("ads/b", 3, n0=0.9)]
    for size, uncovered in ((3, ("ads/b",)), (5, ("ads/b",)), (6, ())):
        assert plan_shared_spares(two, NODES, ROOM, (), None, sizes | {"n4": size}).uncovered == uncovered


def test_a_smaller_limit_takes_spares_but_none_that_serves_for_missing_replicas() -> None:
    pair = [a_model("ads/a", n0=0.6), a_model("ads/b", n0=0.6)]
    both = [
        SharedSpare(0, "n1", 1, ("ads/a",), frozenset(("ads/a",))),
        SharedSpare(1, "n2", 1, ("ads/b",), frozenset(("ads/b",))),
    ]

    def plan(limit: int, *models: NodeShares) -> SparePlan:
        return plan_shared_spares(models, NODES, SpareRules(limit), both)

    assert [spare.number for spare in plan(0, *pair).spares] == []
    assert [spare.number for spare in plan(1, *pair).spares] == [0]
    lost = replace(pair[1], busy_by_node={"?": 0.6}, missing=1)
    for limit in (0, 1):
        assert [(spare.number, spare.models) for spare in plan(limit, pair[0], lost).spares] == [
            (1, ("ads/a", "ads/b"))
        ]
    assert [spare.number for spare in plan(2, pair[0], lost).spares] == [0, 1]
    # One that has not loaded it serves for nobody, and none is added.
    loading = [both[0], replace(both[1], loaded=frozenset())]
    assert plan_shared_spares([pair[0], lost], NODES, SpareRules(0), loading).spares == ()


@pytest.mark.parametrize("bad", [nan, -1.0, 1e308])
def test_impossible_number_is_refused_by_name(bad: float) -> None:
    with pytest.raises(InvalidInputError, match="inference ads/ctr: replicas on node n0"):
        a_model("ads/ctr", n0=bad)
    with pytest.raises(InvalidInputError, match="inference ads/ctr: model bytes"):
        a_model("ads/ctr", model_bytes=bad)


def test_impossible_rules_and_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"sharedSpares\.maxModels"):
        SpareRules(1, max_models=0)
    with pytest.raises(InvalidInputError, match=r"sharedSpares\.slices"):
        SpareRules(-1)
    with pytest.raises(InvalidInputError, match="inference ads/ctr: is given twice"):
        plan_shared_spares([a_model("ads/ctr"), a_model("ads/ctr", n0=0.5)], NODES, ROOM, ())
