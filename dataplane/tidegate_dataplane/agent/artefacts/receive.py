"""Download of one file of an artefact: bounded, hashed on arrival, and resumed after a broken connection."""

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile
from tidegate_dataplane.agent.artefacts.parts import Part, Parts
from tidegate_dataplane.agent.artefacts.source import Download, Source
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

# Pauses between attempts that bring nothing; one that brings bytes starts them again.
RESUME_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)

Pause = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class Progress:
    """Bytes received and, if the sources declare it, bytes in total; `resumed` counts resumed connections."""

    done: int = 0
    total: int | None = None
    resumed: int = 0


@dataclass(slots=True)
class Basket:
    """Folder for fetched files and its limit; `used` counts the bytes of complete files."""

    folder: Path
    limit_bytes: int
    progress: Progress
    what: str
    parts: Parts
    pause: Pause = asyncio.sleep
    used: int = 0


async def receive(source: Source, path: str, destination: str, basket: Basket) -> FetchedFile:
    """Download one file into the target's folder and return its path, size and digest.

    Raises:
        ArtefactError: as the source does; ArtefactTooLarge; ChecksumMismatch; FetchFailed if the disk is full.
    """
    part = Part(basket.folder / destination)
    try:
        part = await asyncio.to_thread(basket.parts.part, f"{path}\n{destination}")
        await _receive_whole(source, path, part, basket)
        digest = part.hasher.hexdigest()
        await asyncio.to_thread(part.finish, basket.folder / destination)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.drop()
        raise _not_stored(basket, error) from error
    finally:
        part.close()
    basket.used += part.size
    return FetchedFile(destination, part.size, digest)


async def _receive_whole(source: Source, path: str, part: Part, basket: Basket) -> None:
    idle = 0
    while True:
        before, resume = part.size, part.resume()
        try:
            async with source.open(path) if resume is None else source.open(path, resume) as download:
                await _take(download, part, basket)
                _check_promise(download, part, path, basket)
            return
        except ArtefactError as error:
            idle = 0 if part.size > before else idle + 1
            if not error.refusal.may_pass or part.resume() is None or idle >= len(RESUME_PAUSES_S):
                raise
        basket.progress.resumed += 1
        await basket.pause(RESUME_PAUSES_S[idle])


async def _take(download: Download, part: Part, basket: Basket) -> None:
    """Append the download to the partial file; start over if its content has changed."""
    goes_on = download.start > 0 and download.start == part.size and download.validator == part.validator
    if not goes_on:
        if download.start != 0:
            position, _ = part.size, await asyncio.to_thread(part.begin, None)
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"{basket.what}: the source returned byte {download.start} of other content instead of byte {position}",
            )
        await asyncio.to_thread(part.begin, download.validator, download.size)
    _count(download, part, basket.progress)
    _check_room(basket, download, part)
    async for chunk in download.chunks:
        if basket.used + part.size + len(chunk) > basket.limit_bytes:
            raise _too_large(basket, basket.used + part.size + len(chunk))
        await asyncio.to_thread(part.append, chunk)
        _count(download, part, basket.progress)
    if download.size is not None and part.size != download.size:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{basket.what}: received {part.size} of {download.size} bytes",
        )


def _count(download: Download, part: Part, progress: Progress) -> None:
    if download.counted:
        progress.done += part.size - part.counted
        part.counted = part.size


def _check_promise(download: Download, part: Part, path: str, basket: Basket) -> None:
    if download.sha256 is None or part.hasher.hexdigest() == download.sha256:
        return
    digest = part.hasher.hexdigest()
    part.begin(None)
    raise ArtefactError(
        FailureReason.CHECKSUM_MISMATCH,
        f"{path} of {basket.what} has sha256 {digest} and its source promises {download.sha256}: publish it again",
    )


def _check_room(basket: Basket, download: Download, part: Part) -> None:
    if download.size is None:
        return
    remaining = download.size - part.size
    if download.counted:
        basket.progress.total = basket.progress.done + remaining
    if basket.used + download.size > basket.limit_bytes:
        raise _too_large(basket, basket.used + download.size)
    free = shutil.disk_usage(basket.folder).free
    if remaining > free:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{basket.what} needs {remaining} more bytes and the pod's disk has {free} left: free space on the node",
        )


def _too_large(basket: Basket, size: int) -> ArtefactError:
    return ArtefactError(
        FailureReason.ARTEFACT_TOO_LARGE,
        f"{basket.what} has at least {size} bytes and {basket.limit_bytes} are allowed (models.maxArtefactBytes)",
    )


def _not_stored(basket: Basket, error: OSError) -> ArtefactError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(basket.folder).free
        return ArtefactError(
            FailureReason.FETCH_FAILED,
            f"the pod's disk is full after {basket.progress.done} bytes of {basket.what} ({free} left): "
            "free space on the node",
        )
    return ArtefactError(
        FailureReason.FETCH_FAILED, f"{basket.what} cannot be stored: {error.strerror or error}"
    )
