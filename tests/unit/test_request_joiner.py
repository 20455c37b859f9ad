"""Requests that arrive together share executions, and no answer is another one for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegate_dataplane.batching.arrays import Answer, Inputs, OutputScales
from tidegate_dataplane.batching.execution_cost import ExecutionCost
from tidegate_dataplane.batching.join_check import CHECK_EVERY, TRIALS, JoinCheck, JoinState
from tidegate_dataplane.batching.request_joiner import EXPLORE_EVERY, JoinMode, RequestJoiner
from tidegate_dataplane.runner_interface import JoinLimit

Array = NDArray[Any]


def masked_sum(rows: Array) -> Array:
    return rows.astype(np.float32).sum(axis=1)


def mean(rows: Array) -> Array:
    return rows.astype(np.float32).mean(axis=1)


def share_of_batch(rows: Array) -> Array:
    total = rows.astype(np.float32).sum(axis=1)
    return total / total.sum()


@dataclass
class Model:
    """A model of one input `x`, whose executions take a time that the test sets; rows below zero are refused."""

    score: Any = masked_sum
    fixed_s: float = 1.0
    per_element_s: float = 0.001
    now_s: float = 0.0
    executed: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def execute(self, inputs: Inputs) -> Answer:
        x = inputs["x"]
        self.executed.append(x.shape)
        self.now_s += self.fixed_s + self.per_element_s * x.size
        if (x < 0).any():
            return ValueError("a row is below zero")
        return [self.score(x)]

    def joiner(self, mode: JoinMode = JoinMode.CHECKED) -> RequestJoiner:
        return RequestJoiner(self.execute, mode, clock=lambda: self.now_s)


def request(rows: int, length: int = 4, start: int = 1) -> Mapping[str, Array]:
    return {"x": np.arange(start, start + rows * length, dtype=np.int64).reshape(rows, length)}


def answers_of(joiner: RequestJoiner, requests: Sequence[Inputs]) -> list[list[float] | str]:
    return [
        str(answer) if isinstance(answer, Exception) else [round(float(value), 4) for value in answer[0]]
        for answer in joiner.answer_requests(requests)
    ]


def alone(model: Model, requests: Sequence[Inputs]) -> list[list[float] | str]:
    return [answers_of(Model(model.score).joiner(JoinMode.NONE), [inputs])[0] for inputs in requests]


def prove(joiner: RequestJoiner, *lengths: int) -> None:
    """Let the joiner see requests of these lengths until it uses what it joins."""
    for _ in range(TRIALS):
        joiner.answer_requests([request(2, length, start) for start, length in enumerate(lengths, 1)])


def test_a_request_that_comes_alone_is_executed_as_it_is() -> None:
    model = Model()
    joiner = model.joiner()
    assert answers_of(joiner, [request(3)]) == [[10, 26, 42]]
    assert model.executed == [(3, 4)]


def test_on_trial_every_request_is_executed_alone_too_and_afterwards_one_execution_answers_all() -> None:
    model = Model()
    joiner = model.joiner()
    requests = [request(2), request(1, start=50)]
    for _ in range(TRIALS):
        model.executed.clear()
        assert answers_of(joiner, requests) == alone(model, requests)
        assert model.executed == [(3, 4), (2, 4), (1, 4)]
        assert joiner.joined_requests == 0
    model.executed.clear()
    assert answers_of(joiner, requests) == alone(model, requests)
    assert model.executed == [(3, 4)]
    assert (joiner.joined_requests, joiner.find_limit()) == (2, JoinLimit.ANY_SHAPE)


def test_rows_that_depend_on_each_other_are_never_joined_and_never_answered_wrongly() -> None:
    model = Model(share_of_batch)
    joiner = model.joiner()
    requests = [request(2), request(3, start=9)]
    for _ in range(3):
        assert answers_of(joiner, requests) == alone(model, requests)
    assert joiner.find_limit() is JoinLimit.ALONE
    model.executed.clear()
    joiner.answer_requests(requests)
    assert model.executed == [(2, 4), (3, 4)]
    assert joiner.read_counters()["join_mismatches_total", "rows"] == 1


def test_requests_of_different_lengths_are_padded_if_zeros_do_not_count() -> None:
    model = Model()
    joiner = model.joiner()
    prove(joiner, 3, 5)
    model.executed.clear()
    requests = [request(2, 5), request(1, 3), request(1, 5, start=70)]
    assert answers_of(joiner, requests) == alone(model, requests)
    assert model.executed == [(4, 5)]
    assert joiner.padded_requests == 3


def test_padding_that_counts_is_refused_and_requests_of_one_shape_are_joined_still() -> None:
    model = Model(mean)
    joiner = model.joiner()
    prove(joiner, 3, 5)
    assert joiner.find_limit() is JoinLimit.SAME_SHAPE
    prove(joiner, 3, 3)
    model.executed.clear()
    requests = [request(2, 5), request(1, 3), request(1, 5, start=70)]
    assert answers_of(joiner, requests) == alone(model, requests)
    assert sorted(model.executed) == [(1, 3), (3, 5)]
    assert joiner.read_counters()["joined_requests_total", "padding"] == 0


def test_a_change_of_the_answers_after_the_trials_is_found_and_the_others_of_that_execution_are_right() -> (
    None
):
    model = Model()
    joiner = model.joiner()
    prove(joiner, 4, 4)
    model.score = share_of_batch
    requests = [request(2), request(1, start=50)]
    for _ in range(CHECK_EVERY):
        answers = answers_of(joiner, requests)
        if joiner.find_limit() is JoinLimit.ALONE:
            break
    assert joiner.find_limit() is JoinLimit.ALONE
    assert answers == alone(model, requests)


def test_an_error_goes_to_the_request_that_caused_it_and_proves_nothing() -> None:
    model = Model()
    joiner = model.joiner()
    bad = {"x": np.full((1, 4), -1)}
    for _ in range(2 * TRIALS):
        assert answers_of(joiner, [request(1), bad]) == [[10], "a row is below zero"]
    assert joiner.find_limit() is JoinLimit.ANY_SHAPE
    model.executed.clear()
    joiner.answer_requests([request(1), request(1, start=9)])
    assert len(model.executed) == 3, "it is still on trial"


def test_an_output_without_a_row_for_each_row_is_not_joined() -> None:
    model = Model(lambda rows: np.array([rows.sum()], np.float32))
    joiner = model.joiner()
    for _ in range(TRIALS):
        assert answers_of(joiner, [request(1), request(1, start=5)]) == [[10], [26]]
    assert joiner.find_limit() is JoinLimit.ALONE
    assert joiner.read_counters()["join_mismatches_total", "rows"] == 0, "nothing was compared"


def test_padding_that_costs_more_than_an_execution_is_not_done() -> None:
    model = Model(fixed_s=1.0, per_element_s=0.01)
    joiner = model.joiner()
    for length in (1, 2, 4, 16, 64, 500, 1000):
        joiner.answer_requests([request(1, length)])
    prove(joiner, 3, 5)
    model.executed.clear()
    # 2 rows of 1000 would take 21 s, instead of 2.03 s and 11 s.
    joiner.answer_requests([request(1, 3), request(1, 1000)])
    assert model.executed == [(1, 3), (1, 1000)]
    # 2 rows of 5 take 1.1 s, instead of 1.03 s and 1.05 s.
    model.executed.clear()
    joiner.answer_requests([request(1, 3), request(1, 5)])
    assert model.executed == [(2, 5)]


def test_an_estimate_that_forbids_joining_is_measured_again_now_and_then() -> None:
    model = Model()
    joiner = model.joiner()
    prove(joiner, 3, 5)
    model.fixed_s, model.per_element_s = 0.0, 1.0
    for rows, length in ((1, 4), (1, 16), (2, 16)):
        for _ in range(60):
            joiner.answer_requests([request(rows, length)])
    model.executed.clear()
    for _ in range(EXPLORE_EVERY):
        joiner.answer_requests([request(1, 4), request(1, 16)])
    assert model.executed.count((2, 16)) == 1


def both(history: int, candidates: int, start: int = 1) -> Mapping[str, Array]:
    return {"history": request(1, history, start)["x"], "candidates": request(1, candidates, start)["x"]}


def test_a_proof_for_one_input_is_none_for_another() -> None:
    executed: list[tuple[int, ...]] = []

    def execute(inputs: Inputs) -> Answer:
        executed.append(inputs["history"].shape)
        return [masked_sum(inputs["history"]) + mean(inputs["candidates"])]

    joiner = RequestJoiner(execute, JoinMode.CHECKED, clock=lambda: 0.0)
    for _ in range(TRIALS):
        joiner.answer_requests([both(3, 4), both(5, 4)])
    executed.clear()
    joiner.answer_requests([both(3, 4), both(5, 4)])
    assert executed == [(2, 5)]
    assert answers_of(joiner, [both(5, 2), both(5, 4)]) == [[16.5], [17.5]]
    assert joiner.find_limit() is JoinLimit.SAME_SHAPE
    executed.clear()
    joiner.answer_requests([both(3, 4), both(5, 4)])
    assert executed == [(2, 5)], "what is proved is used still"


def test_equal_requests_prove_nothing_and_are_not_executed_twice() -> None:
    model = Model(lambda rows: masked_sum(rows) - masked_sum(rows).mean())
    joiner = model.joiner()
    for _ in range(2 * TRIALS):
        joiner.answer_requests([request(1), request(1)])
    assert len(model.executed) == 4 * TRIALS
    assert answers_of(joiner, [request(1), request(1, start=9)]) == [[0], [0]]
    assert joiner.find_limit() is JoinLimit.ALONE


def test_an_answer_to_a_request_that_fails_alone_is_a_mismatch() -> None:
    def execute(inputs: Inputs) -> Answer:
        x = inputs["x"]
        return ValueError("too short") if x.shape[1] < 3 else [masked_sum(x)]

    joiner = RequestJoiner(execute, JoinMode.CHECKED)
    assert answers_of(joiner, [request(1, 2), request(1, 3)]) == ["too short", [6]]
    assert joiner.find_limit() is JoinLimit.SAME_SHAPE


def test_a_small_number_beside_a_large_one_is_compared_with_its_own_kind() -> None:
    model = Model(lambda rows: np.stack([masked_sum(rows) * 2e5, share_of_batch(rows)], axis=1))
    joiner = model.joiner()
    joiner.answer_requests([request(1), request(1, start=9)])
    assert joiner.find_limit() is JoinLimit.ALONE


def test_rounding_is_no_mismatch_and_a_difference_of_a_thousandth_is() -> None:
    noise = [1.0, 1.0, 1.0]
    model = Model(lambda rows: masked_sum(rows) * np.float32(noise[len(rows) - 1]))
    joiner = model.joiner()
    noise[1] = 1 + 5e-5
    joiner.answer_requests([request(1), request(1, start=9)])
    assert joiner.find_limit() is JoinLimit.ANY_SHAPE
    noise[1] = 1 + 1e-3
    joiner.answer_requests([request(1), request(1, start=9)])
    assert joiner.find_limit() is JoinLimit.ALONE


def test_infinite_numbers_and_nan_are_equal_to_themselves() -> None:
    scales = OutputScales()
    odd = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert scales.is_same_answer([odd], [odd.copy()])
    assert not scales.is_same_answer([odd], [np.array([np.nan, np.inf, np.inf, 1.0], np.float32)])
    assert not scales.is_same_answer([odd], [np.array([0.0, np.inf, -np.inf, 1.0], np.float32)])


def test_a_request_that_is_long_does_not_make_many_short_ones_as_long() -> None:
    model = Model()
    joiner = model.joiner()
    requests = [*(request(1, length) for length in range(1, 9)), request(1, 20_000)]
    for _ in range(EXPLORE_EVERY + 1):
        joiner.answer_requests(requests)
    assert max(rows * length for rows, length in model.executed) <= 4 * 20_036
    assert (len(requests), 20_000) not in model.executed


def test_without_memory_for_the_joined_inputs_requests_are_executed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    model = Model()
    joiner = model.joiner()
    prove(joiner, 4, 4)
    monkeypatch.setattr("tidegate_dataplane.batching.request_joiner.join_inputs", fail)
    assert answers_of(joiner, [request(1), request(1, start=5)]) == [[10], [26]]
    assert joiner.find_limit() is JoinLimit.ANY_SHAPE


def test_an_execution_that_is_too_large_does_not_end_the_joining_of_smaller_ones() -> None:
    def execute(inputs: Inputs) -> Answer:
        x = inputs["x"]
        return MemoryError("bad_alloc") if len(x) > 4 else [masked_sum(x)]

    joiner = RequestJoiner(execute, JoinMode.CHECKED)
    prove(joiner, 4, 4)
    for _ in range(2 * TRIALS):
        assert answers_of(joiner, [request(3), request(3, start=5)])[0] == [10, 26, 42]
    assert joiner.find_limit() is JoinLimit.ANY_SHAPE
    joiner.answer_requests([request(1), request(2)])
    assert joiner.joined_requests == 2


def test_every_member_of_an_execution_is_checked_at_some_time() -> None:
    check = JoinCheck()
    check.state = JoinState.PROVED
    picked = [position for _ in range(6 * CHECK_EVERY) for position in check.pick_requests(3)]
    assert sorted(set(picked)) == [0, 1, 2]


def test_on_trust_only_requests_of_one_shape_are_joined_and_nothing_is_compared() -> None:
    model = Model(share_of_batch)
    joiner = model.joiner(JoinMode.TRUSTED)
    joiner.answer_requests([request(1), request(2), request(1, 5)])
    assert model.executed == [(3, 4), (1, 5)]
    assert joiner.find_limit() is None


def test_texts_are_padded_with_empty_ones() -> None:
    seen: list[Array] = []

    def execute(inputs: Inputs) -> Answer:
        seen.append(inputs["x"])
        return [np.array([sum(len(text) for text in row) for row in inputs["x"]], np.int64)]

    joiner = RequestJoiner(execute, JoinMode.CHECKED)
    short = {"x": np.array([["a"]], dtype=object)}
    long = {"x": np.array([["bb", "ccc"]], dtype=object)}
    for _ in range(TRIALS + 1):
        answers = joiner.answer_requests([short, long])
    assert [answer[0].tolist() for answer in answers if not isinstance(answer, Exception)] == [[1], [5]]
    assert [["a", ""], ["bb", "ccc"]] in [array.tolist() for array in seen]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=6), max_size=12),
    st.sampled_from([masked_sum, mean, share_of_batch]),
)
def test_whatever_arrives_each_answer_is_the_one_that_the_request_gets_alone(
    arrivals: list[list[tuple[int, int]]], score: Any
) -> None:
    model = Model(score)
    joiner = model.joiner()
    for shapes in arrivals:
        requests = [
            request(rows, length, start=position + 1) for position, (rows, length) in enumerate(shapes)
        ]
        assert answers_of(joiner, requests) == alone(model, requests)


class TestExecutionCost:
    def test_nothing_is_estimated_from_one_size(self) -> None:
        cost = ExecutionCost()
        cost.record_execution(10, 1.0)
        assert cost.estimate_seconds(10) is None

    def test_lines_between_and_beyond_what_was_measured(self) -> None:
        cost = ExecutionCost()
        for elements in (16, 64, 256):
            cost.record_execution(elements, 1.0 + elements / 100)
        assert cost.estimate_seconds(1) == pytest.approx(1.16)
        assert cost.estimate_seconds(100) == pytest.approx(2.0)
        assert cost.estimate_seconds(1000) == pytest.approx(11.0)

    def test_one_slow_execution_counts_little(self) -> None:
        cost = ExecutionCost()
        cost.record_execution(16, 1.0)
        cost.record_execution(64, 2.0)
        cost.record_execution(64, 500.0)
        assert cost.estimate_seconds(64) == pytest.approx(2.2)


def test_answers_that_are_rounded_otherwise_alone_do_not_end_the_joining() -> None:
    model = Model()

    def execute_rounded(inputs: Inputs) -> Answer:
        answer = model.execute(inputs)
        # As an engine in 16 bits, which has another error for each number of rows.
        return answer if isinstance(answer, Exception) else [answer[0] * (1 + 0.003 * (len(inputs["x"]) % 3))]

    both = [request(1), request(2, start=9)]
    rounded = RequestJoiner(execute_rounded, JoinMode.CHECKED, clock=lambda: model.now_s)
    exact = RequestJoiner(execute_rounded, JoinMode.CHECKED, model.execute, clock=lambda: model.now_s)
    for joiner in (rounded, exact):
        for _ in range(CHECK_EVERY + TRIALS):
            joiner.answer_requests(both)
    assert rounded.find_limit() is JoinLimit.ALONE
    assert exact.find_limit() is JoinLimit.ANY_SHAPE
    assert exact.joined_requests > CHECK_EVERY
