"""Port forwarding to a pod, its loopback included, through the API server, as `kubectl port-forward` does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, TidegateError
from tidegate.kube.transport import ApiRequest, ApiTransport

# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go
# Each message begins with its channel. A port has two: data and errors; the first message on each is the port number.
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_ERRORS: Final = 1

log = structlog.get_logger(__name__)

_HEAD_ENDS: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"^content-length: *(\d+) *\r?$", re.IGNORECASE | re.MULTILINE)


_CHUNK: Final = 64 << 10


@asynccontextmanager
async def forward_port(
    transport: ApiTransport, pod: ObjectKey, port: int, duration: timedelta
) -> AsyncGenerator[str]:
    """Yield a host:port on loopback whose connections end at that port of the pod; each lasts `duration` at most.

    A connection that the API server does not carry is closed; its client learns no more than that.
    """

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with (
                transport.open_websocket(_forward_request(pod, port, duration), _PROTOCOL) as socket,
                asyncio.TaskGroup() as tasks,
            ):
                sending = tasks.create_task(_send_chunks(reader, socket))
                async for chunk in _receive_chunks(socket, pod, port):
                    writer.write(chunk)
                    await writer.drain()
                sending.cancel()
        except* (TidegateError, OSError) as errors:
            log.info("forwarding_ended", pod=str(pod), port=port, error=str(errors.exceptions[0]))
        finally:
            writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _send_chunks(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await socket.send_bytes(bytes([_DATA]) + data)
    await socket.close()


def _forward_request(pod: ObjectKey, port: int, within: timedelta) -> ApiRequest:
    path = f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}/portforward"
    return ApiRequest("GET", path, within, query={"ports": str(port)})


async def get_json(
    transport: ApiTransport, pod: ObjectKey, port: int, target: str, within: timedelta
) -> dict[str, Any]:
    """Return the JSON that the pod answers to GET `target` (path and query), whatever its HTTP status.

    Needs the verbs get and create on `pods/portforward`. Raises as ApiTransport.request_json does, and ApiUnavailableError if
    nothing listens on that port or the answer is no HTTP with a Content-Length and a JSON body.
    """
    async with transport.open_websocket(_forward_request(pod, port, within), _PROTOCOL) as socket:
        request_text = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        await socket.send_bytes(bytes([_DATA]) + request_text.encode())
        body = await _read_body(_receive_chunks(socket, pod, port))
    try:
        decoded: dict[str, Any] = json.loads(body or b"")
    except (ValueError, RecursionError) as error:
        message = f"pod {pod} port {port}: no JSON came through the API server: {(body or b'')[:200]!r}"
        raise ApiUnavailableError(message) from error
    return decoded


async def _receive_chunks(
    socket: aiohttp.ClientWebSocketResponse, pod: ObjectKey, port: int
) -> AsyncIterator[bytes]:
    started_channels = set[int]()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in started_channels:
            started_channels.add(channel)
        elif channel == _ERRORS and data:
            text = f"pod {pod} port {port}: {data.decode(errors='replace').strip()}"
            raise ApiUnavailableError(text)
        elif channel == _DATA:
            yield data


async def _read_body(chunks: AsyncIterator[bytes]) -> bytes | None:
    """Return the body of the one HTTP response in `chunks`; None if they end before it is complete."""
    received = bytearray()
    length: int | None = None
    async for chunk in chunks:
        received += chunk
        head_end = received.find(_HEAD_ENDS)
        if head_end < 0:
            continue
        body_start = head_end + len(_HEAD_ENDS)
        if length is None:
            length_header = _LENGTH.search(bytes(received[:body_start]))
            length = int(length_header[1]) if length_header else 0
        if len(received) >= body_start + length:
            return bytes(received[body_start : body_start + length])
    return None
