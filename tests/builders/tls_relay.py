"""TLS in front of a server that speaks none, which can break connections in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class TlsRelay:
    """Passes connections on to `upstream`; each of `cuts` ends one that has sent as many bytes to the client."""

    upstream: tuple[str, int]
    cuts: list[int] = field(default_factory=list[int])
    connections: int = 0
    sent: int = 0
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there_reader, there_writer = await asyncio.open_connection(*self.upstream)
        there = asyncio.create_task(self._up(reader, there_writer))
        try:
            await self._down(there_reader, writer)
        finally:
            there.cancel()
            for end in (writer, there_writer):
                end.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(16_384):
                writer.write(data)
                await writer.drain()
                passed += len(data)
                self.sent += len(data)
                if self.cuts and passed >= self.cuts[0]:
                    self.cuts.pop(0)
                    writer.close()  # after what was written
                    return


@contextlib.asynccontextmanager
async def tls_relay(upstream: tuple[str, int], certificate: Path) -> AsyncIterator[TlsRelay]:
    """A relay on a free port of loopback."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    relay = TlsRelay(upstream)
    server = await asyncio.start_server(relay.handle, "127.0.0.1", 0, ssl=context)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
