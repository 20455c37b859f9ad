"""The map in parts is a map, shares what it can, and forgets how it came about."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.xds.persistent_map import PersistentMap

KEYS = st.text("abc", max_size=3)
MAPS = st.dictionaries(KEYS, st.integers(0, 3))
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.integers(0, 3)), max_size=5)


@given(MAPS, CHANGES)
def test_it_is_the_dict_that_had_the_same_changes(
    start: dict[str, int], changes: list[dict[str, int | None]]
) -> None:
    sharded, expected = PersistentMap(start), dict(start)
    for change in changes:
        before, old = sharded, dict(sharded)
        sharded = sharded.with_changes(change)
        assert dict(before) == old
        expected = {k: v for k, v in {**expected, **change}.items() if v is not None}
        assert dict(sharded) == expected
        assert len(sharded) == len(expected)
    assert sharded == PersistentMap(expected)
    assert sharded == expected


@given(MAPS)
def test_no_change_is_the_same_map(start: dict[str, int]) -> None:
    sharded = PersistentMap(start)
    assert sharded.with_changes({**start, "not there": None}) is sharded


def test_a_change_shares_all_parts_but_one() -> None:
    before = PersistentMap({str(number): number for number in range(1000)})
    after = before.with_changes({"7": 8})
    shared = sum(ours is theirs for ours, theirs in zip(before.parts, after.parts, strict=True))
    assert shared == len(before.parts) - 1
