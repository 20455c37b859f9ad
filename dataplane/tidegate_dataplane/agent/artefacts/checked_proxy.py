"""Forward proxy on loopback that checks every address, for HTTP clients that resolve names themselves."""

import contextlib
import socket
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import structlog

from tidegate_dataplane.agent.artefacts.lookup import resolve_addresses
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

log = structlog.get_logger()

MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 64 << 10
CHUNK_BYTES: Final = 256 << 10
CONNECT_TIMEOUT_S: Final = 8.0
"""Shorter than the timeout of the client, which then still waits for the reason."""
ACCEPT_PAUSE_S: Final = 0.1
# Headers of the connection to the proxy. The server is sent `Connection: close` instead, so that each request has its own
# connection and with it its own check.
HOP_BY_HOP: Final = frozenset({b"proxy-connection", b"connection", b"keep-alive"})
ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True, slots=True)
class _ProxyRequest:
    """The target of one request; `forwarded` is the head to send to the server, None for a tunnel."""

    target: str
    host: str
    port: int
    forwarded: bytes | None


class CheckedProxy:
    """Connects one client to checked addresses; each connection has two threads, one for each direction.

    Other processes in the pod can use it as well, and gain no access by it: it is in the same network namespace.
    """

    def __init__(self, *, allow_loopback: bool, unchecked: frozenset[str] = frozenset()) -> None:
        """Take the rules; `unchecked` are targets, named by the platform, that are exempt from the check.

        A target has the form that it has in a request: the whole of an http: URL, or host:port for https:.
        """
        self._allow_loopback = allow_loopback
        self._unchecked = unchecked
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = threading.Event()
        self.error: ArtefactError | None = None
        """Why the last connection failed, None if it succeeded."""

    @property
    def url(self) -> str:
        """Return the URL for the client; the proxy listens from the first use on."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Stop accepting connections; open ones last until their client closes them."""
        self._closed.set()
        if "_listener" in self.__dict__:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    @cached_property
    def _listener(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept_connections, args=(listener,), name="proxy", daemon=True).start()
        return listener

    def _accept_connections(self, listener: socket.socket) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                client, _ = listener.accept()
                threading.Thread(
                    target=self._serve_client, args=(client,), name="proxy-down", daemon=True
                ).start()
            except (OSError, RuntimeError):  # closed, or out of file descriptors or threads for now
                self._slots.release()
                self._closed.wait(ACCEPT_PAUSE_S)

    def _serve_client(self, client: socket.socket) -> None:
        try:
            with client:
                self._forward_request(client)
        except OSError:
            pass  # one side closed the connection, which the client sees
        except Exception:
            log.exception("proxy_connection_failed")
        finally:
            self._slots.release()

    def _forward_request(self, client: socket.socket) -> None:
        """Serve one request: connect to its target and copy until one side closes."""
        client.settimeout(CONNECT_TIMEOUT_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, rest = _read_head(client)
        if not head:
            return
        try:
            request = _parse_request(head)
        except ValueError as error:
            _send_error(client, "400 Bad Request", str(error))
            return
        try:
            server = self._connect_target(request)
        except ArtefactError as error:
            self.error = error
            refused = error.refusal.reason is FailureReason.URI_NOT_ALLOWED
            _send_error(client, "403 Forbidden" if refused else "502 Bad Gateway", error.refusal.message)
            return
        self.error = None
        with server:
            if request.forwarded is None:
                client.sendall(ESTABLISHED)
            else:
                server.sendall(request.forwarded)
            server.sendall(rest)
            _relay_both_ways(client, server)

    def _connect_target(self, request: _ProxyRequest) -> socket.socket:
        """Return a connection to the first address of the target that accepts one.

        Raises:
            ArtefactError: UriNotAllowed for a refused address, FetchFailed if none accepts a connection.
        """
        host, port = request.host, request.port
        try:
            if request.target in self._unchecked:
                return socket.create_connection((host, port), CONNECT_TIMEOUT_S)
            addresses = resolve_addresses(host, port, allow_loopback=self._allow_loopback)
            failure: OSError = OSError("it has no address")
            for _, _, address in addresses:
                try:
                    return socket.create_connection((address, port), CONNECT_TIMEOUT_S / len(addresses))
                except OSError as error:
                    failure = error
            raise failure
        except (OSError, UnicodeError) as error:
            detail = getattr(error, "strerror", None) or str(error)
            raise ArtefactError(
                FailureReason.FETCH_FAILED, f"{host}:{port} cannot be connected to: {detail}"
            ) from error


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a request and what was received after it; both empty if it is cut off or too long."""
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        chunk = client.recv(MAX_HEAD_BYTES) if len(received) < MAX_HEAD_BYTES else b""
        if not chunk:
            return b"", b""
        received += chunk
    return bytes(received[:end]), bytes(received[end + 4 :])


def _parse_request(head: bytes) -> _ProxyRequest:
    """Parse the head of a request.

    Raises:
        ValueError: the request is neither a CONNECT nor one for an http: URL.
    """
    line, *fields = head.split(b"\r\n")
    method, target, version = line.decode("ascii").split(" ")
    tunnel = method == "CONNECT"
    parts = urlsplit(f"//{target}" if tunnel else target)
    host, port = parts.hostname, parts.port or 80
    if not host or not (tunnel or parts.scheme == "http"):
        raise ValueError(f"{target[:100]!r} is no target for a proxy")
    forwarded: bytes | None = None
    if not tunnel:
        # Cut out, not rebuilt from its parts: the signature of the request covers each character.
        path = target.partition("://")[2].removeprefix(parts.netloc)
        origin = path if path.startswith("/") else f"/{path}"
        end_to_end = [field for field in fields if field.partition(b":")[0].strip().lower() not in HOP_BY_HOP]
        forwarded = b"\r\n".join(
            [f"{method} {origin} {version}".encode(), *end_to_end, b"Connection: close", b"", b""]
        )
    return _ProxyRequest(target, host, port, forwarded)


def _send_error(client: socket.socket, status: str, message: str) -> None:
    body = message.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


def _relay_both_ways(client: socket.socket, server: socket.socket) -> None:
    """Copy both ways until one side closes."""
    for end in (client, server):
        end.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    up = threading.Thread(target=_relay_one_way, args=(client, server), name="proxy-up", daemon=True)
    up.start()
    _relay_one_way(server, client)
    up.join()


def _relay_one_way(source: socket.socket, sink: socket.socket) -> None:
    """Copy until `source` is closed, then shut both down, which ends the other direction as well."""
    chunk = memoryview(bytearray(CHUNK_BYTES))
    with contextlib.suppress(OSError):
        while received := source.recv_into(chunk):
            sink.sendall(chunk[:received])
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
