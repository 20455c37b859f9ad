"""Sticky routes in a real Envoy: whose request goes where, before and after weights move."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from builders.model_access import a_model_access, a_route
from fixtures.envoy import Gateway, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

_CONNECTIONS = 8
_PIPELINED = 64
_END = b"\r\n\r\n"


class _Teller(asyncio.Protocol):
    """Answers every request (without a body) with its label; counts nothing and parses next to nothing."""

    def __init__(self, label: str) -> None:
        self._answer = f"HTTP/1.1 200 OK\r\nx-who: {label}\r\ncontent-length: 0\r\n\r\n".encode()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._received = (self._received + data).split(_END)
        self._transport.write(self._answer * len(requests))


@contextlib.asynccontextmanager
async def tellers(addresses: Mapping[str, str]) -> AsyncIterator[dict[str, Backend]]:
    """An Inference for each label, with one pod at its loopback address, over REST only."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        backends: dict[str, Backend] = {}
        for label, address in addresses.items():
            server = await loop.create_server(lambda label=label: _Teller(label), address, 0)  # type: ignore[misc]
            stack.callback(server.close)
            port: int = server.sockets[0].getsockname()[1]
            key = BackendKey(BackendKind.INFERENCE, "ads", label)
            backends[label] = Backend(key, "ctr", (Endpoint(address, http_port=port),))
        yield backends


async def who_answers(gateway: str, users: Sequence[str], header: str) -> dict[str, str]:
    """For each user the label that answered; `header` is a line with a place for the user: `x-user-id: {}`."""
    host, port = gateway.rsplit(":", 1)
    answers: dict[str, str] = {}

    async def ask(some: Sequence[str]) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for first in range(0, len(some), _PIPELINED):
                batch = some[first : first + _PIPELINED]
                writer.write(b"".join(_request(header.format(user)) for user in batch))
                for user in batch:
                    answers[user] = _label(await reader.readuntil(_END))
        finally:
            writer.close()
            await writer.wait_closed()

    async with asyncio.TaskGroup() as tasks:
        for number in range(_CONNECTIONS):
            tasks.create_task(ask(users[number::_CONNECTIONS]))
    return answers


def _request(header: str) -> bytes:
    return f"GET /v2 HTTP/1.1\r\nhost: ctr.ads.tidegate\r\n{header}\r\n\r\n".encode()


def _label(head: bytes) -> str:
    lines = head.decode().splitlines()
    assert " 200 " in lines[0], head
    return next(line.removeprefix("x-who: ") for line in lines if line.startswith("x-who: "))


USERS = [f"user-{number}" for number in range(6_000)]
FEW = USERS[:1_000]
HEADER = "x-user-id: {}"
ADDRESSES = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}
STICKY = {"header": "x-user-id"}

Moves = Counter[tuple[str, str]]


def split(sticky: dict[str, str] | None = STICKY, **weights: int) -> ModelAccess:
    targets = [{"inference": name, "weight": weight} for name, weight in weights.items()]
    fields: dict[str, Any] = {"sticky": sticky} if sticky else {}
    return a_model_access(routes=[a_route(targets=targets, timeout="30s", **fields)])


def moves(before: dict[str, str], after: dict[str, str]) -> Moves:
    """How many users went from where to where."""
    return Counter((before[user], after[user]) for user in before if before[user] != after[user])


async def test_moving_ten_percent_of_the_weight_moves_ten_percent_of_the_users(gateway: Gateway) -> None:
    async with tellers(ADDRESSES) as backends:
        await gateway.start(split(a=60, b=40), *backends.values())
        before = await who_answers(gateway.envoy.address, USERS, HEADER)
        await gateway.control_plane.push(split(a=50, b=50), *backends.values())
        after = await who_answers(gateway.envoy.address, USERS, HEADER)

        moved = moves(before, after)
        assert set(moved) == {("a", "b")}
        assert abs(moved["a", "b"] / len(USERS) - 0.10) <= 0.01
        # Nobody flips twice: who is on b stays there as it grows, and back at 60/40 everybody is where they were.
        await gateway.control_plane.push(split(a=10, b=90), *backends.values())
        later = await who_answers(gateway.envoy.address, FEW, HEADER)
        assert all(later[user] == "b" for user in FEW if after[user] == "b")
        await gateway.control_plane.push(split(a=60, b=40), *backends.values())
        again = await who_answers(gateway.envoy.address, FEW, HEADER)
        assert again == {user: before[user] for user in FEW}


async def test_without_sticky_the_same_change_moves_users_at_random(gateway: Gateway) -> None:
    async with tellers(ADDRESSES) as backends:
        await gateway.start(split(None, a=60, b=40), *backends.values())
        before = await who_answers(gateway.envoy.address, FEW, HEADER)
        after = await who_answers(gateway.envoy.address, FEW, HEADER)
    # 2 × 0.6 × 0.4 = 48 % are elsewhere the second time, although nothing changed.
    assert sum(moves(before, after).values()) > 0.4 * len(FEW)


async def test_a_target_without_pods_lends_its_users_and_nobody_else_moves(gateway: Gateway) -> None:
    async with tellers(ADDRESSES) as backends:
        await gateway.start(split(a=30, b=30, c=40), *backends.values())
        before = await who_answers(gateway.envoy.address, FEW, HEADER)
        await gateway.control_plane.push(
            split(a=30, b=30, c=40), backends["a"], backend_of("b"), backends["c"]
        )
        without = await who_answers(gateway.envoy.address, FEW, HEADER)
        assert set(moves(before, without)) == {("b", "a"), ("b", "c")}
        await gateway.control_plane.push(split(a=30, b=30, c=40), *backends.values())
        assert await who_answers(gateway.envoy.address, FEW, HEADER) == before


async def test_a_cookie_names_the_user_as_well(gateway: Gateway) -> None:
    async with tellers(ADDRESSES) as backends:
        await gateway.start(split({"cookie": "session"}, a=50, b=50), *backends.values())
        line = "cookie: theme=dark; session={}"
        before = await who_answers(gateway.envoy.address, FEW, line)
        assert await who_answers(gateway.envoy.address, FEW, line) == before
        assert set(before.values()) == {"a", "b"}


@pytest.mark.parametrize("line", ["x-other: {}", "x-tidegate-target: ads/ctr\r\nx-envoy-original-path: {}"])
async def test_who_is_not_named_goes_by_weight_at_random(gateway: Gateway, line: str) -> None:
    async with tellers(ADDRESSES) as backends:
        await gateway.start(split(a=80, b=20), *backends.values())
        answers = Counter((await who_answers(gateway.envoy.address, FEW, line)).values())
    # Six standard deviations of a fair split.
    assert abs(answers["b"] / len(FEW) - 0.2) < 6 * (0.2 * 0.8 / len(FEW)) ** 0.5
