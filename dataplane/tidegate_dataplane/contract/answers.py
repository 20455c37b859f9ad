"""Read HTTP responses up to a limit of bytes: a peer may answer without end, or with anything."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

MAX_LINE_BYTES: Final = 1 << 16
"""The limit for one line; no line of a metrics page is longer."""
_CHUNK_BYTES: Final = 1 << 16
_HEADERS: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}


class AnswerError(ValueError):
    """An answer that is too large or malformed; the message does not name the server."""


def make_bounded_session(
    timeout: aiohttp.ClientTimeout, connector: aiohttp.BaseConnector | None = None
) -> aiohttp.ClientSession:
    """Return a session for short answers, with `timeout` for each, without decompression and without cookies.

    A few compressed bytes may become many, which a limit on the bytes read would notice too late.
    """
    return aiohttp.ClientSession(
        timeout=timeout,
        connector=connector,
        headers=_HEADERS,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def read_body(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        AnswerError: it has more than `limit_bytes`. No more than that is kept in memory, and the connection is closed.
    """
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit_bytes:
            response.close()
            raise AnswerError(f"the answer has more than {limit_bytes} bytes")
    return bytes(body)


async def read_lines(response: aiohttp.ClientResponse, limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Yield the body's lines without their ends, in lists of those that have arrived: some thousand at most.

    Raises:
        AnswerError: there are more than `limit_bytes`, or a line has more than MAX_LINE_BYTES.
    """
    read_bytes, partial_line = 0, b""
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        read_bytes += len(chunk)
        if read_bytes > limit_bytes:
            response.close()
            raise AnswerError(f"the answer has more than {limit_bytes} bytes")
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        if len(partial_line) > MAX_LINE_BYTES:
            response.close()
            raise AnswerError(f"a line has more than {MAX_LINE_BYTES} bytes")
        yield lines
    if partial_line:
        yield [partial_line]


def parse_json(body: bytes) -> Any:
    """Return the JSON value.

    Raises:
        AnswerError: the body is not JSON, not text, or nested more deeply than Python's parser supports.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the answer is no JSON: {error}") from error
