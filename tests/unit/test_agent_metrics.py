"""Since when a version answers: from its first sight on, and not any more once another does."""

from __future__ import annotations

from tidegate_dataplane.agent.metrics import AgentMetrics


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
