"""Since when a version answers, and what the agent's counters make of the ingester's reports."""

from __future__ import annotations

from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.contract import DeadLetterReport, EventStreamReport, RefusalReason


def shown(metrics: AgentMetrics) -> tuple[float | None, float | None]:
    value = metrics.registry.get_sample_value
    return value("tidegate_agent_serving_version"), value("tidegate_agent_serving_since_timestamp_seconds")


def test_a_version_is_as_old_as_its_first_answer() -> None:
    metrics = AgentMetrics()
    assert shown(metrics) == (0, 0)
    metrics.set_serving_version(3, 1000.0)
    metrics.set_serving_version(3, 1030.0)
    assert shown(metrics) == (3, 1000)
    metrics.set_serving_version(4, 1060.0)
    assert shown(metrics) == (4, 1060)
    metrics.set_serving_version(0, 1090.0)
    assert shown(metrics) == (0, 0)


def clicks(stored: int, lag_s: float = 0.5, **refused: int) -> EventStreamReport:
    """A report about source clicks; refused events by reason."""
    by_reason = {RefusalReason(reason): count for reason, count in refused.items()}
    return EventStreamReport(source="clicks", caught_up=True, lag_s=lag_s, stored=stored, refused=by_reason)


def counted(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tidegate_agent_events_{name}", {"source": "clicks", **labels})


def test_events_are_counted_by_what_reports_add() -> None:
    metrics = AgentMetrics()
    metrics.set_events([clicks(10)])
    # A rate of refused events needs a series before the first one.
    assert {counted(metrics, "refused_total", reason=reason) for reason in RefusalReason} == {0}
    metrics.set_events([clicks(25, 400.0, TooLate=3)])

    assert counted(metrics, "lag_seconds") == 400
    assert counted(metrics, "stored_total") == 25
    assert counted(metrics, "refused_total", reason="TooLate") == 3


def test_a_missing_report_counts_nothing_twice() -> None:
    metrics = AgentMetrics()
    metrics.set_events([clicks(10, TooLate=1)])
    metrics.set_events([])
    metrics.set_events([clicks(12, TooLate=1)])

    assert counted(metrics, "stored_total") == 12
    assert counted(metrics, "refused_total", reason="TooLate") == 1


def test_a_stream_that_begins_anew_adds_its_events() -> None:
    metrics = AgentMetrics()
    metrics.set_events([clicks(10, TooLate=4)])
    metrics.set_events([clicks(3, TooLate=1)])

    assert counted(metrics, "stored_total") == 13
    assert counted(metrics, "refused_total", reason="TooLate") == 5


def test_dead_letters_are_counted_by_what_reports_add_and_only_where_there_are_some() -> None:
    metrics = AgentMetrics()
    metrics.set_events([clicks(10)])
    assert counted(metrics, "dead_letters_total") is None

    for written, failed in ((0, 0), (3, 1), (5, 1)):
        letters = DeadLetterReport(written=written, failed=failed)
        metrics.set_events([clicks(10).model_copy(update={"dead_letters": letters})])
    metrics.set_events([])

    assert counted(metrics, "dead_letters_total") == 5
    assert counted(metrics, "dead_letters_failed_total") == 1
