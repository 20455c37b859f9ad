"""A client of Redis with one time limit for everything that a call does: to wait for a connection, send and receive.

Not a client from PyPI: their time limits hold for each read of a socket, so that a server that sends slowly takes many times
as long, and the server's Python would need one more package. Commands and replies are RESP 2.
"""

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
CONNECT_S: Final = 5.0
"""Longest time to connect, which a request does not wait for: with TLS it may take longer than many reads."""
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
    """One connection, opened by the first call or before it, and again after a failure. Threads may share it.

    Another thread connects, with a time limit of its own: a call waits for it no longer than for a reply, and what it does not
    wait for serves a later call.
    """

    def __init__(self, access: RedisAccess) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._connector = _Connector(access)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="connect-redis")
        self._opening: Future[_Connection] | None = None

    def start_connecting(self) -> None:
        """Begin to connect, so that the next call need not wait for it."""
        with self._lock:
            if self._connection is None:
                self._begin_opening()

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
            self._drop_connection()  # the replies behind it were not read
            raise self._translate_reply(str(error)) from error
        except TimeoutError as error:
            self._drop_connection()
            raise StoreError(f"{self._access.server_title}: no answer within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            self._drop_connection()
            raise StoreError(f"{self._access.server_title} cannot be reached: {error}") from error
        except BaseException:
            self._drop_connection()
            raise
        finally:
            self._lock.release()

    def _call_once_more(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        """Exchange over the connection, or over a new one if the server has closed it since the last call.

        Commands may then run twice, which harms neither reads nor writes that name the one before.
        """
        self._take_opened()
        if self._connection is not None:
            try:
                return self._connection.exchange_commands(commands, deadline_s)
            except TimeoutError:
                raise
            except OSError:
                self._drop_connection()
        opening = self._begin_opening()
        wait([opening], _measure_rest(deadline_s))
        if not opening.done():
            raise TimeoutError
        self._opening = None
        self._connection = opening.result()
        return self._connection.exchange_commands(commands, deadline_s)

    def close_connection(self) -> None:
        """Close the connection; no call may come afterwards."""
        with self._lock:
            self._drop_connection()
            if self._opening is not None:
                self._opening.add_done_callback(_close_opened)
        self._executor.shutdown(wait=False)

    def _begin_opening(self) -> "Future[_Connection]":
        self._opening = self._opening or self._executor.submit(self._connector.open_connection)
        return self._opening

    def _take_opened(self) -> None:
        """Use what was opened since the last call; what failed meanwhile is tried again."""
        if self._opening is not None and self._opening.done():
            if self._opening.exception() is None:
                self._connection = self._opening.result()
            self._opening = None

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close_socket()
        self._connection = None

    def _translate_reply(self, text: str) -> StoreError:
        code = text.split(" ", 1)[0]
        message = f"{self._access.server_title}: {text[:300]}"
        if code == "OOM":
            return StoreFullError(f"{message}; raise its maxmemory, or lower ttl or maxEvents of the streams")
        return StoreRefusedError(message) if code in _REFUSALS else StoreError(message)


class _Connector:
    """Opens connections; not for several threads."""

    def __init__(self, access: RedisAccess) -> None:
        self._access = access
        self._tls: tuple[tuple[str, ...], ssl.SSLContext] | None = None

    def open_connection(self) -> "_Connection":
        """Return a connection whose user is logged in, within CONNECT_S; a lookup of the name may take longer.

        Raises:
            OSError, StoreRefusedError, ReplyError: there is none.
        """
        host, port = split_address(self._access.order.address)
        addresses = self._resolve_host(host, port)
        deadline_s = time.monotonic() + CONNECT_S
        failure = OSError("its name has no address")
        for index, (family, address) in enumerate(addresses):
            # One that hangs must leave time for the others.
            share_s = (deadline_s - time.monotonic()) / (len(addresses) - index)
            connection = _Connection(family)
            try:
                self._connect_address(connection, (address, port), host, time.monotonic() + share_s)
            except TimeoutError:
                connection.close_socket()
                failure = OSError(f"{address} was not connected within {share_s:.1f} s")
            except OSError as error:
                connection.close_socket()
                failure = error
            except BaseException:
                connection.close_socket()
                raise
            else:
                return connection
        raise failure

    def _connect_address(
        self, connection: "_Connection", address: tuple[str, int], host: str, deadline_s: float
    ) -> None:
        tls = self._make_tls_context() if self._access.order.tls else None
        connection.connect_address(address, tls, host, deadline_s)
        if password := self._access.read_value(PASSWORD):
            user = self._access.read_value(USERNAME)
            login = [part.encode() for part in ("AUTH", user, password) if part]
            connection.exchange_commands([login], deadline_s)
        elif self._access.order.secret and not self._access.read_value(CA):
            raise StoreRefusedError(
                f"{self._access.server_title}: Secret {self._access.order.secret} of the namespace does not exist, or has neither "
                f"{PASSWORD} nor {CA}"
            )

    def _resolve_host(self, host: str, port: int) -> Sequence[Address]:
        addresses = _list_addresses(host, port)
        for _, address in addresses:
            if refusal := explain_refusal(address, allow_loopback=self._access.allow_loopback):
                raise StoreRefusedError(
                    f"{self._access.server_title}: {address} is {refusal}: connections to it are not allowed"
                )
        return addresses

    def _make_tls_context(self) -> ssl.SSLContext:
        """Return the context of the Secret's files, the same one until they change."""
        authority, *own = (self._access.read_value(name) for name in (CA, CERTIFICATE, PRIVATE_KEY))
        files = (authority, *own)
        if self._tls is None or self._tls[0] != files:
            context = ssl.create_default_context()
            if authority:
                context.load_verify_locations(cadata=authority)
            if own[0]:
                folder = self._access.secret_dir
                context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
            self._tls = files, context
        return self._tls[1]


class _Connection:
    """A socket, and what was received and not read yet; not for several threads."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._buffer = bytearray()
        self._received = 0

    def connect_address(
        self, address: tuple[str, int], tls: ssl.SSLContext | None, host: str, deadline_s: float
    ) -> None:
        """Connect, and with `tls` check that the server is `host`."""
        self._socket.settimeout(_measure_rest(deadline_s))
        self._socket.connect(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket.settimeout(_measure_rest(deadline_s))
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)

    def close_socket(self) -> None:
        """Close it."""
        self._socket.close()

    def exchange_commands(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        """Send commands and return the reply of each."""
        self._socket.settimeout(_measure_rest(deadline_s))
        self._socket.sendall(b"".join(map(encode_command, commands)))
        self._received = 0
        return [self._read_reply(deadline_s) for _ in commands]

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
        self._socket.settimeout(_measure_rest(deadline_s))
        block = self._socket.recv(_BLOCK_BYTES)
        if not block:
            raise OSError("it closed the connection")
        self._received += len(block)
        if self._received > MAX_REPLY_BYTES:
            raise ValueError(f"its replies have more than {MAX_REPLY_BYTES} bytes")
        self._buffer += block


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


def _close_opened(opening: "Future[_Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close_socket()


def _measure_rest(deadline_s: float) -> float:
    """Return the seconds until then; raises TimeoutError if there are none."""
    rest_s = deadline_s - time.monotonic()
    if rest_s <= 0:
        raise TimeoutError
    return rest_s
