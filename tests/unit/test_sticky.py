"""The line of users: shares are exact, and moving weight moves no more users than it must."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.routing.sticky import LINE_LENGTH, StickyInterval, StickyShare, divide_line

NAMES = ["v1", "v2", "v9", "v10"]
WEIGHT = st.integers(1, 1_000_000)


def line(weights: Mapping[str, int], asleep: str = "") -> tuple[StickyInterval, ...]:
    return divide_line([StickyShare(name, weight, name != asleep) for name, weight in weights.items()])


def owners(*lines: tuple[StickyInterval, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The stretches of the line on which every layout has one owner, with their lengths."""
    ends: list[dict[int, str]] = []
    for layout in lines:
        at, found = 0, dict[int, str]()
        for interval in layout:
            at += interval.length
            found[at] = interval.name
        ends.append(found)
    begin = 0
    for end in sorted(set().union(*ends)):
        yield end - begin, tuple(next(name for stop, name in found.items() if stop >= end) for found in ends)
        begin = end


def moved(
    before: tuple[StickyInterval, ...], after: tuple[StickyInterval, ...]
) -> dict[tuple[str, str], int]:
    """How much of the line went from where to where."""
    result: dict[tuple[str, str], int] = {}
    for length, (one, other) in owners(before, after):
        if one != other:
            result[one, other] = result.get((one, other), 0) + length
    return result


@given(st.dictionaries(st.sampled_from(NAMES), WEIGHT, min_size=1))
def test_every_target_has_its_share_of_the_line(weights: dict[str, int]) -> None:
    total = sum(weights.values())
    lengths = {interval.name: interval.length for interval in line(weights)}
    assert sum(lengths.values()) == LINE_LENGTH
    assert all(abs(lengths[name] - LINE_LENGTH * weight / total) <= 1 for name, weight in weights.items())


@given(WEIGHT, WEIGHT, WEIGHT, WEIGHT)
def test_between_two_targets_exactly_the_difference_moves_and_one_way(a: int, b: int, c: int, d: int) -> None:
    before, after = line({"v1": a, "v2": b}), line({"v1": c, "v2": d})
    difference = LINE_LENGTH * a // (a + b) - LINE_LENGTH * c // (c + d)
    expected = {("v1", "v2") if difference > 0 else ("v2", "v1"): abs(difference)} if difference else {}
    assert moved(before, after) == expected


@given(st.lists(st.integers(1, 99), min_size=3, max_size=6).map(sorted))
def test_nobody_flips_twice_while_a_canary_grows(steps: list[int]) -> None:
    layouts = [line({"v1": 100 - step, "v2": step}) for step in steps]
    for _, history in owners(*layouts):
        assert sum(one != other for one, other in itertools.pairwise(history)) <= 1


@given(st.tuples(WEIGHT, WEIGHT, WEIGHT, WEIGHT), st.integers(0, 2), st.floats(0, 1, exclude_max=True))
def test_between_neighbours_of_many_targets_exactly_the_weight_moves(
    weights: tuple[int, ...], first: int, part: float
) -> None:
    before = dict(zip(NAMES, weights, strict=True))
    one, other = NAMES[first], NAMES[first + 1]
    amount = int(before[one] * part)
    after = {**before, one: before[one] - amount, other: before[other] + amount}
    total = sum(weights)
    change = moved(line(before), line(after))
    assert set(change) <= {(one, other)}
    assert abs(change.get((one, other), 0) - LINE_LENGTH * amount / total) <= 1


@given(
    st.dictionaries(st.sampled_from(NAMES), WEIGHT, min_size=2),
    st.dictionaries(st.sampled_from(NAMES), WEIGHT, min_size=2),
)
def test_no_change_moves_more_than_the_boundaries_between(
    before: dict[str, int], after: dict[str, int]
) -> None:
    """The bound for any change: with n targets at most n - 1 times what the weights alone would move."""

    def share(weights: dict[str, int], name: str) -> float:
        return weights.get(name, 0) / sum(weights.values())

    least = sum(abs(share(before, name) - share(after, name)) for name in NAMES) / 2
    total = sum(moved(line(before), line(after)).values())
    assert total <= (len(NAMES) - 1) * least * LINE_LENGTH + 2 * len(NAMES)


@given(st.dictionaries(st.sampled_from(NAMES), WEIGHT, min_size=2), st.data())
def test_a_sleeping_target_lends_its_users_by_weight_and_nobody_else_moves(
    weights: dict[str, int], data: st.DataObject
) -> None:
    asleep = data.draw(st.sampled_from(sorted(weights)))
    change = moved(line(weights), line(weights, asleep))
    assert {one for one, _ in change} == {asleep}
    others = sum(weight for name, weight in weights.items() if name != asleep)
    lent = sum(change.values())
    for (_, taker), length in change.items():
        assert abs(length - lent * weights[taker] / others) <= 2


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["v10", "v9"], ["v9", "v10"]),
        (["b", "a"], ["a", "b"]),
        (["a-2-x", "a-10", "a"], ["a", "a-2-x", "a-10"]),
    ],
)
def test_targets_lie_in_the_order_of_their_names(names: list[str], order: list[str]) -> None:
    assert [interval.name for interval in line(dict.fromkeys(names, 1))] == order


def test_a_weight_of_zero_has_no_users() -> None:
    assert line({"v1": 0, "v2": 5}) == (StickyInterval("v2", LINE_LENGTH),)
    assert line({"v1": 0, "v2": 5, "v9": 0}, asleep="v1") == (StickyInterval("v2", LINE_LENGTH),)
