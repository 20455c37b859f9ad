"""Unpack the layers of an image or artefact: regular files below one folder, within bounds, never outside."""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from tidegate_dataplane.agent.artefacts.paths import check_relative_path
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason

MAX_MEMBERS = 200_000
# Of one header record (a long name, extended attributes), which tarfile reads into memory.
MAX_HEADER_BYTES = 1 << 20
COPY_BYTES = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


@dataclass(slots=True)
class UnpackBudget:
    """Bytes and entries that archives may still unpack to; shared by the layers of one artefact."""

    bytes_left: int
    members_left: int = MAX_MEMBERS
    artefact: str = ""

    def take_bytes(self, size: int) -> None:
        """Count unpacked bytes.

        Raises:
            ArtefactError: ArtefactTooLarge if there are too many.
        """
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise ArtefactError(
                FailureReason.ARTEFACT_TOO_LARGE,
                f"{self.artefact} unpacks to more bytes than an artefact may have (models.maxArtefactBytes)",
            )

    def take_member(self) -> None:
        """Count an entry, with the same error for too many."""
        self.members_left -= 1
        if self.members_left < 0:
            raise ArtefactError(
                FailureReason.ARTEFACT_TOO_LARGE,
                f"{self.artefact} has more than {MAX_MEMBERS} archive entries",
            )


def unpack_layer(archive: Path, folder: Path, *, below: str, budget: UnpackBudget) -> None:
    """Unpack what lies below `below` in a tar file, gzipped or not, over what earlier layers left in `folder`.

    Raises:
        ArtefactError: ArtefactInvalid for links, devices and paths that leave the folder; ArtefactTooLarge.
    """
    try:
        with archive.open("rb") as raw, _open_decompressed(raw, budget.artefact) as plain:
            bounded = cast("BinaryIO", _BoundedStream(plain, budget))
            with tarfile.open(fileobj=bounded, mode="r:", errorlevel=2) as tar:
                while (member := tar.next()) is not None:
                    budget.take_member()
                    _unpack_member(tar, member, folder, below, budget.artefact)
                    tar.members.clear()  # type: ignore[attr-defined]  # it would remember every entry
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError) as error:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID,
            f"a layer of {budget.artefact} is not a whole tar archive: {error}",
        ) from error
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise _entry_clash(error, budget.artefact) from error


def _entry_clash(error: OSError, artefact: str) -> ArtefactError:
    return ArtefactError(
        FailureReason.ARTEFACT_INVALID,
        f"a layer of {artefact} has a file where another entry has a folder: {Path(str(error.filename)).name}",
    )


def _unpack_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, below: str, artefact: str
) -> None:
    path = PurePosixPath(member.name.removeprefix("./").lstrip("/"))
    if not path.parts or (below and path.parts[0] != below):
        return
    inside = "/".join(path.parts[1:] if below else path.parts)
    if not inside or member.isdir():
        return
    relative = PurePosixPath(check_relative_path(inside, subject=f"entry of a layer of {artefact}"))
    if relative.name.startswith(WHITEOUT):
        _apply_whiteout(folder, relative)
        return
    if not member.isreg() or member.issparse():
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID,
            f"{member.name[:200]!r} in a layer of {artefact} is a link, a device or sparse; put the file itself there",
        )
    _write_member(tar, member, folder / relative)


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = tar.extractfile(member)
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, COPY_BYTES)


def _apply_whiteout(folder: Path, relative: PurePosixPath) -> None:
    """Remove what a later layer deletes: one entry, or everything that earlier layers put into a folder."""
    parent = folder / relative.parent
    if relative.name == OPAQUE:
        if parent.is_dir():
            shutil.rmtree(parent)
            parent.mkdir()
        return
    name = relative.name.removeprefix(WHITEOUT)
    if name in ("", ".", ".."):  # `.wh..` and `.wh...` would be the folder itself and the one above
        return
    deleted = parent / name
    if deleted.is_dir():
        shutil.rmtree(deleted)
    elif parent.is_dir():
        deleted.unlink(missing_ok=True)


def _open_decompressed(raw: BinaryIO, artefact: str) -> IO[bytes]:
    magic = raw.read(4)
    raw.seek(0)
    if magic == ZSTD_MAGIC:
        raise ArtefactError(
            FailureReason.ARTEFACT_INVALID,
            f"a layer of {artefact} is compressed with zstd; push it with gzip or without compression",
        )
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if magic.startswith(GZIP_MAGIC) else raw


class _BoundedStream:
    """A stream for tarfile that moves forward only, counts its bytes and refuses giant headers."""

    def __init__(self, stream: IO[bytes], budget: UnpackBudget) -> None:
        self._read: Callable[[int], bytes] = stream.read
        self._budget = budget
        self._position = 0
        self._last_byte = b""
        self._stepped_back = False

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; tarfile reads a whole header record at once, and file content in pieces."""
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"a layer of {self._budget.artefact} has a header of {size} bytes; {MAX_HEADER_BYTES} are allowed",
            )
        if self._stepped_back and size:
            self._stepped_back = False
            self._position += 1
            return self._last_byte
        data = self._read(size)
        self._position += len(data)
        self._last_byte = data[-1:] or self._last_byte
        self._budget.take_bytes(len(data))
        return data

    def tell(self) -> int:
        """Return the position in the stream."""
        return self._position

    def seek(self, position: int) -> None:
        """Move forward to `position`; one byte back is allowed, since tarfile checks the last byte of an entry so."""
        if position == self._position - 1 and self._last_byte and not self._stepped_back:
            self._position, self._stepped_back = position, True
            return
        if position < self._position:
            raise tarfile.ReadError("the archive refers back")
        while self._position < position:
            if not self.read(min(COPY_BYTES, position - self._position)):
                raise tarfile.ReadError("unexpected end of data")
