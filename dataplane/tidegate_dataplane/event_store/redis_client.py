"""A client of Redis with one time limit for everything that a call does: to resolve, connect, send and receive.

Not a client from PyPI: their time limits hold for each read of a socket, so that a server that sends slowly takes many times
as long, and the server's Python would need one more package. Commands and replies are RESP 2.
"""

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tidegate_dataplane.addresses import explain_refusal
from tidegate_dataplane.contract import RedisStore
from tidegate_dataplane.event_store.writer import StoreError, StoreFullError, StoreRefusedError

USERNAME: Final = "redis-username"
PASSWORD: Final = "redis-password"  # noqa: S105 - the name of a key
CA, CERTIFICATE, PRIVATE_KEY = "ca.crt", "tls.crt", "tls.key"
MAX_REPLY_BYTES: Final = 1 << 28
"""Size of the replies of one call."""
_BLOCK_BYTES: Final = 1 << 16
_LINE_END: Final = b"\r\n"
_REFUSALS: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR", "READONLY", "MOVED", "CROSSSLOT")
"""Codes of errors that a correction of the spec, the Secret or the server ends. LOADING, MISCONF and the like pass."""

Command: TypeAlias = Sequence[bytes]
Reply: TypeAlias = "bytes | int | list[Reply] | None"
Address: TypeAlias = tuple[socket.AddressFamily, str]


class ReplyError(Exception):
    """The server replied with an error."""


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """A server, and where its Secret is mounted."""

    order: RedisStore
    secret_dir: Path
    allow_loopback: bool = False

    @property
    def server_title(self) -> str:
        """Return how messages name it."""
        return f"the event store, Redis at {self.order.address}"

    def read_value(self, name: str) -> str:
        """Return a key of the Secret; empty if it has none."""
        try:
            return (self.secret_dir / name).read_text().strip() if self.order.secret else ""
        except (OSError, UnicodeDecodeError):
            return ""


