"""What the demo makes of Prometheus's answers."""

from typing import Any

import pytest
from requests import ConnectionError as NoConnection

from tidegate_localcluster.demo.prometheus import DataPlaneCounters, LoadMetrics


class FakePrometheus:
    """Answers by the metric that a query names."""

    def __init__(self, answers: dict[str, list[dict[str, Any]]]) -> None:
        self._answers = answers

    def custom_query(self, query: str) -> list[dict[str, Any]]:
        return next((answer for name, answer in self._answers.items() if name in query), [])


def metrics(answers: dict[str, list[dict[str, Any]]] | None) -> LoadMetrics:
    made = LoadMetrics("127.0.0.1:9", "ns", "din", "din", catch_up_s=0.0)
    if answers is not None:
        made._prometheus = FakePrometheus(answers)  # type: ignore[assignment]
    return made


def value(number: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [0, number]}


def test_counts_since_the_beginning_by_version() -> None:
    found = metrics(
        {
            "rq_total": [value("150")],
            "request_success": [value("40", version="1"), value("60", version="2")],
            "quantile(0.5,": [value("1.5")],
            "quantile(0.99,": [value("9.5")],
        }
    ).observe_since(DataPlaneCounters(50.0, {"1": 5.0}), expected=100, seconds=3.0)
    assert found is not None
    assert (found.envoy, found.triton) == (100, {"1": 35, "2": 60})
    assert (found.p50_ms, found.p99_ms) == (1.5, 9.5)


def test_a_counter_that_restarted_counts_from_zero() -> None:
    found = metrics({"rq_total": [value("150")], "request_success": [value("4", version="1")]}).observe_since(
        DataPlaneCounters(50.0, {"1": 500.0}), expected=100, seconds=3.0
    )
    assert found is not None
    assert found.triton == {"1": 4}


def test_no_observations_are_no_latency() -> None:
    found = metrics({"rq_total": [value("1")], "quantile": [value("NaN")]}).observe_since(
        DataPlaneCounters(0.0, {}), 1, 1.0
    )
    assert found is not None
    assert found.p99_ms is None


def test_prometheus_that_does_not_answer_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoConnection("refused")

    made = metrics({})
    monkeypatch.setattr(made._prometheus, "custom_query", refuse)
    assert made.read_counters() is None


def test_requests_that_were_counted_late_are_not_counted_twice() -> None:
    before = DataPlaneCounters(50.0, {"1": 5.0}).add_requests("1", 79)
    found = metrics(
        {"rq_total": [value("229")], "request_success": [value("124", version="1"), value("60", version="2")]}
    ).observe_since(before, expected=100, seconds=3.0)
    assert found is not None
    assert (found.envoy, found.triton) == (100, {"1": 40, "2": 60})
