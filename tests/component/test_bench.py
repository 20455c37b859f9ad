"""`tidegate bench` against servers that answer, fail and dawdle, and through a real Envoy: what it says is what they counted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from builders.model_access import a_model_access, a_route
from builders.scenario import require_scenario
from fixtures.envoy import Gateway, Upstream, backend_of
from tidegate_localcluster.ports import ReservedPort


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Upstream]:
    upstream = Upstream("v1", "127.0.0.1")
    await upstream.start()
    yield upstream
    await upstream.stop()


def at(upstream: Upstream) -> str:
    return f"grpc://{upstream.endpoint.address}:{upstream.endpoint.grpc_port}"


async def bench(target: str, *arguments: str, status: int = 0) -> Mapping[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "bench", target, "--model", "ctr", "-o", "json", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == status, complained.decode()
    report: Mapping[str, Any] = json.loads(said)
    return report


async def test_so_many_at_once_are_what_the_server_saw(server: Upstream) -> None:
    server.delay_s = 0.02
    said = await bench(at(server), "--for", "1s", "--concurrency", "4")
    # One more was sent beforehand, to see that the model takes them.
    assert said["sent"] == said["answered"] == server.inferences - 1
    assert (said["errors"], said["failures"], said["rate"]) == ({}, [], None)
    assert 20.0 <= said["latencyP50Ms"] <= said["latencyP90Ms"] <= said["latencyP99Ms"]
    assert said["requestsPerSecond"] <= 4 / 0.02


async def test_a_rate_is_kept_whatever_the_answers_and_waiting_counts(server: Upstream) -> None:
    # Two at once that take 100 ms each are 20 per second: the others are due and not sent.
    server.delay_s = 0.1
    slow = await bench(
        *(at(server), "--for", "2s", "--rate", "50", "--concurrency", "2", "--errors", "10%"), status=1
    )
    assert slow["notSent"] > 40
    assert slow["sent"] + slow["notSent"] == 100
    assert "were not answered" in slow["failures"][0]


async def test_errors_are_told_by_kind_and_thresholds_decide(server: Upstream) -> None:
    # The first of all is answered each time: the one that looks whether the model takes them.
    server.fail_with, server.fail_every, server.delay_s = grpc.StatusCode.RESOURCE_EXHAUSTED, 2, 0.05
    said = await bench(
        at(server), "--for", "1s", "--concurrency", "1", "--errors", "70%", "--p99", "20ms", status=1
    )
    require_scenario(said["sent"] > 2, "there is time for more than two requests")
    # Each second one, beginning with the first that counts: of three at most two.
    failed = (said["sent"] + 1) // 2
    assert said["errors"] == {"RESOURCE_EXHAUSTED": failed}
    assert said["errorShare"] == pytest.approx(failed / said["sent"], abs=1e-6)
    (late,) = said["failures"]
    assert "above 20 ms" in late


@pytest.mark.slow("what an access adds to a request is one header")
async def test_a_gateway_takes_them_to_the_access_that_is_named(gateway: Gateway) -> None:
    good, other = await gateway.upstream("v1"), await gateway.upstream("v2")
    accesses = [a_model_access("ctr", routes=[a_route("all", "ctr")])]
    accesses.append(a_model_access("other", routes=[a_route("all", "cvr")]))
    await gateway.start(*accesses, backend_of("ctr", good), backend_of("cvr", other))
    said = await bench(
        f"grpc://{gateway.envoy.address}", "--for", "1s", "--rate", "200", "--access", "ads/ctr"
    )
    assert said["answered"] == good.inferences - 1
    assert other.inferences == 0
    assert said["server"] is None


async def test_nobody_at_the_address_is_an_error_and_no_figure() -> None:
    with ReservedPort("127.0.0.1") as nobody:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", "bench", f"grpc://127.0.0.1:{nobody.number}", "--model", "x"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, said) == (3, b"")
    assert b"UNAVAILABLE" in complained
