"""Versions change under load: every request is answered, by exactly one version. Bad ones are in test_failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from builders.waiting import wait_until
from fixtures.installed import Space

REQUESTS = 2_000


@pytest.mark.no_rerun("a lost request, a wrong answer")
def test_swaps_and_rollbacks_under_load_lose_no_request(space: Space) -> None:
    """For a million answers in bench/churn.py; how soon a kept version is back on every replica in bench/rollback.py."""
    space.publish("probe", 1, 2)
    space.inference(replicas=2)
    space.access()
    space.ready()
    with space.load(1, 2) as load:
        for _ in range(2):
            space.swap_version("probe", 2)
            assert space.status("inference", "probe")["versions"]["loaded"] == ["1", "2"]
            # An agent asks its Triton for a second, and reports what is served without it where that does not answer.
            memory = wait_until(lambda: _measured(space), "the memory of both versions is known")
            # A runner with NumPy and ONNX Runtime takes tens of megabytes; two would be nothing measured twice over.
            assert all(10 << 20 < each["bytes"] < 200 << 20 for each in memory)
            before = space.count_answers_by_pod(1)
            space.swap_version("probe", 1)
            wait_until(
                lambda: _grown(before, space.count_answers_by_pod(1)),  # noqa: B023
                "version 1 answers on every replica",
            )
        load.wait_sent(REQUESTS, timeout_s=200)
        report = load.finish()

    assert report.problems == ()
    assert report.sent >= REQUESTS
    assert set(report.versions) == {"1", "2"}
    assert sum(report.versions.values()) == report.sent
    assert space.count_at_gateways("envoy_cluster_upstream_rq_completed") >= report.sent


def _measured(space: Space) -> Sequence[Mapping[str, Any]] | None:
    """What the status says of the memory, once that is of both versions."""
    memory: Sequence[Mapping[str, Any]] = space.status("inference", "probe")["versions"].get("memory", ())
    return memory if [each["version"] for each in memory] == ["1", "2"] else None


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return set(after) == set(before) and all(after[name] > before[name] for name in before)
