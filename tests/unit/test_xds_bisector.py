"""The bisector finds the rejected resources of a response in halves, and clears all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.xds.resources import XdsResource
from tidegate.xds.subscription import Change, NackBisector


def a_change(*names: str, version: str = "1") -> Change:
    return {name: XdsResource(name, version, b"") for name in names}


def test_nothing_is_withheld_before_a_nack() -> None:
    assert NackBisector().next_batch(a_change("a", "b")) == a_change("a", "b")


def test_a_resource_that_is_rejected_alone_is_recorded_with_its_reason() -> None:
    bisector = NackBisector()
    bisector.record_nack(a_change("a"), "bad a")
    assert bisector.rejected == {"a": "bad a"}
    assert bisector.next_batch(a_change("a")) == {}


def test_of_two_resources_none_is_rejected_yet_and_half_is_tried() -> None:
    bisector = NackBisector()
    bisector.record_nack(a_change("a", "b"), "one of you")
    assert bisector.rejected == {}
    assert bisector.next_batch(a_change("a", "b")) == a_change("a")


def test_what_was_never_rejected_goes_first() -> None:
    bisector = NackBisector()
    bisector.record_nack(a_change("a", "b"), "one of you")
    assert bisector.next_batch(a_change("a", "b", "c")) == a_change("c")


def test_something_else_under_a_rejected_name_is_not_suspected() -> None:
    bisector = NackBisector()
    bisector.record_nack(a_change("a"), "bad a")
    assert bisector.next_batch(a_change("a", version="2")) == a_change("a", version="2")
    assert bisector.next_batch({"a": None}) == {"a": None}
    assert bisector.rejected_in({}) == {}
    assert bisector.rejected_in({"a": XdsResource("a", "1", b"")}) == {"a": "bad a"}
    assert bisector.rejected_in({"a": XdsResource("a", "2", b"")}) == {}


def test_an_accepted_resource_is_cleared() -> None:
    bisector = NackBisector()
    bisector.record_nack(a_change("a"), "bad a")
    bisector.record_ack(["a"])
    assert (bisector.suspects, bisector.rejected) == ({}, {})


def test_a_deletion_can_be_rejected_like_a_resource() -> None:
    bisector = NackBisector()
    bisector.record_nack({"a": None}, "still in use")
    assert bisector.rejected_in({}) == {"a": "still in use"}
    assert bisector.rejected_in({"a": XdsResource("a", "1", b"")}) == {}


@given(bad=st.sets(st.integers(0, 63)), count=st.integers(1, 64))
def test_exactly_the_bad_resources_are_rejected_in_few_tries(bad: set[int], count: int) -> None:
    change = a_change(*(f"{number:02}" for number in range(count)))
    bad_names = {f"{number:02}" for number in bad} & change.keys()
    bisector, accepted, tries = NackBisector(), set[str](), 0
    while batch := bisector.next_batch({name: change[name] for name in change.keys() - accepted}):
        tries += 1
        if bad_names.isdisjoint(batch):
            accepted |= batch.keys()
            bisector.record_ack(batch)
        else:
            bisector.record_nack(batch, "no")
    assert bisector.rejected.keys() == bad_names
    assert accepted == change.keys() - bad_names
    assert tries <= 1 + len(bad_names) * 4 * (count.bit_length() + 1)
