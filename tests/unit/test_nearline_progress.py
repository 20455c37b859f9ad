"""A partition's progress: what is settled in any order is never repeated, and what is not is never skipped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate_dataplane.agent.nearline.progress import (
    MAX_METADATA_BYTES,
    PartitionProgress,
    decode_progress,
    encode_progress,
)


def test_only_the_first_unsettled_offset_is_committed_and_the_rest_is_told_beside_it() -> None:
    progress = PartitionProgress(10)
    assert [progress.deliver_offset(offset) for offset in (10, 11, 12)] == [1, 1, 1]
    assert progress.deliver_offset(11) is None  # it is here already
    progress.settle_offset(11)
    assert encode_progress(progress)[0] == 10
    progress.settle_offset(10)
    assert encode_progress(progress)[0] == 12
    progress.settle_offset(12)
    assert encode_progress(progress)[0] == 13


def test_a_successor_repeats_what_is_not_settled_and_counts_on() -> None:
    before = PartitionProgress(0)
    for offset in range(4):
        before.deliver_offset(offset)
    before.deliver_again(2)
    for offset in (1, 3):
        before.settle_offset(offset)

    after = decode_progress(*encode_progress(before))
    assert [after.deliver_offset(offset) for offset in range(5)] == [2, None, 3, None, 1]


def test_what_is_gone_from_the_topic_holds_nothing_up_and_what_is_here_is_not_forgotten() -> None:
    before = PartitionProgress(0)
    for offset in range(3):
        before.deliver_offset(offset)
    after = decode_progress(*encode_progress(before))
    assert after.deliver_offset(1) == 2  # 0 was deleted meanwhile
    after.advance_to(2)
    assert after.committable_offset == 1
    after.settle_offset(1)
    after.advance_to(5)
    assert (after.committable_offset, after.unsettled) == (5, {})


def test_an_offset_that_a_person_has_set_is_taken_as_it_is() -> None:
    for text in ("", "by hand", "tidegate1", "tidegate1 !", "tidegate1 7 2 x", "tidegate2 7 2 0.1"):
        assert decode_progress(7, text).deliver_offset(7) == 1


def test_the_text_of_another_offset_is_not_taken_for_this_ones() -> None:
    before = PartitionProgress(1_000)
    for offset in (1_000, 1_001, 1_002):
        before.deliver_offset(offset)
        if offset != 1_000:
            before.settle_offset(offset)
    offset, text = encode_progress(before)
    assert [decode_progress(offset, text).deliver_offset(each) for each in (1_000, 1_001)] == [2, None]
    assert [decode_progress(offset - 500, text).deliver_offset(each) for each in (500, 501)] == [1, 1]


@given(st.lists(st.integers(0, 30_000), unique=True, max_size=1_500), st.integers(0, 2**40), st.data())
def test_written_and_read_it_is_the_same_or_more_is_repeated(
    unsettled: list[int], first: int, data: st.DataObject
) -> None:
    counts = {first + each: data.draw(st.integers(1, 200)) for each in sorted(unsettled)[:50]}
    counts |= {first + each: 1 for each in unsettled[50:]}
    progress = PartitionProgress(first + 30_001, counts)
    offset, text = encode_progress(progress)
    found = decode_progress(offset, text)

    assert len(text) <= MAX_METADATA_BYTES
    assert offset == progress.committable_offset
    assert found.next_offset <= progress.next_offset
    assert found.unsettled == {each: count for each, count in counts.items() if each < found.next_offset}
    if len(counts) < 400:
        assert found.next_offset == progress.next_offset
