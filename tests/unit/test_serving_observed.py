"""What the agents know that the cache does not."""

from __future__ import annotations

from builders.inference import an_inference
from tidegate_controllers.serving import is_cache_stale
from tidegate_dataplane.contract import AgentPhase, AgentReport


def a_report(generation: int) -> AgentReport:
    return AgentReport(pod="p", epoch=1, generation=generation, phase=AgentPhase.READY)


def test_agent_that_heard_of_a_later_generation_gives_a_lagging_cache_away() -> None:
    inference = an_inference(metadata={"generation": 2})
    assert is_cache_stale(inference, {"a": a_report(2), "b": a_report(3)})
    assert not is_cache_stale(inference, {"a": a_report(2), "b": a_report(1)})
    assert not is_cache_stale(inference, {})
