"""Simulate a proxy of an xDS server: a delta stream that subscribes to everything and accepts everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc.aio

from tidegate.routing import protos
from tidegate.xds.resources import TypeUrl

_METHOD: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
_REQUEST: Final = "envoy.service.discovery.v3.DeltaDiscoveryRequest"
_RESPONSE: Final = "envoy.service.discovery.v3.DeltaDiscoveryResponse"


async def discover(node: str, port: int, received: Callable[[Any], None]) -> None:
    """Call `received` with each response until the server ends the stream."""
    # A connection of its own, as every proxy has.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        call: Any = channel.stream_stream(_METHOD)()

        async def send_request(type_url: str, **fields: Any) -> None:
            await call.write(protos.encode(_REQUEST, {"type_url": type_url, **fields}))

        for type_url in (TypeUrl.CLUSTER, TypeUrl.LISTENER, TypeUrl.SCOPE):
            await send_request(type_url, node={"id": node})
        while True:
            data = await call.read()
            if not isinstance(data, bytes):
                return
            response = protos.decode(_RESPONSE, data)
            received(response)
            await send_request(response.type_url, response_nonce=response.nonce)
            if response.type_url == TypeUrl.CLUSTER:
                names = [resource.name for resource in response.resources]
                await send_request(TypeUrl.ENDPOINT, resource_names_subscribe=names)
