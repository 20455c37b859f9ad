"""The gateways' access log: from a request to the AllocationDecision by which the pod that answered is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Gateway, backend_of, with_decision
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.xds.snapshot_builder import SnapshotBuilder

CTR = (("x-tidegate-access", "ads/ctr"),)


async def logged(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """The lines of so many requests, once Envoy has written them."""

    async def written() -> list[dict[str, Any]] | None:
        text = (gateway.envoy.folder / "envoy.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return lines if len(lines) >= count else None

    return await eventually(written, f"{count} requests are in the log")


@pytest.fixture
def logging(gateway: Gateway) -> Gateway:
    """A gateway that writes a line for each request."""
    settings = ListenerSettings(address="127.0.0.1", port=0, access_log=True)
    gateway.control_plane.builder = SnapshotBuilder(settings)
    return gateway


async def test_a_line_of_the_log_leads_to_the_decision(logging: Gateway) -> None:
    upstream = await logging.upstream("ctr")
    access = a_model_access(routes=[a_route("default", "ctr")])
    client = await logging.start(access, with_decision(backend_of("ctr", upstream), "gpu-a-7"))
    assert await client.infer(metadata=CTR) == "ctr"
    await logging.control_plane.push(access, with_decision(backend_of("ctr", upstream), "gpu-a-8"))
    assert await client.infer(metadata=CTR) == "ctr"
    # What was there before has no decision, as has an Inference whose replicas nobody shares out.
    await logging.control_plane.push(access, backend_of("ctr", upstream))
    assert await client.infer(metadata=CTR) == "ctr"

    lines = await logged(logging, 3)
    assert [line["decision"] for line in lines] == ["gpu-a-7", "gpu-a-8", None]
    assert {line["target"] for line in lines} == {"ads/ctr"}
    assert {line["envoy_cluster"] for line in lines} == {"inference/ads/ctr/grpc"}
    assert len({line["request"] for line in lines}) == 3
    assert upstream.inferences == 3


async def test_nothing_is_written_unless_it_is_asked_for(gateway: Gateway) -> None:
    upstream = await gateway.upstream("ctr")
    client = await gateway.start(a_model_access(), with_decision(backend_of("ctr", upstream), "gpu-a-7"))
    assert await client.infer(metadata=CTR) == "ctr"
    gateway.envoy.stop()  # whatever it had to write is written
    assert "{" not in (gateway.envoy.folder / "envoy.log").read_text()
