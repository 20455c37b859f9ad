"""A partition's progress: what is settled in any order is never repeated, and what is not is never skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate_dataplane.agent.nearline.progress import MOST_BYTES, Progress, read, written


def test_only_the_first_unsettled_offset_is_committed_and_the_rest_is_told_beside_it() -> None:
    progress = Progress(10)
    assert [progress.deliver(offset) for offset in (10, 11, 12)] == [1, 1, 1]
    assert progress.deliver(11) is None  # it is here already
    progress.settle(11)
    assert written(progress)[0] == 10
    progress.settle(10)
    assert written(progress)[0] == 12
    progress.settle(12)
    assert written(progress)[0] == 13


def test_a_successor_repeats_what_is_not_settled_and_counts_on() -> None:
    before = Progress(0)
    for offset in range(4):
        before.deliver(offset)
    before.deliver_again(2)
    for offset in (1, 3):
        before.settle(offset)

    after = read(*written(before))
    assert [after.deliver(offset) for offset in range(5)] == [2, None, 3, None, 1]


def test_what_is_gone_from_the_topic_holds_nothing_up_and_what_is_here_is_not_forgotten() -> None:
    before = Progress(0)
    for offset in range(3):
        before.deliver(offset)
    after = read(*written(before))
    assert after.deliver(1) == 2  # 0 was deleted meanwhile
    after.passed(2)
    assert after.committable == 1
    after.settle(1)
    after.passed(5)
    assert (after.committable, after.unsettled) == (5, {})


def test_an_offset_that_a_person_has_set_is_taken_as_it_is() -> None:
    for text in ("", "by hand", "tidegate1", "tidegate1 !", "tidegate1 7 2 x", "tidegate2 7 2 0.1"):
        assert read(7, text).deliver(7) == 1


def test_the_text_of_another_offset_is_not_taken_for_this_ones() -> None:
    before = Progress(1_000)
    for offset in (1_000, 1_001, 1_002):
        before.deliver(offset)
        if offset != 1_000:
            before.settle(offset)
    offset, text = written(before)
    assert [read(offset, text).deliver(each) for each in (1_000, 1_001)] == [2, None]
    assert [read(offset - 500, text).deliver(each) for each in (500, 501)] == [1, 1]


@given(st.lists(st.integers(0, 30_000), unique=True, max_size=1_500), st.integers(0, 2**40), st.data())
def test_written_and_read_it_is_the_same_or_more_is_repeated(
    unsettled: list[int], first: int, data: st.DataObject
) -> None:
    counts = {first + each: data.draw(st.integers(1, 200)) for each in sorted(unsettled)[:50]}
    counts |= {first + each: 1 for each in unsettled[50:]}
    progress = Progress(first + 30_001, counts)
    offset, text = written(progress)
    found = read(offset, text)

    assert len(text) <= MOST_BYTES
    assert offset == progress.committable
    assert found.seen <= progress.seen
    assert found.unsettled == {each: count for each, count in counts.items() if each < found.seen}
    if len(counts) < 400:
        assert found.seen == progress.seen
