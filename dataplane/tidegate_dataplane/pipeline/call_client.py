"""Send one call of a plan over a persistent connection to the gateway: REST with Triton's binary tensors."""

import contextlib
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final

from tidegate_dataplane.contract import ModelCall
from tidegate_dataplane.pipeline.connection import (
    Buffer,
    HttpConnection,
    HttpResponse,
    ResponseError,
    TooLongError,
)
from tidegate_dataplane.pipeline.failures import CallError, Deadline, FailureKind
from tidegate_dataplane.pipeline.wire import (
    LENGTH_HEADER,
    Arrays,
    EncodedTensor,
    decode_response,
    encode_document,
    read_error_message,
)

MAX_MESSAGE_CHARS = 2048
MAX_ANSWER_BYTES = 256 << 20
KIND_BY_STATUS: Mapping[int, FailureKind] = {
    400: FailureKind.REFUSED,
    413: FailureKind.REFUSED,
    408: FailureKind.TIMED_OUT,
    504: FailureKind.TIMED_OUT,
    500: FailureKind.FAILED,
}
"""The kind of failure by HTTP status; any other status is UNAVAILABLE: no endpoint, or a limit was reached."""
_HEADER: Final = re.compile(r"[!-9;-~]+: [ -~\x80-\xff]*")


class ModelCallClient:
    """Sends the requests of one call, one at a time; only the look-up of the gateway's name may block.

    If the gateway has closed the connection since the last request, it connects and sends again: inference is idempotent.
    """

    def __init__(self, gateway: str, call: ModelCall, clock: Callable[[], float] = time.monotonic) -> None:
        host, _, port = gateway.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._call = call
        self._clock = clock
        self.connection: HttpConnection | None = None
        """The connection to wait on while a request is in flight."""
        self._resolver: ThreadPoolExecutor | None = None
        self._resolving: Future[Sequence[tuple[Any, ...]]] | None = None
        self._request: Sequence[Buffer] = ()
        self._deadline = Deadline(0, 0)
        self._may_retry = False

    def begin_request(self, tensors: Sequence[EncodedTensor], deadline: Deadline) -> None:
        """Begin to ask for the call's outputs for these inputs.

        Raises:
            CallError: the gateway cannot be reached.
        """
        self.clear_request()
        document = encode_document(tensors, (*self._call.outputs, *self._call.optional_outputs))
        length = len(document) + sum(len(tensor.content) for tensor in tensors)
        head = f"{self._request_head}{LENGTH_HEADER}: {len(document)}\r\nContent-Length: {length}\r\n\r\n".encode(
            "latin-1"
        )
        self._request = (head + document, *(tensor.content for tensor in tensors if len(tensor.content)))
        self._deadline = deadline
        self._may_retry = self.connection is not None
        self._send_request()

    def advance_request(self) -> Arrays | None:
        """Send and receive what is possible now; return the outputs once they are complete.

        Raises:
            CallError: there is no answer.
        """
        connection = self.connection
        if connection is None:
            raise CallError(FailureKind.FAILED, "no request is in flight")
        try:
            response = connection.advance_exchange()
        except TooLongError as error:
            self.abort_request()
            raise CallError(FailureKind.FAILED, str(error)) from error
        except (OSError, ResponseError) as error:
            self._handle_failure(error)
            return None
        if response is None:
            return None
        if response.will_close or connection.is_sending:
            self.abort_request()
        return self._read_response(response)

    def abort_request(self) -> None:
        """Close the connection and end the request in flight."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close_connection()

    def clear_request(self) -> None:
        """End what is in flight, whose response must not answer the next request, and free the memory of the last one."""
        if self.connection is not None and self.connection.is_busy:
            self.abort_request()
        self._request = ()

    def close_client(self) -> None:
        """Close the connection, and end the thread that looks up names."""
        self.abort_request()
        if self._resolver is not None:
            self._resolver.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _request_head(self) -> str:
        """Return the first lines of every request.

        Raises:
            ValueError: a header of the plan is none.
        """
        lines = [f"{name}: {value}" for name, value in self._call.headers.items()]
        for line in lines:
            if not _HEADER.fullmatch(line):
                raise ValueError(f"invalid header {line!r}")
        request_line = f"POST /v2/models/{self._call.model}/infer HTTP/1.1"
        fixed = f"Host: {self._host}:{self._port}", "Content-Type: application/octet-stream"
        return "".join(f"{line}\r\n" for line in (request_line, *fixed, *lines))

    def _send_request(self) -> None:
        try:
            if self.connection is None:
                self.connection = HttpConnection(self._resolve_address())
            self.connection.begin_request(self._request, MAX_ANSWER_BYTES)
        except (OSError, ResponseError) as error:
            self._handle_failure(error)

    def _handle_failure(self, error: Exception) -> None:
        """Send the request again over a new connection, or raise the reason why there is no answer."""
        self.abort_request()
        if self._clock() >= self._deadline.at_s:
            raise self._deadline.timeout_error() from error
        if not self._may_retry:
            reason = str(error) or type(error).__name__
            message = f"the gateway {self._host}:{self._port} does not answer: {reason}"
            raise CallError(FailureKind.UNAVAILABLE, message) from error
        self._may_retry = False
        self._send_request()

    def _resolve_address(self) -> Sequence[tuple[Any, ...]]:
        """Return the addresses of the gateway; looking them up has no timeout of its own, so a thread does it."""
        with contextlib.suppress(OSError):
            return socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        if self._resolving is None:
            self._resolver = self._resolver or ThreadPoolExecutor(1, thread_name_prefix="resolve gateway")
            self._resolving = self._resolver.submit(
                socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM
            )
        try:
            return self._resolving.result(max(self._deadline.at_s - self._clock(), 0))
        finally:
            if self._resolving.done():
                self._resolving = None

    def _read_response(self, response: HttpResponse) -> Arrays:
        if response.status != HTTPStatus.OK:
            message = read_error_message(response.body, MAX_MESSAGE_CHARS)
            raise CallError(
                KIND_BY_STATUS.get(response.status, FailureKind.UNAVAILABLE),
                message or f"{response.status} {response.reason}"[:MAX_MESSAGE_CHARS],
            )
        try:
            json_length = int(response.headers.get(LENGTH_HEADER.lower(), len(response.body)))
            call = self._call
            return decode_response(response.body, json_length, call.outputs, call.optional_outputs)
        except ValueError as error:
            raise CallError(FailureKind.FAILED, f"an answer that cannot be read: {error}") from error
