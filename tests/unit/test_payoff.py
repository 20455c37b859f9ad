"""Whether a graph pays: at random requests, and at those of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from builders.onnx_models import a_model, a_tensor
from tidegate_dataplane.compiler import optimize
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.graph_passes import pipeline
from tidegate_dataplane.graph_passes.payoff import (
    ClientSpeedup,
    choose_requests,
    explain_slowness,
    has_equal_rows,
)
from tidegate_dataplane.graph_passes.pipeline import (
    OptimizedModel,
    Pass,
    PassOutcome,
    Rewrite,
    list_passes,
    optimize_model,
)
from tidegate_dataplane.graph_passes.proof import Session
from tidegate_dataplane.graph_passes.samples import Request

SAME = Pass("same", (lambda model: 1,), 0.0)


def measure_by_rows(
    monkeypatch: pytest.MonkeyPatch, **ratios: float
) -> list[tuple[Session, Session, Request, Request]]:
    """Let a request of `rows_N` rows have that speed-up and others 1.5; return what is measured."""
    measured: list[tuple[Session, Session, Request, Request]] = []

    def measure(before: Session, after: Session, pairs: list[tuple[Request, Request]]) -> list[float]:
        measured.extend((before, after, *pair) for pair in pairs)
        return [ratios.get(f"rows_{max(len(array) for array in first.values())}", 1.5) for first, _ in pairs]

    monkeypatch.setattr(pipeline, "measure_speedups", measure)
    return measured


def a_lookup() -> onnx.ModelProto:
    return a_model(
        [a_tensor("ids", ["rows"], onnx.TensorProto.INT64)],
        [a_tensor("out", ["rows", 4])],
        nodes=[helper.make_node("Gather", ["table", "ids"], ["out"])],
        weights=[numpy_helper.from_array(np.eye(4, dtype=np.float32), "table")],
    )


def a_sum() -> onnx.ModelProto:
    """Return a model of user and item, both [rows, 4], whose rows of the user can be shared."""
    return a_model(
        [a_tensor("user", ["rows", 4]), a_tensor("item", ["rows", 4])],
        [a_tensor("out", ["rows", 4])],
        nodes=[
            helper.make_node("Relu", ["user"], ["taste"]),
            helper.make_node("Add", ["taste", "item"], ["out"]),
        ],
    )


def ask(rows: int, first: int = 0) -> Request:
    return {"ids": np.resize([first, 1, 2, 3], rows)}


@pytest.mark.parametrize(
    ("ratio", "reason"), [(0.96, "slower at a client's request of 40 rows: 0.96x"), (0.98, "")]
)
def test_a_pass_that_is_slower_at_the_shape_of_the_clients_requests_is_left_out(
    monkeypatch: pytest.MonkeyPatch, ratio: float, reason: str
) -> None:
    measured = measure_by_rows(monkeypatch, rows_40=ratio)
    request = ask(40)
    optimized = optimize_model(a_lookup(), [ask(3), request], passes=[SAME])
    [outcome] = optimized.outcomes
    assert (outcome.applied, outcome.reason) == (not reason, reason)
    assert outcome.client_speedups == (ClientSpeedup(3, 1.5, False), ClientSpeedup(40, ratio, True))
    assert outcome.speedups == {1: 1.5, 16: 1.5, 128: 1.5}, "random requests alone"
    assert any(before["ids"] is request["ids"] for _, _, before, _ in measured), "as the client sent it"
    [without] = optimize_model(a_lookup(), [ask(3)], passes=[SAME]).outcomes
    assert without.applied


def test_what_the_model_refuses_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_by_rows(monkeypatch, rows_40=0.5)
    optimized = optimize_model(a_lookup(), [ask(40, first=7), ask(5)], passes=[SAME])
    [outcome] = optimized.outcomes
    assert (outcome.applied, outcome.reason) == (True, "")
    assert optimized.client_speedups == (ClientSpeedup(5, 1.5, False),)
    assert optimized.compared_requests == 1


def test_a_pass_that_does_not_pay_at_random_requests_is_not_measured_at_those_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = measure_by_rows(monkeypatch, rows_16=0.5)
    [outcome] = optimize_model(a_lookup(), [ask(40)], passes=[SAME]).outcomes
    assert outcome.reason == "slower at 16 rows: 0.50x"
    assert {len(request["ids"]) for *_, request in measured} == {1, 16, 128}


def test_the_fastest_variant_is_the_one_that_is_fastest_at_the_clients_shape_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(before: Session, after: Session, pairs: list[tuple[Request, Request]]) -> list[float]:
        # The second variant, whose sessions come later, is three times as fast for the client alone.
        sessions.setdefault(id(after), after)
        is_second = list(sessions).index(id(after)) > 0
        return [
            (3.0 if is_second else 1.0) if len(first["ids"]) == 40 else (1.4 if is_second else 1.5)
            for first, _ in pairs
        ]

    sessions: dict[int, Session] = {}
    monkeypatch.setattr(pipeline, "measure_speedups", measure)
    variants: tuple[Rewrite, ...] = (lambda model: 1, lambda model: 2)
    for requests, changes in (([ask(40)], 2), ([], 1)):
        sessions.clear()
        [outcome] = optimize_model(a_lookup(), requests, passes=[Pass("two", variants, 0.0)]).outcomes
        assert outcome.changes == changes


def test_the_most_frequent_shapes_are_measured_with_the_first_request_of_each() -> None:
    requests = [ask(rows, first) for first, rows in enumerate((7, 9, 2, 9, 5, 2, 9))]
    chosen = choose_requests(requests)
    assert [(len(request["ids"]), int(request["ids"][0])) for request in chosen] == [(9, 1), (2, 2), (7, 0)]
    assert choose_requests([]) == []


def a_pair(user: int, items: int, *, differ: bool = False) -> Request:
    users = np.ones((user, 4), np.float32)
    users[-1] += differ
    return {"user": users, "item": np.ones((items, 4), np.float32)}


@pytest.mark.parametrize(
    ("pair", "ratio", "reason"),
    [
        (a_pair(1, 9), 0.96, "slower at a client's request of 9 rows: 0.96x"),
        (a_pair(9, 9), 0.96, "slower at a client's request of 9 rows: 0.96x"),
        (a_pair(9, 9), 0.98, ""),
        (a_pair(1, 7), 0.96, ""),
        (a_pair(9, 9, differ=True), 0.96, ""),
        (a_pair(9, 9, differ=True), 0.89, "slower at a client's request of 9 rows: 0.89x"),
        (a_pair(1, 1), 0.96, ""),
        (a_pair(1, 1), 0.89, "slower at a client's request of 1 rows: 0.89x"),
    ],
)
def test_a_request_with_nothing_to_share_may_take_a_tenth_longer(
    monkeypatch: pytest.MonkeyPatch, pair: Request, ratio: float, reason: str
) -> None:
    rows = len(pair["item"])
    measured = measure_by_rows(monkeypatch, **{f"rows_{rows}": ratio})
    share = list_passes(["user"])[-2]
    optimized = optimize_model(a_sum(), [pair], shared_inputs=["user"], passes=[share], measured_rows=(64,))
    [outcome] = optimized.outcomes
    assert (outcome.applied, outcome.reason) == (not reason, reason)
    is_sent_once = has_equal_rows(pair, ["user"])
    forms = {(len(before["user"]), len(after["user"])) for _, _, before, after in measured}
    assert (rows, 1 if is_sent_once else rows) in forms


@pytest.mark.parametrize(
    ("speedups", "clients", "shares_rows", "reason"),
    [
        ({1: 0.98, 16: 1.1}, (), False, ""),
        ({1: 0.96, 16: 2.0}, (), False, "slower at 1 rows: 0.96x"),
        ({1: 0.91, 16: 2.0}, (), True, ""),
        ({1: 0.89, 16: 2.0}, (), True, "slower at 1 rows: 0.89x"),
        ({1: 1.0, 16: 0.96}, (), True, "slower at 16 rows: 0.96x"),
        ({1: 1.2, 16: 0.98}, (), True, "no faster: 0.98x"),
        ({1: 0.96}, (), True, "slower at 1 rows: 0.96x"),
        ({16: 1.01}, (ClientSpeedup(16, 0.975, True),), False, "no faster: 0.99x"),
        ({16: 1.1}, (ClientSpeedup(16, 1.5, True), ClientSpeedup(16, 0.9, True)), False,
         "slower at a client's request of 16 rows: 0.90x"),
        ({16: 1.01}, (ClientSpeedup(1, 0.95, False),), True, ""),
        ({2: 0.96, 16: 1.4}, (ClientSpeedup(2, 0.96, False),), True, ""),
        ({2: 0.89, 16: 1.4}, (), True, "slower at 2 rows: 0.89x"),
        ({2: 0.96, 16: 1.4}, (), False, "slower at 2 rows: 0.96x"),
    ],
)  # fmt: skip
def test_a_graph_pays_where_requests_have_what_it_is_made_for(
    speedups: dict[int, float], clients: tuple[ClientSpeedup, ...], shares_rows: bool, reason: str
) -> None:
    assert explain_slowness(speedups, clients, shares_rows=shares_rows) == reason


@pytest.mark.parametrize(("ratio", "applied"), [(0.9, False), (1.1, True)])
def test_a_version_serves_as_published_if_all_passes_together_are_slower_at_the_clients_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, applied: bool
) -> None:
    source, output = tmp_path / "model.onnx", tmp_path / "out"
    output.mkdir()
    onnx.save(a_lookup(), source)
    optimized = OptimizedModel(
        a_lookup(), (), (PassOutcome("same", True, ""),), {1: 1.2}, (ClientSpeedup(40, ratio, True),)
    )
    monkeypatch.setattr(optimize, "optimize_model", lambda *_, **__: optimized)
    assert optimize.compile_file([str(source), str(output)]) == 0
    result = CompileResult.model_validate_json((output / "result.json").read_bytes())
    [outcome] = result.passes
    assert (bool(result.graph_sha256), outcome.applied) == (applied, applied)
    assert outcome.reason == (
        ""
        if applied
        else "all passes together are no faster: 1.20x at 1 rows, 0.90x at a client's request of 40 rows"
    )


@pytest.mark.parametrize(("limit", "rows"), [(1, (1,)), (64, (1, 16, 64)), (500, (1, 16, 128))])
def test_numbers_of_rows_that_no_request_has_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, rows: tuple[int, ...]
) -> None:
    source, output = tmp_path / "model.onnx", tmp_path / "out"
    output.mkdir()
    onnx.save(a_lookup(), source)
    measured: list[tuple[int, ...]] = []

    def record(*_: object, measured_rows: Sequence[int], **__: object) -> OptimizedModel:
        measured.append(tuple(measured_rows))
        return OptimizedModel(a_lookup(), (), (), {})

    monkeypatch.setattr(optimize, "optimize_model", record)
    assert optimize.compile_file([str(source), str(output), f"--max-rows={limit}"]) == 0
    assert measured == [rows]
