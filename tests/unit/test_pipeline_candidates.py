"""Which rows a part with candidates gets, and what becomes of the others."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_dataplane.contract import CandidateCut, ModelCall, PipelinePart, PipelinePlan, TensorSpec
from tidegate_dataplane.pipeline.candidates import select_candidates
from tidegate_dataplane.pipeline.failures import CallError, FailureKind
from tidegate_dataplane.pipeline.rows import RequestBatch
from tidegate_dataplane.pipeline.stages import ModelStages

CUT = CandidateCut(by="prerank", max_rows=3, min_rows=1, filler="-1")
LATE = CallError(FailureKind.TIMED_OUT, "no answer")


def a_part(name: str, cut: CandidateCut | None = None, default: str | None = None) -> PipelinePart:
    specs = (
        (TensorSpec(name="x", dtype="FP32", shape=(-1, 1)),),
        (TensorSpec(name="y", dtype="FP32", shape=(-1, 1)),),
    )
    call = ModelCall(title=name, headers={}, model=name, inputs=specs[0], outputs=specs[1], timeout_us=1)
    return PipelinePart(name=name, call=call, default=default, cut=cut)


def column(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.float32).reshape(-1, 1)


def rows_of(batch: RequestBatch) -> list[list[float]]:
    return [batch.join_rows("x", (position,)).ravel().tolist() for position in range(len(batch))]


@given(
    st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(nan)), min_size=1, max_size=30),
    st.integers(1, 9),
)
def test_the_highest_are_selected_in_their_order_and_the_earlier_of_equal_ones(
    scores: list[float], limit: int
) -> None:
    cut = CandidateCut(by="prerank", max_rows=limit, min_rows=1, filler="0")
    by_score = sorted(
        range(len(scores)), key=lambda row: (-(scores[row] if scores[row] == scores[row] else -9.0), row)
    )
    selected = select_candidates(column(*scores), cut, fewest=False).rows.tolist()
    assert selected == sorted(by_score[:limit])
    assert select_candidates(column(*scores), cut, fewest=True).rows.tolist() == by_score[:1]


def test_a_part_gets_the_best_rows_of_each_request_and_fills_the_others() -> None:
    parts = [a_part("prerank"), a_part("rank", CUT)]
    batch = RequestBatch([{"x": column(10, 11, 12, 13, 14)}, {"x": column(20, 21)}])
    stages = ModelStages(parts, batch, [frozenset()] * 2)
    assert [(name, len(called)) for name, called in stages.first_calls] == [("prerank", 2)]
    ((name, called),) = stages.add_outcomes(
        "prerank", [{"y": column(0.1, 0.9, 0.5, 0.2, 0.7)}, {"y": column(2, 1)}]
    )
    assert (name, rows_of(called)) == ("rank", [[11, 12, 14], [20, 21]])
    assert stages.add_outcomes("rank", [{"y": column(5, 6, 7)}, {"y": column(8, 9)}]) == []
    first, second = (stages.get_outcomes(position)["rank"] for position in range(2))
    assert not isinstance(first, CallError)
    assert not isinstance(second, CallError)
    assert first["y"].ravel().tolist() == [-1, 5, 6, -1, 7]
    assert second["y"].ravel().tolist() == [8, 9]
    # The best row is the last by prerank of both requests: fewer candidates would not include it.
    assert stages.best_rows == {("rank", "no"): 2}


def test_a_request_that_asks_for_it_gets_the_fewest_candidates() -> None:
    stages = ModelStages(
        [a_part("prerank"), a_part("rank", CUT)],
        RequestBatch([{"x": column(1, 2, 3)}] * 2),
        [{"rank"}, frozenset()],
    )
    ((_, called),) = stages.add_outcomes("prerank", [{"y": column(0, 2, 1)}] * 2)
    assert rows_of(called) == [[2], [1, 2, 3]]
    stages.add_outcomes("rank", [{"y": column(7)}, {"y": column(1, 9, 1)}])
    outcome = stages.get_outcomes(0)["rank"]
    assert not isinstance(outcome, CallError)
    assert outcome["y"].ravel().tolist() == [-1, 7, -1]
    assert stages.best_rows == {("rank", "yes"): 1}


def test_features_are_cut_with_the_inputs() -> None:
    batch = RequestBatch([{"key": column(1, 2, 3, 4)}], [{"x": column(5, 6, 7, 8)}])
    stages = ModelStages([a_part("prerank"), a_part("rank", CUT)], batch, [{"rank"}])
    ((_, called),) = stages.add_outcomes("prerank", [{"y": column(0, 0, 3, 0)}])
    assert rows_of(called) == [[7]]


@pytest.mark.parametrize("default", ["0.5", None])
def test_a_request_without_an_answer_to_select_by_is_cut_by_its_order_or_not_asked(
    default: str | None,
) -> None:
    parts = [a_part("prerank", default=default), a_part("rank", CUT)]
    batch = RequestBatch([{"x": column(1, 2, 3, 4)}, {"x": column(5)}])
    stages = ModelStages(parts, batch, [frozenset()] * 2)
    ((_, called),) = stages.add_outcomes("prerank", [LATE, {"y": column(1)}])
    assert rows_of(called) == ([[1, 2, 3], [5]] if default else [[5]])
    stages.add_outcomes("rank", [{"y": column(1, 1, 1)}, {"y": column(2)}] if default else [{"y": column(2)}])
    assert isinstance(stages.get_outcomes(0)["rank"], CallError) is (default is None)
    assert not isinstance(stages.get_outcomes(1)["rank"], CallError)


def test_three_stages_follow_each_other_and_a_part_without_a_cut_delays_none() -> None:
    second = CandidateCut(by="rank", max_rows=1, min_rows=1, filler="0")
    parts = [a_part("prerank"), a_part("slow"), a_part("rank", CUT), a_part("final", second)]
    stages = ModelStages(parts, RequestBatch([{"x": column(1, 2, 3, 4)}]), [frozenset()])
    assert [name for name, _ in stages.first_calls] == ["prerank", "slow"]
    ((name, called),) = stages.add_outcomes("prerank", [{"y": column(0, 1, 2, 3)}])
    assert (name, rows_of(called)) == ("rank", [[2, 3, 4]])
    # Of the rows that rank did not get, none is a candidate: they have -1.
    ((name, called),) = stages.add_outcomes("rank", [{"y": column(9, 5, 5)}])
    assert (name, rows_of(called)) == ("final", [[2]])
    assert stages.add_outcomes("slow", [LATE]) == []


def test_one_stage_gets_fewer_candidates_and_the_others_as_many_as_before() -> None:
    final = CandidateCut(by="rank", max_rows=2, min_rows=1, filler="0")
    parts = [a_part("prerank"), a_part("rank", CUT), a_part("final", final)]
    plan = {"min": ([[4]], [[4]]), "min:rank": ([[4]], [[1, 4]]), "min:final": ([[2, 3, 4]], [[4]])}
    plan |= dict.fromkeys(("", "min:prerank", "min:other", "rank", "max"), ([[2, 3, 4]], [[3, 4]]))
    by_header = PipelinePlan(gateway="g:1", parts=tuple(parts), inputs=(), outputs=()).shortened_by_header
    for header, (ranked, finished) in plan.items():
        batch = RequestBatch([{"x": column(1, 2, 3, 4)}])
        stages = ModelStages(parts, batch, [by_header.get(header, frozenset())])
        ((_, called),) = stages.add_outcomes("prerank", [{"y": column(0, 1, 2, 3)}])
        assert rows_of(called) == ranked, header
        ((_, called),) = stages.add_outcomes("rank", [{"y": column(*range(len(ranked[0])))}])
        assert rows_of(called) == finished, header


def test_where_nothing_can_be_selected_nothing_is_asked() -> None:
    stages = ModelStages(
        [a_part("prerank"), a_part("rank", CUT)], RequestBatch([{"x": column(1)}]), [frozenset()]
    )
    assert stages.add_outcomes("prerank", [LATE]) == []
    assert stages.get_outcomes(0) == {"prerank": LATE, "rank": LATE}


def test_a_row_without_a_number_is_not_the_best_one() -> None:
    """NaN is the lowest for candidates, so it is for the best of them, too."""
    selection = select_candidates(column(3, 2, 1), CUT, fewest=False)
    assert selection.keeps_best(column(1, 0, nan), 1) is True
    assert selection.keeps_best(column(nan, 1, 0), 1) is False
