"""A question to a pod's port through an API server that cuts, mixes and refuses what it carries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web

from builders.loopback import kubeconfig_of, on_loopback
from builders.waiting import LONGEST_S, ends_in_time
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError, TidegateError
from tidegate.kube.client import ClientSettings, KubeClient

POD = ObjectKey("tidegate-system", "tidegate-xds-1")
PORTS = (b"\0\x52\x46", b"\1\x52\x46")
"""The first message of each channel: port 18002."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 8\r\n\r\n" + b'{"a": 1}'


def data(*parts: bytes) -> list[bytes]:
    return [b"\0" + part for part in parts]


@asynccontextmanager
async def server(
    folder: Path, said: Sequence[bytes], *, status: int = 0, silent: bool = False
) -> AsyncIterator[tuple[KubeClient, list[str]]]:
    """A client of an API server whose pod says these messages when it was asked, and then ends; and what it was asked."""
    asked: list[str] = []

    async def forward(request: web.Request) -> web.StreamResponse:
        if status or request.headers["Accept"] != "*/*":
            return web.Response(status=status or 406)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for port in PORTS:
            await socket.send_bytes(port)
        question = await socket.receive_bytes()
        asked.append(f"{request.path_qs} {request.headers['Authorization']} {question.decode()}")
        for message in said:
            await socket.send_bytes(message)
        if silent:
            await socket.receive()
        await socket.close()
        return socket

    application = web.Application()
    application.router.add_get("/api/v1/namespaces/tidegate-system/pods/tidegate-xds-1/portforward", forward)
    async with on_loopback(application) as address:
        kubeconfig = kubeconfig_of(folder, address, token="s3cret")
        settings = ClientSettings(
            field_manager="t", user_agent="t", request_timeout=timedelta(seconds=0.5 if silent else 5)
        )
        async with await KubeClient.connect(settings, kubeconfig=kubeconfig) as client:
            yield client, asked


@pytest.mark.parametrize(
    "said",
    [
        data(ANSWER),
        data(*(bytes([byte]) for byte in ANSWER)),
        data(ANSWER[:60], ANSWER[60:]),
        data(ANSWER + b"more than was announced"),
        data(ANSWER.replace(b"200 OK", b"404 Not Found")),
    ],
    ids=["at once", "byte by byte", "in two", "too much", "with another status"],
)
async def test_an_answer_is_whole_however_it_is_cut(said: list[bytes], tmp_path: Path) -> None:
    async with server(tmp_path, said) as (client, asked):
        assert await client.read_from_pod(POD, 18002, "/v1/x?name=a%2Fb") == {"a": 1}
    (question,) = asked
    assert question.startswith(
        "/api/v1/namespaces/tidegate-system/pods/tidegate-xds-1/portforward?ports=18002 Bearer s3cret "
    )
    assert "\0GET /v1/x?name=a%2Fb HTTP/1.1\r\n" in question


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([b"\1connection refused to port 18002"], "port 18002: connection refused"),
        (data(ANSWER[:-1]), "no JSON came"),
        (data(b"SSH-2.0-OpenSSH\r\n"), "no JSON came"),
        (data(ANSWER.replace(b"Content-Length: 8", b"X: 8")), "no JSON came"),
        ([], "no JSON came"),
    ],
    ids=["nobody listens", "cut", "another protocol", "without a length", "nothing"],
)
async def test_what_is_no_answer_is_an_error(said: list[bytes], words: str, tmp_path: Path) -> None:
    async with server(tmp_path, said) as (client, _):
        with pytest.raises(ApiUnavailableError, match=words) as caught:
            await client.read_from_pod(POD, 18002, "/")
    assert "tidegate-system/tidegate-xds-1" in str(caught.value)


async def test_a_pod_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with server(tmp_path, [], silent=True) as (client, _):
        with pytest.raises(ApiUnavailableError, match="did not answer"):
            await client.read_from_pod(POD, 18002, "/")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (403, PermanentError, "verbs get and create are needed"),
        (404, PermanentError, "404"),
        (401, ApiUnavailableError, "401"),
        (503, ApiUnavailableError, "503"),
    ],
)
async def test_a_refusal_says_what_is_missing(
    status: int, error: type[TidegateError], words: str, tmp_path: Path
) -> None:
    async with server(tmp_path, [], status=status) as (client, _):
        with pytest.raises(error, match=words) as caught:
            await client.read_from_pod(POD, 18002, "/")
    assert "pods/tidegate-xds-1/portforward" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def through(client: KubeClient, sent: bytes) -> bytes:
    """What a connection through the API server brings back until it ends."""
    async with client.forward_port(POD, 18002, timedelta(seconds=LONGEST_S)) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with ends_in_time("the other side ends it"):
            answer = await reader.read()
        writer.close()
        return answer


async def test_a_connection_carries_what_both_sides_send(tmp_path: Path) -> None:
    async with server(tmp_path, data(b"\x00\xff", b"lo")) as (client, asked):
        assert await through(client, b"hi") == b"\x00\xfflo"
    assert asked[0].endswith("\0hi")


async def test_a_connection_that_the_api_server_refuses_ends(tmp_path: Path) -> None:
    async with server(tmp_path, [], status=403) as (client, _):
        assert await through(client, b"hi") == b""
