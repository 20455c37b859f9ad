"""The checksum of an artefact, as a user makes it with sha256sum."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """One file of an artefact as it arrived: path relative to the version folder, size in bytes, sha256 in hex."""

    path: str
    size: int
    sha256: str


def artefact_digest(files: Sequence[FetchedFile]) -> str:
    """Return the checksum that `spec.model.sha256` pins.

    Of one file it is that file's sha256. Of several it is the sha256 of what
    `sha256sum` prints for their sorted relative paths (`<hex>  <path>` and a newline each).
    """
    if len(files) == 1:
        return files[0].sha256
    ordered = sorted(files, key=lambda file: file.path.encode())
    listing = "".join(f"{file.sha256}  {file.path}\n" for file in ordered)
    return hashlib.sha256(listing.encode()).hexdigest()


def check_pin(pin: str | None, digest: str, subject: str, pin_field: str) -> None:
    """Compare a digest with a pin, if there is one.

    Raises:
        ArtefactError: ChecksumMismatch, naming the subject and the field of the pin.
    """
    if pin is not None and pin != digest:
        raise ArtefactError(
            FailureReason.CHECKSUM_MISMATCH,
            f"{subject} has sha256 {digest}, {pin_field} is {pin}: correct the pin or publish the artefact again",
        )


def hash_file(path: Path) -> str:
    """Return the sha256 (hex) of a file; raise OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
