"""Reads what others answer over HTTP, no more of it than agreed: a neighbour may answer without end, or with anything."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp

LINE_BYTES: Final = 1 << 16
"""A longer line is none of a page of metrics."""
_CHUNK_BYTES: Final = 1 << 16
_HEADERS: Final[Mapping[str, str]] = {"Accept-Encoding": "identity"}


class AnswerError(ValueError):
    """An answer that is larger than agreed, or is not what it should be; the message does not say whose."""


def bounded_session(
    timeout: aiohttp.ClientTimeout, connector: aiohttp.BaseConnector | None = None
) -> aiohttp.ClientSession:
    """Return a session for short answers: `timeout` bounds each of them, and none is decompressed or leaves a cookie.

    Few compressed bytes may become many, which a limit on what is read would see too late.
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
        AnswerError: it has more than `limit_bytes`. No more than that is held, and the connection is not used again.
    """
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit_bytes:
            response.close()
            raise AnswerError(f"the answer has more than {limit_bytes} bytes")
    return bytes(body)


async def read_lines(response: aiohttp.ClientResponse, limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Give the body's lines without their ends, as many at a time as have arrived: some thousand at most.

    Raises:
        AnswerError: there are more than `limit_bytes`, or a line has more than LINE_BYTES.
    """
    read_bytes, begun = 0, b""
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        read_bytes += len(chunk)
        if read_bytes > limit_bytes:
            response.close()
            raise AnswerError(f"the answer has more than {limit_bytes} bytes")
        *lines, begun = (begun + chunk).split(b"\n")
        if len(begun) > LINE_BYTES:
            response.close()
            raise AnswerError(f"a line has more than {LINE_BYTES} bytes")
        yield lines
    if begun:
        yield [begun]


def parse_json(body: bytes) -> Any:
    """Return the JSON value.

    Raises:
        AnswerError: it is no JSON, no text, or is nested deeper than Python's parser goes.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"the answer is no JSON: {error}") from error
