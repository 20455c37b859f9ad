"""The source for https: URIs: files by URL, resumed by range."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import quote

import aiohttp

from tidegate_dataplane.agent.artefacts.checked_client import CheckedClient, HttpRules, strip_query
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

ABSENT = frozenset({404, 410})
DENIED = frozenset({401, 403})
FULL, PARTIAL, RANGE_NOT_SATISFIABLE = 200, 206, 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class HttpsSource:
    """Reads `<uri>/<path>`; there is no listing, so an artefact is its model file and the files that this names."""

    def __init__(self, uri: ArtefactUri, rules: HttpRules, credentials: SecretCredentials) -> None:
        self._uri = uri
        self._client = CheckedClient(uri.text, rules)
        self._credentials = credentials

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one file."""
        url = f"{self._uri.text.rstrip('/')}/{quote(path)}"
        authorization = self._credentials.https_authorization()
        async with open_url(
            self._client,
            url,
            resume,
            authorization=authorization,
            denial_hint=self._credentials.explain_denial(),
        ) as download:
            yield download

    async def list(self, folder: str) -> None:
        """Return None: https: has no listing."""
        del folder

    async def identify_content(self, path: str) -> str:
        """Return the ETag of a file, or the time of its last change; asks for its first byte alone."""
        url = f"{self._uri.text.rstrip('/')}/{quote(path)}"
        authorization = self._credentials.https_authorization()
        headers = {"Range": "bytes=0-0"}
        async with self._client.get(url, headers=headers, authorization=authorization) as response:
            if response.status not in (FULL, PARTIAL, RANGE_NOT_SATISFIABLE):
                raise _status_error(response.status, url, self._credentials.explain_denial())
            identity = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if not identity:
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"{strip_query(url)} has neither an ETag nor a Last-Modified, so that a change of it cannot be noticed",
            )
        return identity


@asynccontextmanager
async def open_url(
    client: CheckedClient,
    url: str,
    resume: ResumePoint | None,
    *,
    authorization: str | None = None,
    denial_hint: str = "",
    sha256: str | None = None,
) -> AsyncGenerator[Download, None]:
    """Start reading a URL, at `resume` if the server still has the same content.

    The hint is added to the message for a denied request; `sha256` is the known digest of the content.
    """
    async with AsyncExitStack() as stack:
        headers = _range_headers(resume)
        response = await stack.enter_async_context(
            client.get(url, headers=headers, authorization=authorization)
        )
        if headers and response.status == RANGE_NOT_SATISFIABLE:  # it has become shorter, or knows no ranges
            response = await stack.enter_async_context(client.get(url, authorization=authorization))
        if response.status not in (FULL, PARTIAL):
            raise _status_error(response.status, url, denial_hint)
        start, size = _parse_extent(response, url)
        etag = response.headers.get("ETag", "")
        yield Download(
            size,
            _read_chunks(response, url),
            start=start,
            validator=etag if etag.startswith('"') else None,
            sha256=sha256,
        )


def _range_headers(resume: ResumePoint | None) -> dict[str, str]:
    if resume is None:
        return {}
    last = "" if resume.size is None else str(resume.size - 1)
    return {"Range": f"bytes={resume.start}-{last}", "If-Range": resume.validator}


def _parse_extent(response: aiohttp.ClientResponse, url: str) -> tuple[int, int | None]:
    """Return (first byte, size of the whole file)."""
    if response.status == FULL:
        return 0, response.content_length
    content_range = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{strip_query(url)} answered 206 with Content-Range {content_range[:100]!r}",
        )
    return int(match[1]), None if match[2] == "*" else int(match[2])


async def _read_chunks(response: aiohttp.ClientResponse, url: str) -> AsyncIterator[bytes]:
    received = 0
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        received += len(chunk)
        yield chunk
    if response.content_length is not None and received < response.content_length:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{strip_query(url)} ended after {received} of {response.content_length} bytes",
        )


def _status_error(status: int, url: str, denial_hint: str) -> ArtefactError:
    if status in ABSENT:
        return ArtefactError(
            FailureReason.ARTEFACT_NOT_FOUND, f"{strip_query(url)} answered {status}: it is not there"
        )
    hint = f": {denial_hint}" if status in DENIED and denial_hint else ""
    return ArtefactError(FailureReason.FETCH_FAILED, f"{strip_query(url)} answered {status}{hint}")
