"""One HTTP question to a port of a pod, through the API server: any port of the pod's own loopback too, as `kubectl port-forward` reaches it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError
from tidegate.kube.transport import Request, Transport

# https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go
# Each message begins with a channel: two for each port, data and errors; the first of each repeats the port's number.
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_ERRORS: Final = 1

_HEAD_ENDS: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"^content-length: *(\d+) *\r?$", re.IGNORECASE | re.MULTILINE)


async def get_json(
    transport: Transport, pod: ObjectKey, port: int, target: str, within: timedelta
) -> dict[str, Any]:
    """The JSON that the pod answers to GET `target` (path and query), whatever the status.

    Needs the rights to get and create `pods/portforward`. Raises as Transport.call does, and ApiUnavailableError when
    nothing listens on that port, or what it says is no HTTP with a Content-Length and JSON in it.
    """
    path = f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}/portforward"
    request = Request("GET", path, within, query={"ports": str(port)})
    async with transport.websocket(request, _PROTOCOL) as socket:
        question = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        await socket.send_bytes(bytes([_DATA]) + question.encode())
        body = await _body(_sent(socket, pod, port))
    try:
        decoded: dict[str, Any] = json.loads(body or b"")
    except ValueError as error:
        message = f"pod {pod} port {port}: no JSON came through the API server: {(body or b'')[:200]!r}"
        raise ApiUnavailableError(message) from error
    return decoded


async def _sent(socket: aiohttp.ClientWebSocketResponse, pod: ObjectKey, port: int) -> AsyncIterator[bytes]:
    begun = set[int]()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in begun:
            begun.add(channel)
        elif channel == _ERRORS and data:
            text = f"pod {pod} port {port}: {data.decode(errors='replace').strip()}"
            raise ApiUnavailableError(text)
        elif channel == _DATA:
            yield data


async def _body(parts: AsyncIterator[bytes]) -> bytes | None:
    """The body of the one HTTP answer in `parts`; None when they end before it is whole."""
    received = bytearray()
    length: int | None = None
    async for part in parts:
        received += part
        at = received.find(_HEAD_ENDS)
        if at < 0:
            continue
        begins = at + len(_HEAD_ENDS)
        if length is None:
            found = _LENGTH.search(bytes(received[:begins]))
            length = int(found[1]) if found else 0
        if len(received) >= begins + length:
            return bytes(received[begins : begins + length])
    return None
