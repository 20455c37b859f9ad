"""An API server's port forward to a pod, in the protocol that kubelets speak; what is sent ends at some address instead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import WSMsgType, web


def carried_to(target: str, port: int) -> Callable[[web.Request], Awaitable[web.WebSocketResponse]]:
    """A handler of `…/portforward?ports=<port>` that carries each connection to `target`, a host:port."""

    async def portforward(request: web.Request) -> web.WebSocketResponse:
        assert request.query["ports"] == str(port)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + port.to_bytes(2, "little"))
        host, _, number = target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(number))

        async def back() -> None:
            while data := await reader.read(1 << 15):
                await socket.send_bytes(b"\0" + data)

        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(back())
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data[1:])
            answering.cancel()
        writer.close()
        return socket

    return portforward
