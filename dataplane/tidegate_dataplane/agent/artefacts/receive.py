"""Download of one file of an artefact: bounded, hashed on arrival, and resumed after a broken connection."""

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile
from tidegate_dataplane.agent.artefacts.partial_files import PartialFile, PartialFiles
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, Download
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import DesiredState, FailureReason

# Pauses between attempts that bring nothing; one that brings bytes starts them again.
RESUME_PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)

Pause = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class DownloadProgress:
    """Bytes received and, if the sources declare it, bytes in total; `resumed` counts resumed connections."""

    done: int = 0
    total: int | None = None
    resumed: int = 0


@dataclass(slots=True)
class FetchTarget:
    """Folder for fetched files and its limit; `used` counts the bytes of complete files."""

    folder: Path
    limit_bytes: int
    progress: DownloadProgress
    artefact: str
    parts: PartialFiles
    pause: Pause = asyncio.sleep
    used: int = 0


def open_target(
    order: DesiredState, folder: Path, progress: DownloadProgress, *, partial_dir: Path
) -> FetchTarget:
    """Return the target of an order's downloads, with what an earlier attempt received of it."""
    artefact = f"{order.uri}/{order.version}"
    partial_files = PartialFiles(partial_dir, f"{artefact}\n{order.revision}")
    partial_files.prepare_folder()
    return FetchTarget(folder, order.max_artefact_bytes, progress, artefact, partial_files)


async def receive_file(
    source: ArtefactSource, path: str, destination: str, target: FetchTarget
) -> FetchedFile:
    """Download one file into the target's folder and return its path, size and digest.

    Raises:
        ArtefactError: as the source does; ArtefactTooLarge; ChecksumMismatch; FetchFailed if the disk is full.
    """
    part = PartialFile(target.folder / destination)
    try:
        part = await asyncio.to_thread(target.parts.open_part, f"{path}\n{destination}")
        await _receive_with_retries(source, path, part, target)
        digest = part.hasher.hexdigest()
        await asyncio.to_thread(part.finish, target.folder / destination)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.discard()
        raise _not_stored(target, error) from error
    finally:
        part.close()
    target.used += part.size
    return FetchedFile(destination, part.size, digest)


async def _receive_with_retries(
    source: ArtefactSource, path: str, part: PartialFile, target: FetchTarget
) -> None:
    idle = 0
    while True:
        before, resume = part.size, part.resume_point()
        try:
            async with source.open(path) if resume is None else source.open(path, resume) as download:
                await _append_download(download, part, target)
                _check_digest(download, part, path, target)
            return
        except ArtefactError as error:
            idle = 0 if part.size > before else idle + 1
            if not error.refusal.is_transient or part.resume_point() is None or idle >= len(RESUME_PAUSES_S):
                raise
        target.progress.resumed += 1
        await target.pause(RESUME_PAUSES_S[idle])


async def _append_download(download: Download, part: PartialFile, target: FetchTarget) -> None:
    """Append the download to the partial file; start over if its content has changed."""
    goes_on = download.start > 0 and download.start == part.size and download.validator == part.validator
    if not goes_on:
        if download.start != 0:
            position, _ = part.size, await asyncio.to_thread(part.begin_content, None)
            raise ArtefactError(
                FailureReason.FETCH_FAILED,
                f"{target.artefact}: the source returned byte {download.start} of other content instead of byte {position}",
            )
        await asyncio.to_thread(part.begin_content, download.validator, download.size)
    _count_progress(download, part, target.progress)
    _check_room(target, download, part)
    async for chunk in download.chunks:
        if target.used + part.size + len(chunk) > target.limit_bytes:
            raise _too_large(target, target.used + part.size + len(chunk))
        await asyncio.to_thread(part.append, chunk)
        _count_progress(download, part, target.progress)
    if download.size is not None and part.size != download.size:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{target.artefact}: received {part.size} of {download.size} bytes",
        )


def _count_progress(download: Download, part: PartialFile, progress: DownloadProgress) -> None:
    if download.counted:
        progress.done += part.size - part.counted_bytes
        part.counted_bytes = part.size


def _check_digest(download: Download, part: PartialFile, path: str, target: FetchTarget) -> None:
    if download.sha256 is None or part.hasher.hexdigest() == download.sha256:
        return
    digest = part.hasher.hexdigest()
    part.begin_content(None)
    raise ArtefactError(
        FailureReason.CHECKSUM_MISMATCH,
        f"{path} of {target.artefact} has sha256 {digest} and its source promises {download.sha256}: publish it again",
    )


def _check_room(target: FetchTarget, download: Download, part: PartialFile) -> None:
    if download.size is None:
        return
    remaining = download.size - part.size
    if download.counted:
        target.progress.total = target.progress.done + remaining
    if target.used + download.size > target.limit_bytes:
        raise _too_large(target, target.used + download.size)
    free = shutil.disk_usage(target.folder).free
    if remaining > free:
        raise ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{target.artefact} needs {remaining} more bytes and the pod's disk has {free} left: free space on the node",
        )


def _too_large(target: FetchTarget, size: int) -> ArtefactError:
    return ArtefactError(
        FailureReason.ARTEFACT_TOO_LARGE,
        f"{target.artefact} has at least {size} bytes and {target.limit_bytes} are allowed (models.maxArtefactBytes)",
    )


def _not_stored(target: FetchTarget, error: OSError) -> ArtefactError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(target.folder).free
        return ArtefactError(
            FailureReason.FETCH_FAILED,
            f"the pod's disk is full after {target.progress.done} bytes of {target.artefact} ({free} left): "
            "free space on the node",
        )
    return ArtefactError(
        FailureReason.FETCH_FAILED, f"{target.artefact} cannot be stored: {error.strerror or error}"
    )
