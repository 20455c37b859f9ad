"""What a model server has counted, read right after it has answered: it counts a moment later."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tidegate.triton import load_generator as load
from tidegate.triton.load_generator import LoadGenerator

_messages: Any = import_module("tritonclient.grpc.service_pb2")


class Statistics:
    """Of a server whose counter goes on by these numbers, one at each look; the last one stays."""

    def __init__(self, *counted: int) -> None:
        self.counted = list(counted)
        self.looks = 0

    async def ModelStatistics(self, *_: object, **__: object) -> Any:  # noqa: N802  the name of the call
        self.looks += 1
        count = self.counted.pop(0) if len(self.counted) > 1 else self.counted[0]
        answer = _messages.ModelStatisticsResponse()
        answer.model_stats.add(name="ctr", version="1", inference_count=count, execution_count=count)
        return answer


async def counted(monkeypatch: pytest.MonkeyPatch, statistics: Statistics, inferences: int = 0) -> int:
    monkeypatch.setattr(load, "_COUNTED_S", 0.0)
    async with LoadGenerator("127.0.0.1:1", "ctr") as asked:
        asked._stub = statistics
        found = await asked.read_counters(inferences)
    assert found is not None
    return found.inferences


async def test_the_last_request_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await counted(monkeypatch, Statistics(7, 8, 9, 9)) == 9


async def test_a_count_that_rests_too_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await counted(monkeypatch, Statistics(7, 7, 7, 9, 9), inferences=9) == 9


async def test_others_that_ask_as_well_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = Statistics(*range(1000))
    assert await counted(monkeypatch, statistics) == statistics.looks - 1
    assert statistics.looks < 30
