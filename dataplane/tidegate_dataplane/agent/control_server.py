"""Serves an application to the controllers alone: TLS, and whose certificate gets in."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import web

from tidegate_dataplane.agent.certificates import CLIENT_COMMON_NAME, common_name, server_context

log = structlog.get_logger()

LOOK_EVERY_S = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def controllers_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse whoever does not show the controllers' certificate."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    if common_name(certificate) != CLIENT_COMMON_NAME:
        return web.json_response({"error": f"only {CLIENT_COMMON_NAME} may ask"}, status=403)
    return await handler(request)


class ControlServer:
    """Serves the control app; each handshake asks for a certificate of the authority that the file names by then.

    One socket listens throughout: another one beside it would take half of the callers, and end those that still wait in the queue
    of the first when that closes.
    """

    def __init__(
        self, app: web.Application, server_pem: bytes, client_authority: Path, *, address: str, port: int
    ) -> None:
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self._pem = server_pem
        self._authority = client_authority
        self._address = address
        self._port = port
        self._context: ssl.SSLContext | None = None
        self.port: int | None = None
        self._authority_content: bytes | None = None

    async def start(self) -> None:
        """Listen, if the authority file is there; `watch` takes it from here."""
        await self._runner.setup()
        await self.refresh()

    async def watch(self) -> None:
        """Follow the authority file until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Listen with the authority as the file has it now."""
        try:
            content = self._authority.read_bytes()
        except OSError:
            return
        if content == self._authority_content:
            return
        try:
            context = server_context(self._pem, self._authority)
        except (OSError, ssl.SSLError) as error:
            log.warning("client_authority_unusable", path=str(self._authority), error=str(error))
            self._authority_content = content
            return
        listens, self._context, self._authority_content = self._context is not None, context, content
        if listens:
            log.info("client_authority_renewed")
            return
        listener = _listener(self._address, self._port)
        first = server_context(self._pem, self._authority)
        first.sni_callback = self._take_newest
        await web.SockSite(self._runner, listener, ssl_context=first).start()
        self.port = int(listener.getsockname()[1])
        log.info("control_listening", port=self.port)

    def _take_newest(self, connection: ssl.SSLObject, name: str | None, before: ssl.SSLContext) -> None:
        """At the beginning of each handshake, whether or not the caller names whom it wants."""
        del name, before
        if self._context is not None:
            connection.context = self._context

    async def stop(self) -> None:
        """Stop listening and end what is under way."""
        with contextlib.suppress(RuntimeError):
            await self._runner.cleanup()


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    return listener
