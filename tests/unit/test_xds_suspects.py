"""Who is to blame for a refused response: found in halves, and everybody else acquitted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.routing.snapshot import Resource
from tidegate.xds.suspects import Change, Suspects


def a_change(*names: str, version: str = "1") -> Change:
    return {name: Resource(name, version, b"") for name in names}


def test_nothing_is_withheld_before_a_refusal() -> None:
    assert Suspects().portion_of(a_change("a", "b")) == a_change("a", "b")


def test_one_that_is_refused_by_itself_is_condemned_with_the_words() -> None:
    suspects = Suspects()
    suspects.refuse(a_change("a"), "bad a")
    assert suspects.condemned == {"a": "bad a"}
    assert suspects.portion_of(a_change("a")) == {}


def test_of_two_nobody_is_condemned_yet_and_half_is_tried() -> None:
    suspects = Suspects()
    suspects.refuse(a_change("a", "b"), "one of you")
    assert suspects.condemned == {}
    assert suspects.portion_of(a_change("a", "b")) == a_change("a")


def test_what_was_never_refused_goes_first() -> None:
    suspects = Suspects()
    suspects.refuse(a_change("a", "b"), "one of you")
    assert suspects.portion_of(a_change("a", "b", "c")) == a_change("c")


def test_something_else_under_a_condemned_name_is_fresh() -> None:
    suspects = Suspects()
    suspects.refuse(a_change("a"), "bad a")
    assert suspects.portion_of(a_change("a", version="2")) == a_change("a", version="2")
    assert suspects.portion_of({"a": None}) == {"a": None}
    assert suspects.given_up({}) == {}
    assert suspects.given_up({"a": Resource("a", "1", b"")}) == {"a": "bad a"}
    assert suspects.given_up({"a": Resource("a", "2", b"")}) == {}


def test_who_is_accepted_is_no_suspect() -> None:
    suspects = Suspects()
    suspects.refuse(a_change("a"), "bad a")
    suspects.accept(["a"])
    assert (suspects.refused, suspects.condemned) == ({}, {})


def test_a_refused_deletion_is_condemned_like_a_resource() -> None:
    suspects = Suspects()
    suspects.refuse({"a": None}, "still in use")
    assert suspects.given_up({}) == {"a": "still in use"}
    assert suspects.given_up({"a": Resource("a", "1", b"")}) == {}


@given(bad=st.sets(st.integers(0, 63)), count=st.integers(1, 64))
def test_exactly_the_bad_are_condemned_in_few_tries(bad: set[int], count: int) -> None:
    wanted = a_change(*(f"{number:02}" for number in range(count)))
    bad_names = {f"{number:02}" for number in bad} & wanted.keys()
    suspects, accepted, tries = Suspects(), set[str](), 0
    while portion := suspects.portion_of({name: wanted[name] for name in wanted.keys() - accepted}):
        tries += 1
        if bad_names.isdisjoint(portion):
            accepted |= portion.keys()
            suspects.accept(portion)
        else:
            suspects.refuse(portion, "no")
    assert suspects.condemned.keys() == bad_names
    assert accepted == wanted.keys() - bad_names
    assert tries <= 1 + len(bad_names) * 4 * (count.bit_length() + 1)
