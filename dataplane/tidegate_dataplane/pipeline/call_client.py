"""Send one call of a plan over a persistent connection to the gateway.

It uses REST with Triton's binary tensors and the standard library alone: Triton's Python has no gRPC client.
"""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping

from tidegate_dataplane.contract import ModelCall
from tidegate_dataplane.pipeline.failures import CallError, Deadline, FailureKind
from tidegate_dataplane.pipeline.wire import LENGTH_HEADER, Arrays, decode_response, encode_request

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


class ModelCallClient:
    """Sends the requests of one call, one at a time, from one thread; any thread may call `abort_request`."""

    def __init__(self, gateway: str, call: ModelCall, clock: Callable[[], float] = time.monotonic) -> None:
        host, _, port = gateway.rpartition(":")
        self._host, self._port = host, int(port)
        self._call = call
        self._clock = clock
        self._connection: http.client.HTTPConnection | None = None

    def infer(self, arrays: Arrays, deadline: Deadline) -> Arrays:
        """Return the call's outputs for these inputs, before the deadline.

        If the gateway has closed the connection since the last request, it connects and sends again: inference is
        idempotent.

        Raises:
            CallError: there is no answer.
        """
        body, json_length = encode_request(arrays, self._call.inputs, self._call.outputs)
        headers = {
            **self._call.headers,
            LENGTH_HEADER: str(json_length),
            "Content-Type": "application/octet-stream",
        }
        reused = self._connection is not None
        try:
            return self._post_request(body, headers, deadline.at_s)
        except (OSError, http.client.HTTPException) as error:
            self.abort_request()
            if not reused or isinstance(error, TimeoutError):
                raise self._no_answer_error(error, deadline) from error
        try:
            return self._post_request(body, headers, deadline.at_s)
        except (OSError, http.client.HTTPException) as error:
            self.abort_request()
            raise self._no_answer_error(error, deadline) from error

    def abort_request(self) -> None:
        """Close the connection and end the request in flight; any thread may call this."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.sock is not None:
            # Closing alone would not wake a thread that reads from it.
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()

    def _post_request(self, body: bytes, headers: Mapping[str, str], deadline_s: float) -> Arrays:
        connection = self._connection or http.client.HTTPConnection(self._host, self._port)
        self._connection = connection
        self._limit_time(connection, deadline_s)
        connection.request("POST", f"/v2/models/{self._call.model}/infer", body, dict(headers))
        self._limit_time(connection, deadline_s)
        response = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            self.abort_request()
            raise CallError(FailureKind.FAILED, f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        if response.length:
            raise http.client.IncompleteRead(content, response.length)
        if response.will_close:
            self.abort_request()
        if response.status != http.HTTPStatus.OK:
            raise CallError(
                KIND_BY_STATUS.get(response.status, FailureKind.UNAVAILABLE),
                _read_error_message(response, content),
            )
        try:
            json_length = int(response.headers.get(LENGTH_HEADER, len(content)))
            return decode_response(content, json_length, self._call.outputs)
        except ValueError as error:
            raise CallError(FailureKind.FAILED, f"an answer that cannot be read: {error}") from error

    def _limit_time(self, connection: http.client.HTTPConnection, deadline_s: float) -> None:
        remaining_s = deadline_s - self._clock()
        if remaining_s <= 0:
            raise TimeoutError
        connection.timeout = remaining_s
        if connection.sock is not None:
            connection.sock.settimeout(remaining_s)

    def _no_answer_error(self, error: Exception, deadline: Deadline) -> CallError:
        if isinstance(error, TimeoutError) or self._clock() >= deadline.at_s:
            return deadline.timeout_error()
        reason = str(error) or type(error).__name__
        return CallError(
            FailureKind.UNAVAILABLE, f"the gateway {self._host}:{self._port} does not answer: {reason}"
        )


def _read_error_message(response: http.client.HTTPResponse, content: bytes) -> str:
    """Return the error message: Triton sends JSON, the gateway plain text."""
    text = content.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict) and "error" in document:
            text = str(document["error"])
    return (text or f"{response.status} {response.reason}")[:MAX_MESSAGE_CHARS]