class RedisClient:
    """One connection, opened by the first call and again after a failure. Threads may share it."""

    def __init__(self, access: RedisAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._received = 0
        self._resolver = ThreadPoolExecutor(1, thread_name_prefix="resolve-redis")
        self._lookup: Future[Sequence[Address]] | None = None

    def call_server(self, commands: Sequence[Command], timeout_s: float) -> list[Reply]:
        """Send commands in one round trip and return the reply of each.

        Raises:
            StoreError: no reply in time, so that it is not known what was done; or a command was refused.
        """
        deadline_s = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise StoreError(f"{self._access.server_title}: other calls took longer than {timeout_s:g} s")
        try:
            return self._call_once_more(commands, deadline_s)
        except ReplyError as error:
            self._close_socket()  # the replies behind it were not read
            raise self._translate_reply(str(error)) from error
        except TimeoutError as error:
            self._close_socket()
            raise StoreError(f"{self._access.server_title}: no answer within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            self._close_socket()
            raise StoreError(f"{self._access.server_title} cannot be reached: {error}") from error
        except BaseException:
            self._close_socket()
            raise
        finally:
            self._lock.release()

    def _call_once_more(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        """Exchange over the connection, or over a new one if the server has closed it since the last call.

        Commands may then run twice, which harms neither reads nor writes that name the one before.
        """
        if self._socket is not None:
            try:
                return self._exchange_commands(commands, deadline_s)
            except TimeoutError:
                raise
            except OSError:
                self._close_socket()
        self._open_connection(deadline_s)
        return self._exchange_commands(commands, deadline_s)

    def close_connection(self) -> None:
        """Close the connection; no call may come afterwards."""
        with self._lock:
            self._close_socket()
        self._resolver.shutdown(wait=False)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._buffer.clear()

    def _open_connection(self, deadline_s: float) -> None:
        host, port = split_address(self._access.order.address)
        failure: OSError | None = None
        for family, address in self._resolve_host(host, port, deadline_s):
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                connection.settimeout(_measure_rest(deadline_s))
                connection.connect((address, port))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._access.order.tls:
                    connection = self._make_tls_context().wrap_socket(connection, server_hostname=host)
                self._socket = connection
                break
            except TimeoutError:
                connection.close()
                raise
            except OSError as error:
                connection.close()
                failure = error
        if self._socket is None:
            raise failure or OSError("its name has no address")
        if password := self._access.read_value(PASSWORD):
            user = self._access.read_value(USERNAME)
            login = [part.encode() for part in ("AUTH", user, password) if part]
            self._exchange_commands([login], deadline_s)
        elif self._access.order.secret and not self._access.read_value(CA):
            raise StoreRefusedError(
                f"{self._access.server_title}: Secret {self._access.order.secret} of the namespace does not exist, or has neither "
                f"{PASSWORD} nor {CA}"
            )

    def _resolve_host(self, host: str, port: int, deadline_s: float) -> Sequence[Address]:
        """Return the addresses of the host: a lookup has no time limit of its own, so another thread makes it."""
        lookup = self._lookup = self._lookup or self._resolver.submit(_list_addresses, host, port)
        try:
            addresses = lookup.result(_measure_rest(deadline_s))
        finally:
            if lookup.done():
                self._lookup = None
        for _, address in addresses:
            if refusal := explain_refusal(address, allow_loopback=self._access.allow_loopback):
                raise StoreRefusedError(
                    f"{self._access.server_title}: {address} is {refusal}: connections to it are not allowed"
                )
        return addresses

    def _make_tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if authority := self._access.read_value(CA):
            context.load_verify_locations(cadata=authority)
        if self._access.read_value(CERTIFICATE):
            folder = self._access.secret_dir
            context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
        return context

    def _exchange_commands(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        connection = self._get_socket()
        connection.settimeout(_measure_rest(deadline_s))
        connection.sendall(b"".join(map(encode_command, commands)))
        self._received = 0
        return [self._read_reply(deadline_s) for _ in commands]

    def _get_socket(self) -> socket.socket:
        if self._socket is None:
            raise OSError("the connection is closed")
        return self._socket

    def _read_reply(self, deadline_s: float) -> Reply:
        line = self._read_line(deadline_s)
        kind, content = line[:1], line[1:]
        if kind == b"+":
            return content
        if kind == b"-":
            raise ReplyError(content.decode(errors="replace"))
        if kind == b":":
            return int(content)
        if kind == b"$":
            return None if content == b"-1" else self._read_exactly(int(content), deadline_s)
        if kind == b"*":
            return [self._read_reply(deadline_s) for _ in range(int(content))]
        raise ValueError(f"it does not speak the protocol of Redis: {bytes(line[:40])!r}")

    def _read_line(self, deadline_s: float) -> bytes:
        while (end := self._buffer.find(_LINE_END)) < 0:
            self._receive_block(deadline_s)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _read_exactly(self, count: int, deadline_s: float) -> bytes:
        while len(self._buffer) < count + 2:
            self._receive_block(deadline_s)
        content = bytes(self._buffer[:count])
        del self._buffer[: count + 2]
        return content

    def _receive_block(self, deadline_s: float) -> None:
        connection = self._get_socket()
        connection.settimeout(_measure_rest(deadline_s))
        block = connection.recv(_BLOCK_BYTES)
        if not block:
            raise OSError("it closed the connection")
        self._received += len(block)
        if self._received > MAX_REPLY_BYTES:
            raise ValueError(f"its replies have more than {MAX_REPLY_BYTES} bytes")
        self._buffer += block

    def _translate_reply(self, text: str) -> StoreError:
        code = text.split(" ", 1)[0]
        message = f"{self._access.server_title}: {text[:300]}"
        if code == "OOM":
            return StoreFullError(f"{message}; raise its maxmemory, or lower ttl or maxEvents of the streams")
        return StoreRefusedError(message) if code in _REFUSALS else StoreError(message)


def encode_command(command: Command) -> bytes:
    """Return a command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(command)]
    parts += [b"$%d\r\n%b\r\n" % (len(part), part) for part in command]
    return b"".join(parts)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `<host>:<port>`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _list_addresses(host: str, port: int) -> Sequence[Address]:
    results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, str(address[0])) for family, _, _, _, address in results]


def _measure_rest(deadline_s: float) -> float:
    rest_s = deadline_s - time.monotonic()
    if rest_s <= 0:
        raise TimeoutError
    return rest_s
