"""s3: source: any S3-compatible store; endpoint and credentials come from the AWS_* variables of the pod."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tidegate_dataplane.agent.artefacts.files import MAX_FILES
from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, Download
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

if TYPE_CHECKING:
    from obstore import BytesStream
    from obstore.store import S3Store

# Of one whole object; a stall is noticed by the time without a chunk.
REQUEST_TIMEOUT = "6 hours"


class S3Source:
    """Reads `s3://<bucket>/<prefix>/<path>`."""

    def __init__(
        self, uri: ArtefactUri, *, environment: Mapping[str, str], stall_timeout_s: float = 30.0
    ) -> None:
        self._uri = uri
        self._stall_timeout_s = stall_timeout_s
        self._store = _store(uri, environment)

    @asynccontextmanager
    async def open(self, path: str) -> AsyncGenerator[Download, None]:
        """Start reading one object."""
        from obstore import get_async

        try:
            async with asyncio.timeout(self._stall_timeout_s):
                result = await get_async(self._store, self._key(path))
        except Exception as error:
            raise self._translated(path, error) from error
        yield Download(result.meta["size"], self._chunks(path, result.stream(min_chunk_size=CHUNK_BYTES)))

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the keys below `folder`, relative to it."""
        from obstore import list as list_objects

        prefix = self._key(folder)
        found: list[str] = []
        try:
            async with asyncio.timeout(self._stall_timeout_s * 4):
                async for page in list_objects(self._store, prefix=prefix):
                    found += [meta["path"].removeprefix(prefix).lstrip("/") for meta in page]
                    if len(found) > MAX_FILES:
                        raise ArtefactError(
                            FailureReason.ARTEFACT_INVALID,
                            f"{self._uri}/{folder} holds more than {MAX_FILES} objects",
                        )
        except ArtefactError:
            raise
        except Exception as error:
            raise self._translated(folder, error) from error
        return tuple(sorted(found))

    def _key(self, path: str) -> str:
        return f"{self._uri.path}/{path}".strip("/")

    async def _chunks(self, path: str, stream: "BytesStream") -> AsyncIterator[bytes]:
        chunks = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(self._stall_timeout_s):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise self._translated(path, error) from error
            yield bytes(chunk)

    def _translated(self, path: str, error: Exception) -> ArtefactError:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        where = f"{self._uri.text.rstrip('/')}/{path}"
        if isinstance(error, FileNotFoundError):
            return ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, f"there is no {where}")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return ArtefactError(
                FailureReason.FETCH_FAILED,
                f"{where} may not be read with the credentials of Secret tidegate-storage",
            )
        said = "no answer in time" if isinstance(error, TimeoutError) else _first_line(error)
        return ArtefactError(FailureReason.FETCH_FAILED, f"{where} cannot be fetched: {said}")


def _store(uri: ArtefactUri, environment: Mapping[str, str]) -> "S3Store":
    # Imported here: a pod that fetches nothing from S3 does not pay 10 MiB for it.
    from obstore.store import S3Store

    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    return S3Store(
        uri.authority,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": "10 seconds",
            "timeout": REQUEST_TIMEOUT,
        },
        # The agent's own retries are the ones that are reported.
        retry_config={"max_retries": 1},
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
