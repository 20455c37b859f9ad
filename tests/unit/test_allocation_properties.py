"""The allocator on any small snapshot: as good as trying every answer, never over capacity, the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from builders.allocation import snapshots
from stages.examples import examples
from tidegate.allocation.assembly import SolveLimits, solve_greedily
from tidegate.allocation.assignment import Assignment, SolveMethod
from tidegate.allocation.snapshot import AllocationSnapshot, ModelInput, PlacementInput, PoolInput
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier

Answer = dict[tuple[str, str], int]
"""Replicas by Inference and pool."""
Outcome = tuple[tuple[float, ...], float]
"""What is missed: real-time floors, budget, a node to spare, near-line floors, offline floors, ceilings, SLO, deadlines, warm spares; and
the value."""


def best(snapshot: AllocationSnapshot) -> Outcome:
    """What the best answer scores."""
    scores = [score(snapshot, answer) for answer in answers(snapshot)]
    for level in range(9):
        least = min(missed[level] for missed, _ in scores)
        scores = [each for each in scores if each[0][level] <= least + 1e-9]
    return max(scores, key=lambda each: each[1])


def answers(snapshot: AllocationSnapshot) -> Iterator[Answer]:
    """All that fit the pools, and in which no model grows beyond its maximum."""
    slices = {pool.name: pool.slices for pool in snapshot.pools}
    spots = [(each, placement) for each in snapshot.inferences for placement in each.placements]
    most = [
        max(placement.replicas.current, slices[placement.pool] // placement.slices) for _, placement in spots
    ]
    for counts in product(*(range(count + 1) for count in most)):
        given = dict.fromkeys(slices, 0)
        for (_, placement), count in zip(spots, counts, strict=True):
            given[placement.pool] += placement.slices * count
        answer = {(each.key, spot.pool): count for (each, spot), count in zip(spots, counts, strict=True)}
        if all(given[name] <= slices[name] for name in slices) and _within(snapshot, answer):
            yield answer


def _within(snapshot: AllocationSnapshot, answer: Answer) -> bool:
    for each in snapshot.inferences:
        held = sum(spot.replicas.current for spot in each.placements)
        most = inf if each.bounds.ceiling is None else each.bounds.ceiling
        counts = [answer[each.key, spot.pool] for spot in each.placements]
        grown = any(n > max(most, s.replicas.current) for n, s in zip(counts, each.placements, strict=True))
        if grown or sum(counts) > max(most, held):
            return False
    return True


def score(snapshot: AllocationSnapshot, answer: Answer) -> Outcome:
    """What an answer misses, and what it is worth."""
    missed = [0.0] * 9
    value = 0.0
    densest = max((_density(each) for each in snapshot.inferences), default=0.0)
    for each in snapshot.inferences:
        value += _score_model(snapshot, each, answer, densest, missed)
    for pool in snapshot.pools:
        _score_pool(snapshot, pool.name, answer, missed)
    return tuple(missed), value


FLOOR_LEVEL = {Tier.REALTIME: 0, Tier.NEARLINE: 3, Tier.OFFLINE: 4}


def _density(each: ModelInput) -> float:
    return max(each.value * spot.curve.rate_at(1) / spot.slices for spot in each.placements)


def _score_model(
    snapshot: AllocationSnapshot, each: ModelInput, answer: Answer, densest: float, missed: list[float]
) -> float:
    pools = {pool.name: pool for pool in snapshot.pools}
    counts = [answer[each.key, spot.pool] for spot in each.placements]
    total, held = sum(counts), sum(spot.replicas.current for spot in each.placements)
    slices = min(spot.slices for spot in each.placements)
    most = inf if each.bounds.ceiling is None else each.bounds.ceiling
    floor = min(max(each.bounds.floor, held), most) if each.load is None else each.bounds.floor
    weight = max(_density(each) / densest, 1e-3) if each.tier is Tier.REALTIME else 1.0
    missed[FLOOR_LEVEL[each.tier]] += max(floor - total, 0) * slices * weight
    missed[5] += max(total - most, 0) * slices
    value = 0.0
    for spot, count in zip(each.placements, counts, strict=True):
        moved = count - spot.replicas.current
        seconds = spot.load_s if moved > 0 else spot.drain_s
        lost = (
            min(pools[spot.pool].price, _best_earnings(snapshot, spot.pool))
            * spot.slices
            * seconds
            / snapshot.horizon_s
        )
        is_priced = len(counts) == 1 and each.tier is Tier.REALTIME and _is_priced(each, pools)
        least_gain = (1e-6 if is_priced else 1e-3) * each.value * spot.curve.rate_at(1)
        value -= abs(moved) * (lost + least_gain * (1 + spot.rank if moved > 0 else 1 / (1 + spot.rank)))
        young = spot.since_up_s < max(50.0, spot.load_s) if moved < 0 else spot.since_down_s < spot.load_s
        missed[1] += abs(moved) * spot.slices if young else 0
    if _is_rationed(snapshot, each) and moved < 0:
        [spot] = each.placements
        exchanged_s = spot.load_s + spot.drain_s
        lost = min(pools[spot.pool].price, _best_earnings(snapshot, spot.pool)) * spot.slices * exchanged_s
        missed[6 if each.tier is Tier.REALTIME else 7] -= moved * (lost / snapshot.horizon_s + 2 * least_gain)
    if each.load is None:
        return value
    caps = [min(pools[spot.pool].slices // spot.slices, most) for spot in each.placements]
    reach = sum(spot.curve.rate_at(int(cap)) for spot, cap in zip(each.placements, caps, strict=True))
    asked = max(each.load.rates)
    promised = min(asked, reach) if each.tier is Tier.REALTIME else 0.0
    in_time = 0.0 if each.load.deadline is None else min(asked, reach, each.load.deadline.rate)
    total_weight = sum(step.seconds * step.weight for step in snapshot.steps)
    end_s = 0.0
    for number, (step, rate) in enumerate(zip(snapshot.steps, each.load.rates, strict=True)):
        end_s += step.seconds
        loaded = end_s >= each.placements[0].load_s or number == len(snapshot.steps) - 1 or len(counts) > 1
        ready = [
            count if loaded else min(count, spot.replicas.current)
            for count, spot in zip(counts, each.placements, strict=True)
        ]
        capacity = sum(spot.curve.rate_at(count) for spot, count in zip(each.placements, ready, strict=True))
        weight = step.seconds * step.weight / total_weight
        value += weight * worth(each, rate, min(rate, capacity))
        reached = min(rate, promised)
        missed[6] += weight * (worth(each, rate, reached) - worth(each, rate, min(reached, capacity)))
        missed[7] += weight * each.value * max(min(rate, in_time) - capacity, 0.0)
    if each.tier is Tier.REALTIME and promised > 0 and len(counts) == 1 and _is_priced(each, pools):
        value -= _mean_loss(snapshot, each, counts[0], int(caps[0]), promised, pools[each.placements[0].pool])
    elif promised > 0 and (len(counts) == 1 or _is_strict(each, pools)):
        missed[2] += _missed_without_node(each, counts, caps, promised, asked, pools)
    return value


def _is_rationed(snapshot: AllocationSnapshot, each: ModelInput) -> bool:
    """Whether its moves cost SLO or deadline: the models of its tier, and of those before it, that have its pool alone need more
    slices for theirs than they may have.
    """
    promises = each.tier is Tier.REALTIME or _deadline_rate(each) > 0
    if not promises or len(each.placements) > 1:
        return False
    [pool] = [pool for pool in snapshot.pools if pool.name == each.placements[0].pool]
    needed = _needed_slices(snapshot, pool, each.tier)
    before = 0 if each.tier is Tier.REALTIME else _needed_slices(snapshot, pool, Tier.REALTIME)
    limits = [pool.slices - before]
    limits += [pool.slices - sum(rule.floor for rule in pool.tiers if rule.tier is not each.tier)]
    limits += [rule.ceiling for rule in pool.tiers if rule.tier is each.tier and rule.ceiling is not None]
    return needed > min(limits)


def _deadline_rate(each: ModelInput) -> float:
    """What its deadline takes of the rate that anybody asks for."""
    if each.load is None or each.load.deadline is None:
        return 0.0
    return min(max(each.load.rates), each.load.deadline.rate)


def _needed_slices(snapshot: AllocationSnapshot, pool: PoolInput, tier: Tier) -> int:
    needed = 0
    for rival in snapshot.inferences:
        if rival.tier is tier and [spot.pool for spot in rival.placements] == [pool.name]:
            [spot] = rival.placements
            most = inf if rival.bounds.ceiling is None else rival.bounds.ceiling
            cap = int(min(pool.slices // spot.slices, most))
            rate = max(rival.load.rates) if rival.load is not None else 0.0
            rate = rate if tier is Tier.REALTIME else _deadline_rate(rival)
            promised = min(rate, spot.curve.rate_at(cap))
            slo = next(n for n in range(cap + 1) if n == cap or spot.curve.rate_at(n) >= promised - 1e-6)
            held = min(spot.replicas.current, most) if rival.load is None else 0
            needed += max(rival.bounds.floor, held, slo) * spot.slices
    return needed


def _is_priced(each: ModelInput, pools: Mapping[str, PoolInput]) -> bool:
    pool = pools[each.placements[0].pool]
    return pool.node_loss is not None and pool.nodes > 1 and not each.keeps_node_spare


def _is_strict(each: ModelInput, pools: Mapping[str, PoolInput]) -> bool:
    """Whether a model in several pools holds what it takes to lose a node: one of them has no price for the loss."""
    return each.keeps_node_spare or any(pools[spot.pool].node_loss is None for spot in each.placements)


def _best_earnings(snapshot: AllocationSnapshot, pool: str) -> float:
    return max(
        each.value
        * max([1.0, *(each.load.urgency if each.load else ())])
        * spot.curve.rate_at(1)
        / spot.slices
        for each in snapshot.inferences
        for spot in each.placements
        if spot.pool == pool
    )


def _mean_loss(
    snapshot: AllocationSnapshot, each: ModelInput, count: int, cap: int, promised: float, pool: PoolInput
) -> float:
    """The convex hull, at `count`, of what each node lost in turn would lose."""
    [spot] = each.placements
    needed = next(n for n in range(cap + 1) if n == cap or spot.curve.rate_at(n) >= promised - 1e-6)
    loss_input = pool.node_loss
    if pool.nodes <= 1 or loss_input is None or needed == cap:
        return 0.0
    most = next(
        n for n in range(cap + 1) if n == cap or n - max(_place(spot, n, pool.nodes, needed)) >= needed
    )
    drains = (
        other.drain_s
        for model in snapshot.inferences
        for other in model.placements
        if model.tier is not Tier.REALTIME and other.pool == pool.name
    )
    outage_s = loss_input.notice_s + spot.load_s + max(drains, default=0.0)
    share = min(outage_s / loss_input.expected_every_s, 1 / pool.nodes)

    def loss(n: int) -> float:
        on_node = _place(spot, n, pool.nodes, needed)
        served = min(promised, spot.curve.rate_at(n))
        return (
            each.value
            * loss_input.lost_factor
            * share
            * sum(served - min(promised, spot.curve.rate_at(n - lost)) for lost in on_node)
        )

    at = min(max(count, needed), most)
    return min(
        loss(low) if low == high else loss(low) + (loss(high) - loss(low)) * (at - low) / (high - low)
        for low in range(needed, at + 1)
        for high in range(at, most + 1)
    )


def _place(spot: PlacementInput, replicas: int, nodes: int, needed: int) -> list[int]:
    """Replicas by node: one more starts on the emptiest, one less leaves the fullest; a node counts with `needed` at most."""
    placed = [min(item.replicas, needed) for item in spot.ready_by_node][:nodes]
    counts = [*placed, *[0] * (nodes - len(placed))]
    while sum(counts) > replicas:
        counts[counts.index(max(counts))] -= 1
    while sum(counts) < replicas:
        counts[counts.index(min(counts))] += 1
    return counts


def _missed_without_node(
    each: ModelInput,
    counts: list[int],
    caps: list[float],
    promised: float,
    asked: float,
    pools: dict[str, object],
) -> float:
    nodes = [getattr(pools[spot.pool], "nodes") for spot in each.placements]  # noqa: B009
    if max(nodes) <= 1:
        return 0.0
    if len(counts) == 1:
        [spot], [count], [cap] = each.placements, counts, caps
        needed = next(n for n in range(int(cap) + 1) if n == cap or spot.curve.rate_at(n) >= promised - 1e-6)
        kept = (
            n for n in range(int(cap) + 1) if n == cap or n - max(_place(spot, n, nodes[0], needed)) >= needed
        )
        return float(max(next(kept) - count, 0) * spot.slices)

    def left(replicas: list[int]) -> float:
        rates = [spot.curve.rate_at(n) for spot, n in zip(each.placements, replicas, strict=True)]
        return min(sum(rates) - rate / n for rate, n in zip(rates, nodes, strict=True) if n > 1)

    return max(min(asked, left([int(cap) for cap in caps])) - left(counts), 0.0) * each.value


def worth(each: ModelInput, demand: float, served: float) -> float:
    """The value of the first requests that are served, those of the highest value first."""
    classes = each.load.classes if each.load is not None else ()
    if not classes:
        return each.value * served
    total = 0.0
    for value_class in classes:
        taken = min(served, value_class.share * demand)
        served -= taken
        total += value_class.value * taken
    return total


def _score_pool(snapshot: AllocationSnapshot, name: str, answer: Answer, missed: list[float]) -> None:
    [pool] = [pool for pool in snapshot.pools if pool.name == name]
    tiers = dict.fromkeys(Tier, 0)
    moved = 0
    for each in snapshot.inferences:
        for spot in each.placements:
            if spot.pool == name:
                count = answer[each.key, name]
                tiers[each.tier] += count * spot.slices
                moved += abs(count - spot.replicas.current) * spot.slices
    for rule in pool.tiers:
        weight = 1e-3 if rule.tier is Tier.REALTIME else 1.0
        missed[FLOOR_LEVEL[rule.tier]] += max(rule.floor - tiers[rule.tier], 0) * weight
        missed[5] += max(tiers[rule.tier] - rule.ceiling, 0) if rule.ceiling is not None else 0
    free = pool.slices - sum(tiers.values())
    missed[8] += min(max(pool.spares - free, 0), pool.spares)
    allowed = 0 if pool.hold else pool.budget
    if allowed is not None:
        missed[1] += max(moved - allowed, 0)


EXACT = SolveLimits(seconds=30.0, gap=0.0)
CLOSE = 1e-5
# Assignments without relaxed rules are rare among small snapshots.
small = settings(
    max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def solved(snapshot: AllocationSnapshot, limits: SolveLimits = EXACT) -> Assignment:
    return Solver(lambda: 0.0).solve(snapshot, limits)


def replicas(assignment: Assignment) -> dict[tuple[str, str], int]:
    return {(each.inference, each.pool): each.replicas for each in assignment.replicas}


def over_capacity(snapshot: AllocationSnapshot, assignment: Assignment) -> list[str]:
    given_slices = {pool.name: 0 for pool in snapshot.pools}
    for each in snapshot.inferences:
        for spot in each.placements:
            given_slices[spot.pool] += assignment.get_replicas(each.key, spot.pool) * spot.slices
    return [pool.name for pool in snapshot.pools if given_slices[pool.name] > pool.slices]


@small
@given(snapshots())
def test_it_is_as_good_as_trying_every_answer(snapshot: AllocationSnapshot) -> None:
    assignment = solved(snapshot)
    missed, value = score(snapshot, replicas(assignment))
    assert assignment.objective == pytest.approx(value, abs=1e-6)
    assume(not assignment.postponed)
    least, most = best(snapshot)
    assert missed == pytest.approx(least, abs=1e-6)
    assert value >= most - CLOSE * max(1.0, abs(most))
    assert assignment.method is not SolveMethod.GREEDY


@small
@given(snapshots(most_models=6))
def test_it_is_never_over_capacity(snapshot: AllocationSnapshot) -> None:
    for assignment in (solved(snapshot, SolveLimits(seconds=30.0)), solve_greedily(snapshot, "killed")):
        assert over_capacity(snapshot, assignment) == []


@small
@given(snapshots(most_models=4))
def test_whatever_moves_is_bound_by_something_that_is_named(snapshot: AllocationSnapshot) -> None:
    for assignment in (solved(snapshot, SolveLimits(seconds=30.0)), solve_greedily(snapshot, "killed")):
        moved = [move for move in assignment.moves if move.before != move.after]
        assert assignment.bindings or not moved


@small
@given(snapshots(most_models=5))
def test_the_same_snapshot_gets_the_same_bytes(snapshot: AllocationSnapshot) -> None:
    shuffled = replace(snapshot, inferences=snapshot.inferences[::-1], pools=snapshot.pools[::-1])
    assert repr(solved(snapshot)) == repr(solved(shuffled))


@small
@given(snapshots(most_models=4), snapshots(most_models=4))
def test_what_was_solved_before_decides_nothing(
    before: AllocationSnapshot, snapshot: AllocationSnapshot
) -> None:
    warm = Solver(lambda: 0.0)
    warm.solve(before, EXACT)
    names = {pool.name for pool in snapshot.pools}
    rates = {each.key: each for each in before.inferences if {spot.pool for spot in each.placements} <= names}
    # The same models with other numbers, so that the warm model is used again.
    other = replace(
        snapshot, inferences=tuple(_with_load_of(each, rates.get(each.key)) for each in snapshot.inferences)
    )
    warm.solve(other, EXACT)
    assert replicas(warm.solve(snapshot, EXACT)) == replicas(solved(snapshot))


def _with_load_of(each, other):
    if other is None or other.load is None or each.load is None:
        return each
    return replace(each, load=replace(each.load, rates=(*other.load.rates, 1.0, 1.0)[: len(each.load.rates)]))


@small
@given(snapshots(), st.integers(1, 3))
def test_more_capacity_is_never_worse(snapshot: AllocationSnapshot, more: int) -> None:
    first, *others = snapshot.pools
    larger = replace(snapshot, pools=(replace(first, slices=first.slices + more), *others))
    # What one promises depends on capacity: only where all can be had do the two promise alike. So does a strict reserve.
    assume(all(pool.nodes <= 1 or pool.node_loss is not None for pool in snapshot.pools))
    small_one, large_one = solved(snapshot), solved(larger)
    assume(not small_one.relaxed and not small_one.postponed and not large_one.postponed)
    assume(not large_one.relaxed)
    assert large_one.objective >= small_one.objective - CLOSE * max(1.0, abs(small_one.objective))


@small
@given(snapshots(most_models=5))
def test_the_bound_is_a_bound(snapshot: AllocationSnapshot) -> None:
    assignment = solved(snapshot, SolveLimits(seconds=30.0))
    assert assignment.bound is not None
    assert assignment.objective <= assignment.bound + CLOSE * max(1.0, abs(assignment.bound))


@small
@given(snapshots())
def test_greedy_keeps_what_matters_most(snapshot: AllocationSnapshot) -> None:
    """Floors of real-time models where any answer keeps them: one replica after the other finds them."""
    assume(all(len(each.placements) == 1 and each.placements[0].slices == 1 for each in snapshot.inferences))
    assignment = solve_greedily(snapshot, "killed")
    missed, _ = score(snapshot, replicas(assignment))
    least, _ = best(snapshot)
    assert missed[0] == pytest.approx(least[0], abs=1e-6)
    assert assignment.note == "killed"
    assert assignment.method is SolveMethod.GREEDY
