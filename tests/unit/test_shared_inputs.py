"""Requests with one row of the user, or as many as items, in the form that the graph takes; no answer changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegate_dataplane.batching.shared_inputs import RowsError, SharedInputs

Array = NDArray[Any]
NAMES = ("user", "history")


def numbers(*rows: float) -> Array:
    return np.array(rows, dtype=np.float32)[:, None]


def prepare(
    *, single: tuple[str, ...] = NAMES, max_rows: int = 100, **inputs: Array
) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """Return the prepared rows of each input, and the counts by way."""
    shared = SharedInputs(NAMES, single, max_rows)
    request = shared.prepare_request(inputs)
    assert set(shared.read_counters().values()) == {0}, "only answers count"
    shared.count_answer(request)
    counts = {way: count for (_, way), count in shared.read_counters().items()}
    return {name: array[:, 0].tolist() for name, array in request.inputs.items()}, counts


def test_one_row_goes_to_a_graph_that_takes_it() -> None:
    prepared, counts = prepare(user=numbers(1), history=numbers(2), item=numbers(3, 4))
    assert prepared == {"user": [1], "history": [2], "item": [3, 4]}
    assert counts == {"sent": 1, "equal": 0}


def test_rows_that_are_equal_become_one() -> None:
    prepared, counts = prepare(user=numbers(1, 1), history=numbers(2), item=numbers(3, 4))
    assert prepared == {"user": [1], "history": [2], "item": [3, 4]}
    assert counts == {"sent": 0, "equal": 1}


def test_a_graph_that_takes_all_rows_gets_them() -> None:
    prepared, counts = prepare(single=(), user=numbers(1), history=numbers(2, 2), item=numbers(3, 4))
    assert prepared == {"user": [1, 1], "history": [2, 2], "item": [3, 4]}
    assert counts == {"sent": 0, "equal": 0}


def test_a_graph_that_takes_one_row_of_some_gets_all_rows_of_the_others() -> None:
    prepared, _ = prepare(single=("user",), user=numbers(1), history=numbers(2), item=numbers(3, 4))
    assert prepared == {"user": [1], "history": [2, 2], "item": [3, 4]}


@pytest.mark.parametrize(
    "user", [numbers(1, 1, 5), numbers(1, 5, 1), numbers(0.0, -0.0, 0.0), numbers(1, np.nan, 1)]
)
def test_rows_that_differ_stay_in_all_inputs(user: Array) -> None:
    prepared, counts = prepare(user=user, history=numbers(2), item=numbers(3, 4, 5))
    assert [len(rows) for rows in prepared.values()] == [3, 3, 3]
    assert np.array_equal(prepared["user"], user[:, 0], equal_nan=True)
    assert counts == {"sent": 0, "equal": 0}


@pytest.mark.parametrize(
    ("rows", "differing"),
    [(np.array([["a"], ["a"]], object), False), (np.array([["a"], ["b"]], object), True)],
)
def test_texts_are_compared_as_well(rows: Array, differing: bool) -> None:
    prepared, _ = prepare(user=rows, history=numbers(2), item=numbers(3, 4))
    assert len(prepared["user"]) == (2 if differing else 1)


def test_a_request_of_one_row_is_no_shared_one() -> None:
    prepared, counts = prepare(user=numbers(1), history=numbers(2), item=numbers(3))
    assert prepared == {"user": [1], "history": [2], "item": [3]}
    assert counts == {"sent": 0, "equal": 0}


@pytest.mark.parametrize("single", [NAMES, ()])
def test_a_request_without_items_has_no_row_of_the_user_either(single: tuple[str, ...]) -> None:
    """An id out of range in the user's row would fail a request that has an answer without rows."""
    prepared, counts = prepare(single=single, user=numbers(1), history=numbers(2), item=numbers())
    assert [len(prepared[name]) for name in ("user", "history", "item")] == [0, 0, 0]
    assert counts == {"sent": 0, "equal": 0}


def test_no_rows_at_all_stay_none() -> None:
    prepared, _ = prepare(user=numbers(), history=numbers(2), item=numbers())
    assert [len(rows) for rows in prepared.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"user": numbers(1, 2), "item": numbers(3, 4, 5)},
            "shared input 'user' has 2 rows: send one, or as many as 'item' has, 3",
        ),
        ({"user": numbers(), "item": numbers(3)}, "shared input 'user' has 0 rows: send one"),
        (
            {"user": numbers(1), "item": numbers(3, 4), "price": numbers(3)},
            "input 'price' has 1 rows, and 'item' has 2: only shared inputs may have one row",
        ),
        (
            {"user": numbers(1), "item": numbers(*range(101))},
            "the request has 101 rows, and spec.batching.maxBatchSize is 100",
        ),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(inputs: dict[str, Array], message: str) -> None:
    with pytest.raises(RowsError, match=message):
        prepare(history=numbers(2), **inputs)


@given(
    users=st.lists(st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=4),
    history=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    items=st.integers(0, 4),
    single=st.sampled_from([(), ("user",), NAMES]),
)
def test_every_form_means_the_same_rows(
    users: list[float], history: list[int], items: int, single: tuple[str, ...]
) -> None:
    inputs = {"user": numbers(*users), "history": np.array(history)[:, None], "item": numbers(*range(items))}
    shared = SharedInputs(NAMES, single, 100)
    if any(len(inputs[name]) not in (1, items) for name in NAMES):
        with pytest.raises(RowsError):
            shared.prepare_request(inputs)
        return
    prepared = shared.prepare_request(inputs).inputs
    assert len({len(prepared[name]) for name in single}) <= 1
    for name, array in inputs.items():
        given_rows, rows = (np.broadcast_to(each, (items, 1)) for each in (array, prepared[name]))
        assert given_rows.tobytes() == rows.tobytes()
        assert len(prepared[name]) == items or name in single
