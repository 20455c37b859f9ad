"""The demand of a past time, as Prometheus has it: messages of a stream are counted by its pods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.api.meta import ObjectKey
from tidegate.resources.names import make_child_name
from tidegate.telemetry import expressions
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.telemetry.scope import INFERENCE_PODS

BEGIN = datetime(2026, 1, 29, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RANDOM = "x7k2p"
LONGEST = "a-stream-with-a-name-that-is-longer-than-its-pods-can-carry-v2"


def name_pod(name: str, template_hash: str) -> str:
    """Return the name that Kubernetes gives a pod of an Inference's Deployment."""
    return f"{make_child_name('inf', name)}-{template_hash}-"[:58] + RANDOM


@pytest.mark.parametrize("template_hash", ["7d9f8b6c", "7d9f8b6c5", "7d9f8b6c5d"])
@pytest.mark.parametrize(
    "name", ["clicks", "clicks-v2", "clicks.v2", *(LONGEST[:end] for end in range(40, 63))]
)
async def test_messages_count_for_the_stream_whose_pods_received_them(
    monkeypatch: pytest.MonkeyPatch, name: str, template_hash: str
) -> None:
    name = name.rstrip("-")
    source, other = PrometheusRecording("http://prometheus"), ObjectKey("ads", "clicks-7d9f8b6c")
    found = re.fullmatch(INFERENCE_PODS, name_pod(name, template_hash))
    assert found is not None

    async def query_range(
        expression: str, begin: datetime, end: datetime, step: timedelta, *, max_bytes: int
    ) -> Sequence[Any]:
        del begin, step, max_bytes
        if expressions.DELIVERED not in expression:
            return []
        return [{"metric": {"namespace": "ads", "inference": found[1]}, "values": [(end.timestamp(), "7.5")]}]

    monkeypatch.setattr(source._api, "query_range", query_range)
    key = ObjectKey("ads", name)
    assert await source.read_rates(frozenset({key, other}), BEGIN, 2, MINUTE) == {
        key: [None, 7.5],
        other: [None, None],
    }


def test_a_password_in_the_address_is_in_no_message() -> None:
    source = PrometheusRecording("https://reader:s3cret@metrics:9090/prometheus")
    assert source.name == "Prometheus https://[redacted]@metrics:9090/prometheus"
