"""The xDS server as other proxies than ours may treat it: slow, silent, or talking rubbish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from builders.fleet import a_backend
from builders.model_access import a_model_access
from builders.scenario import require_scenario
from builders.waiting import ends_in_time, eventually
from fixtures.envoy import ControlPlane
from tidegate.routing import protos
from tidegate.xds.resources import TypeUrl
from tidegate.xds.server import XdsServerSettings

SERVICE = "/envoy.service.discovery.v3.AggregatedDiscoveryService"
METHOD = f"{SERVICE}/DeltaAggregatedResources"
REQUEST = "envoy.service.discovery.v3.DeltaDiscoveryRequest"
RESPONSE = "envoy.service.discovery.v3.DeltaDiscoveryResponse"


@pytest_asyncio.fixture
async def control_plane() -> AsyncIterator[ControlPlane]:
    """A server that lets go of who reads nothing for ten seconds."""
    running = ControlPlane(XdsServerSettings(write_timeout_s=10.0, drain_s=30.0))
    await running.start()
    yield running
    await running.server.stop()


@pytest_asyncio.fixture
async def channel(control_plane: ControlPlane) -> AsyncIterator[grpc.aio.Channel]:
    # A small window: a server that writes much to somebody who reads nothing is soon held up.
    options = [("grpc.http2.lookahead_bytes", 65535), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{control_plane.port}", options=options) as opened:
        yield opened


async def open_stream(channel: grpc.aio.Channel, node: str) -> Any:
    """A stream that has asked for all clusters and has read nothing."""
    call = channel.stream_stream(METHOD)()
    request = protos.encode(REQUEST, {"type_url": TypeUrl.CLUSTER, "node": {"id": node}})
    await call.write(request)
    return call


def much() -> list[Any]:
    """A fleet whose clusters do not fit into a window."""
    return [a_model_access(), *(a_backend(f"model-{number}") for number in range(1500))]


async def test_a_proxy_that_reads_nothing_holds_up_nobody_and_is_let_go(
    control_plane: ControlPlane, channel: grpc.aio.Channel
) -> None:
    control_plane.set(*much())
    slow = await open_stream(channel, "slow")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{control_plane.port}") as other:
        quick = await open_stream(other, "quick")
        async with ends_in_time("the quick one is answered"):
            message = protos.decode(RESPONSE, await quick.read())
        assert len(message.resources) == 3000
        nodes = [proxy.node for proxy in control_plane.ledger.build_report().proxies]
        require_scenario("slow" in nodes, "the slow one is not let go yet")

        async def only_quick() -> bool:
            return [proxy.node for proxy in control_plane.ledger.build_report().proxies] == ["quick"]

        await eventually(only_quick, "the slow proxy is let go")
        quick.cancel()
    slow.cancel()


async def test_rubbish_ends_the_stream_that_it_came_on_alone(
    control_plane: ControlPlane, channel: grpc.aio.Channel
) -> None:
    control_plane.set(a_model_access(), a_backend())
    sound = await open_stream(channel, "sound")
    mad = channel.stream_stream(METHOD)()
    await mad.write(b"\xff\xff\xff")
    async with ends_in_time("the stream is ended"):
        assert await mad.code() is not grpc.StatusCode.OK
    assert await sound.read() is not grpc.aio.EOF
    sound.cancel()
    mad.cancel()


@pytest.mark.parametrize(
    ("method", "request_type", "user_agent", "advice"),
    [
        (
            "StreamAggregatedResources",
            "envoy.service.discovery.v3.DiscoveryRequest",
            "envoy",
            "set api_type: DELTA_GRPC in Envoy's bootstrap",
        ),
        (
            "DeltaAggregatedResources",
            REQUEST,
            "gRPC C-core linux",
            "gRPC clients use StreamAggregatedResources",
        ),
    ],
    ids=["a gateway with state of the world", "a gRPC client with delta"],
)
async def test_a_proxy_with_the_protocol_of_the_other_kind_is_refused(
    control_plane: ControlPlane,
    channel: grpc.aio.Channel,
    method: str,
    request_type: str,
    user_agent: str,
    advice: str,
) -> None:
    control_plane.set(a_model_access(), a_backend())
    call = channel.stream_stream(f"{SERVICE}/{method}")()
    node = {"id": "gateway-1", "user_agent_name": user_agent}
    await call.write(protos.encode(request_type, {"type_url": TypeUrl.CLUSTER, "node": node}))
    async with ends_in_time("the call is refused"):
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert advice in (await call.details() or "")
    assert control_plane.ledger.connected_count == 0


async def test_a_new_snapshot_reaches_an_idle_stream_without_being_asked_for(
    control_plane: ControlPlane, channel: grpc.aio.Channel
) -> None:
    stream = await open_stream(channel, "idle")
    control_plane.set(a_model_access(), a_backend())
    async with ends_in_time("the snapshot comes"):
        assert await stream.read() is not grpc.aio.EOF
    stream.cancel()


async def test_stopping_tells_the_proxies_to_go_elsewhere(
    control_plane: ControlPlane, channel: grpc.aio.Channel
) -> None:
    control_plane.set(a_model_access(), a_backend())
    stream = await open_stream(channel, "gateway-1")
    await stream.read()
    # A stream that is not ended may take thirty seconds.
    async with ends_in_time("the server stops", timeout_s=10):
        await control_plane.server.stop()
        assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_the_metrics_tell_what_happened(control_plane: ControlPlane, channel: grpc.aio.Channel) -> None:
    control_plane.set(a_model_access(), a_backend())
    stream = await open_stream(channel, "gateway-1")
    response = protos.decode(RESPONSE, await stream.read())
    assert control_plane.metric("tidegate_xds_connected_proxies") == 1
    assert control_plane.metric("tidegate_xds_pushes_total", type="cluster") == 1
    await stream.write(
        protos.encode(REQUEST, {"type_url": TypeUrl.CLUSTER, "response_nonce": response.nonce})
    )

    async def accepted() -> bool:
        return control_plane.metric("tidegate_xds_acks_total", type="cluster") == 1

    await eventually(accepted, "the acceptance is counted")
    stream.cancel()

    async def gone() -> bool:
        return control_plane.metric("tidegate_xds_connected_proxies") == 0

    await eventually(gone, "the proxy is counted out")
