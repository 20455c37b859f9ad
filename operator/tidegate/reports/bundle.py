"""Report the contents of a support bundle and what is missing: its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.conditions import format_timestamp
from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, align_columns

MANIFEST: Final = "manifest.json"


class BundleFile(ApiModel):
    """One file of a bundle."""

    path: str
    about: str
    bytes: int
    cut_bytes: int
    """The bytes left out at the beginning of the file, as far as known; the newest remain."""


class MissingPart(ApiModel):
    """Something that is not in the bundle."""

    what: str
    why: str


class BundleReport(Report):
    """A bundle, which contains this report as manifest.json too."""

    file: str
    at: datetime
    version: str
    """The version of the command that wrote the bundle."""
    kubernetes: str
    """The API server's version; empty if it does not report one."""
    release: str
    release_namespace: str
    namespace: str | None
    """The namespace of the objects; absent if all that could be listed are in it."""
    files: tuple[BundleFile, ...]
    missing: tuple[MissingPart, ...]
    redacted: int
    """The number of redacted values."""
    bytes: int
    """The size of all files before compression."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line per file, and one per missing thing."""
        del wide
        yield f"{self.file}: {len(self.files)} files, {format_size(self.bytes)}, made at {format_timestamp(self.at)}"
        rows = [["FILE", "SIZE", "ABOUT"]]
        for file in self.files:
            cut = f"; {format_size(file.cut_bytes)} left out" if file.cut_bytes else ""
            rows.append([file.path, format_size(file.bytes), f"{file.about}{cut}"])
        yield from align_columns(rows)
        for missing in self.missing:
            yield f"left out   {missing.what}: {missing.why}"
        yield f"{self.redacted} values were redacted and Secrets are not in it; read it before you pass it on"

    def object_names(self) -> Iterator[str]:
        """Yield nothing: a bundle has no objects."""
        return iter(())


@dataclass(slots=True)
class BundleContents:
    """The files of a bundle within its limits; files that do not fit are cut or left out, and recorded."""

    max_bytes: int
    max_file_bytes: int
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    files: list[BundleFile] = field(default_factory=list[BundleFile])
    missing: list[MissingPart] = field(default_factory=list[MissingPart])

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all files so far."""
        return sum(map(len, self.parts.values()))

    @property
    def remaining_bytes(self) -> int:
        """Return how many bytes another file may have."""
        return max(min(self.max_bytes - self.total_bytes, self.max_file_bytes), 0)

    def add_whole(self, path: str, content: bytes, about: str) -> None:
        """Add a file that is only useful as a whole; leave it out if it is too large."""
        if len(content) > self.remaining_bytes:
            self.add_missing(
                path,
                f"its {format_size(len(content))} do not fit into what is left, {format_size(self.remaining_bytes)}",
            )
            return
        self._add_file(path, content, about, 0)

    def add_newest(self, path: str, content: bytes, about: str, *, cut: int = 0) -> None:
        """Add as much of the end of a file as fits.

        `cut`: bytes that are missing before its beginning already.
        """
        remaining = self.remaining_bytes
        if content and not remaining:
            self.add_missing(path, "the bundle is full")
            return
        excess = max(len(content) - remaining, 0)
        self._add_file(path, content[excess:], about, cut + excess)

    def add_missing(self, item: str, reason: str) -> None:
        """Record something that is not in the bundle."""
        self.missing.append(MissingPart(what=item, why=reason))

    def _add_file(self, path: str, content: bytes, about: str, cut: int) -> None:
        self.parts[path] = content
        self.files.append(BundleFile(path=path, about=about, bytes=len(content), cut_bytes=cut))


def format_size(byte_count: int) -> str:
    """Format a number of bytes: 1.2 MiB, 34 KiB, 512 B."""
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if byte_count >= bytes_:
            return f"{byte_count / bytes_:.1f} {unit}"
    return f"{byte_count} B"
