"""Exchange HTTP/1.1 requests and responses over one socket without blocking, so that one thread can wait for many.

http.client takes a thread for each connection, and five times the CPU time (ADR 74).
"""

import contextlib
import errno
import os
import re
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_HEAD_BYTES: Final = 64 << 10
RECEIVE_BYTES: Final = 64 << 10
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: (.*))?")
_HEADERS: Final = re.compile(
    rb"^(connection|content-length|inference-header-content-length|transfer-encoding):([^\r\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
"""The headers that are read: those of HTTP that say where a body ends, and the one of Triton's binary tensors."""
_CHUNK_SIZE: Final = re.compile(rb"[0-9a-fA-F]{1,15}")
_ALIGNMENT: Final = 16
_MAX_PIECES: Final = 1024
"""Linux sends no more at once (IOV_MAX)."""

Buffer = bytes | bytearray | memoryview


class ResponseError(Exception):
    """The other side violated HTTP, or closed the connection before the end of its response."""


class TooLongError(Exception):
    """A response has more bytes than the caller accepts."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response; of its headers only some are read, with names in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: memoryview
    will_close: bool


class HttpConnection:
    """One connection with at most one request in flight; no method blocks.

    All methods raise OSError or ResponseError if the connection fails.
    """

    def __init__(self, addresses: Sequence[tuple[Any, ...]]) -> None:
        """Begin to connect to the first of the addresses, as `getaddrinfo` returns them, that can be reached."""
        self._addresses = deque(addresses)
        self._outgoing: list[Buffer] = []
        self._response: ResponseReader | None = None
        self._socket = self._begin_connecting()
        self._connecting = True

    @property
    def descriptor_number(self) -> int:
        """Return the descriptor to wait on; it may change until the connection is made."""
        return self._socket.fileno()

    @property
    def awaited_events(self) -> int:
        """Return the events of `select.poll` to wait for before `advance_exchange`."""
        return select.POLLIN | (select.POLLOUT if self._connecting or self._outgoing else 0)

    @property
    def is_busy(self) -> bool:
        """Return whether a request is in flight."""
        return self._response is not None

    @property
    def is_sending(self) -> bool:
        """Return whether a part of the request is not sent yet."""
        return bool(self._outgoing)

    def begin_request(self, pieces: Sequence[Buffer], max_body_bytes: int) -> None:
        """Begin to send a request, given as its bytes in order, once the one before has been answered."""
        self._outgoing = list(pieces)
        self._response = ResponseReader(max_body_bytes)
        if not self._connecting:
            self._send_pieces()

    def advance_exchange(self) -> HttpResponse | None:
        """Send and receive what is possible now; return the response once it is complete.

        Raises:
            TooLongError: the body of the response has more than `max_body_bytes`.
        """
        if self._connecting and not self._finish_connecting():
            return None
        if self._outgoing:
            self._send_pieces()
        response: HttpResponse | None = None
        if self._response is not None:
            with contextlib.suppress(BlockingIOError):
                response = self._response.receive_response(self._socket)
        if response is not None:
            self._response = None
        return response

    def close_connection(self) -> None:
        """Close the connection, whatever is in flight."""
        self._socket.close()

    def _begin_connecting(self) -> socket.socket:
        while True:
            family, kind, protocol, _, address = self._addresses.popleft()
            try:
                connection = socket.socket(family, kind, protocol)
            except OSError:  # the system lacks this family
                if not self._addresses:
                    raise
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = connection.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                return connection
            connection.close()
            if not self._addresses:
                raise OSError(code, os.strerror(code))

    def _finish_connecting(self) -> bool:
        """Return whether the connection is made; if it failed, begin with the next address."""
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._socket.close()
            if not self._addresses:
                raise OSError(code, os.strerror(code))
            self._socket = self._begin_connecting()
            return False
        self._connecting = False
        return True

    def _send_pieces(self) -> None:
        try:
            sent = self._socket.sendmsg(self._outgoing[:_MAX_PIECES])
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            # The response to the part that was sent may have arrived; without one, receiving fails.
            self._outgoing = []
            return
        while self._outgoing and sent >= len(self._outgoing[0]):
            sent -= len(self._outgoing.pop(0))
        if sent:
            self._outgoing[0] = memoryview(self._outgoing[0])[sent:]


class ResponseReader:
    """Receives one response; its body is received where it stays, unless its length comes last."""

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._received = bytearray()
        self._status = 0
        self._reason = ""
        self._headers: Mapping[str, str] = {}
        self._will_close = False
        self._body: memoryview | None = None
        """The buffer of a body of known length."""
        self._filled = 0
        self._chunks: bytearray | None = None
        """The decoded body of a chunked response."""

    def receive_response(self, connection: socket.socket) -> HttpResponse | None:
        """Receive what has arrived; return the response once it is complete."""
        if self._body is not None:
            received = connection.recv_into(self._body[self._filled :])
            if not received:
                raise ResponseError(f"an answer of {self._filled} of {len(self._body)} bytes")
            self._filled += received
            return self._make_response(self._body) if self._filled == len(self._body) else None
        content = connection.recv(RECEIVE_BYTES)
        self._received += content
        if not self._status:
            if not content:
                raise ResponseError("it closed the connection without an answer")
            return self._take_head()
        return self._take_content(closed=not content)

    def _take_head(self) -> HttpResponse | None:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > MAX_HEAD_BYTES:
                raise ResponseError(f"headers of more than {MAX_HEAD_BYTES} bytes")
            return None
        status_line, _, lines = bytes(self._received[:end]).partition(b"\r\n")
        del self._received[: end + 4]
        match = _STATUS_LINE.fullmatch(status_line)
        if match is None:
            raise ResponseError(f"no answer of HTTP/1: {status_line[:100]!r}")
        self._headers = {
            name.lower().decode(): value.decode("latin-1").strip() for name, value in _HEADERS.findall(lines)
        }
        self._status, self._reason = int(match[2]), (match[3] or b"").decode("latin-1")
        self._will_close = match[1] == b"0" or self._headers.get("connection", "").lower() == "close"
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunks = bytearray()
        elif "content-length" in self._headers:
            return self._take_length(self._headers["content-length"])
        return self._take_content(closed=False)

    def _take_length(self, text: str) -> HttpResponse | None:
        if not text.isdecimal():
            raise ResponseError(f"a content-length of {text[:100]!r}")
        length = int(text)
        self._limit_length(length)
        # Tensors follow a JSON document; they are read in place, so they begin at a multiple of their elements' size.
        json_length = self._headers.get("inference-header-content-length", "0")
        padding = -int(json_length) % _ALIGNMENT if json_length.isdecimal() else 0
        self._body = memoryview(bytearray(padding + length))[padding:]
        self._filled = min(len(self._received), length)
        self._body[: self._filled] = self._received[: self._filled]
        return self._make_response(self._body) if self._filled == length else None

    def _take_content(self, *, closed: bool) -> HttpResponse | None:
        """Take what was received of a body whose length was not announced."""
        if self._chunks is None:
            self._limit_length(len(self._received))
            self._will_close = True
            return self._make_response(memoryview(self._received)) if closed else None
        if closed:
            raise ResponseError(f"an answer that ends after {len(self._chunks)} bytes, within its chunks")
        while (line_end := self._received.find(b"\r\n")) >= 0:
            size = _parse_chunk_size(self._received[:line_end])
            if size == 0:
                if self._received.find(b"\r\n\r\n", line_end) >= 0:
                    return self._make_response(memoryview(self._chunks))
                break
            self._limit_length(len(self._chunks) + size)
            begin, end = line_end + 2, line_end + 2 + size
            if len(self._received) < end + 2:
                return None
            self._chunks += self._received[begin:end]
            del self._received[: end + 2]
        if len(self._received) > MAX_HEAD_BYTES:
            raise ResponseError(f"a chunk whose length has more than {MAX_HEAD_BYTES} bytes")
        return None

    def _limit_length(self, length: int) -> None:
        if length > self._max_body_bytes:
            raise TooLongError(f"an answer of more than {self._max_body_bytes} bytes")

    def _make_response(self, body: memoryview) -> HttpResponse:
        return HttpResponse(self._status, self._reason, self._headers, body, self._will_close)


def _parse_chunk_size(line: bytearray) -> int:
    text = bytes(line.partition(b";")[0]).strip()
    if not _CHUNK_SIZE.fullmatch(text):
        raise ResponseError(f"a chunk of length {text[:100]!r}")
    return int(text, 16)
