"""What the controllers tell of the allocator's last question, and whom."""

from __future__ import annotations

from datetime import UTC, datetime

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from builders.allocation import a_model, a_pool, a_snapshot
from tidegate.allocation import codec
from tidegate.api.allocation_decision import MeasuredValue
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.meta import ObjectKey
from tidegate.exporters.solver_inputs import SolverInput, SolverInputs
from tidegate.planning.allocator.latency import LatencyMeasurement
from tidegate.planning.allocator.value_mix import ValueRates
from tidegate.runtime.probes import Probes, ProbeServer
from tidegate.services.what_if import LastSolverInput

AT = datetime(2026, 1, 1, tzinfo=UTC)
MEASURED = ValueRates(offered=120.0, served=100.0, refused=15.0, lost=5.0)
LATENCIES = {"ads/ctr": LatencyMeasurement(0.05, 0.02, 0.4), "ads/new": LatencyMeasurement(0.05)}
ASKED = SolverInput(AT, PolicyMode.AUTO, a_snapshot(a_pool(), a_model()), {"ads/ctr": MEASURED}, LATENCIES)


@pytest.mark.parametrize(
    ("pool", "comes_from", "status", "said"),
    [
        ("gpu-a", "127.0.0.1", 200, ""),
        ("gpu-b", "127.0.0.1", 404, "has not looked at a ComputePool gpu-b"),
        ("gpu-a", "127.0.0.9", 403, "only the pod itself is told"),
    ],
)
async def test_only_the_pod_itself_is_told(pool: str, comes_from: str, status: int, said: str) -> None:
    questions = SolverInputs()
    questions.put(ObjectKey("", "gpu-a"), ASKED)
    server = ProbeServer(Probes(), CollectorRegistry(), questions.make_routes())
    connector = aiohttp.TCPConnector(local_addr=(comes_from, 0))
    async with (
        server.serve(host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://127.0.0.1:{port}/allocation/{pool}") as response,
    ):
        body = await response.json()
    assert response.status == status
    if status == 200:
        assert (body["pool"], body["at"], body["mode"]) == ("gpu-a", "2026-01-01T00:00:00Z", "Auto")
        assert codec.decode_snapshot(body["snapshot"]) == ASKED.snapshot
        last = LastSolverInput.model_validate(body)
        assert last.values == {"ads/ctr": MeasuredValue(offered=120, served=100, refused=15, lost=5)}
        assert {
            name: LatencyMeasurement(latency.slo_seconds, latency.p99_seconds, latency.utilization)
            for name, latency in last.latencies.items()
        } == LATENCIES
        # Controllers of the version before do not send them.
        del body["values"], body["latencies"]
        without = LastSolverInput.model_validate(body)
        assert (without.values, without.latencies) == ({}, {})
    else:
        assert said in body["error"]


def test_of_a_pool_that_is_gone_and_after_a_term_nothing_is_known() -> None:
    questions = SolverInputs()
    questions.put(ObjectKey("", "gpu-a"), ASKED)
    questions.put(ObjectKey("", "gpu-b"), ASKED)
    questions.forget(ObjectKey("", "gpu-a"))
    assert questions.solved_pools() == {ObjectKey("", "gpu-b")}
    questions.clear()
    assert questions.solved_pools() == set()
