"""Report the contents of a support bundle and what is missing: its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidegate.api.conditions import timestamp
from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report, columns

MANIFEST: Final = "manifest.json"


class BundleFile(ApiModel):
    """One file of a bundle."""

    path: str
    about: str
    bytes: int
    cut_bytes: int
    """The bytes left out at the beginning of the file, as far as known; the newest remain."""


class Missing(ApiModel):
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
    missing: tuple[Missing, ...]
    redacted: int
    """The number of redacted values."""
    bytes: int
    """The size of all files before compression."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line per file, and one per missing thing."""
        del wide
        yield f"{self.file}: {len(self.files)} files, {size(self.bytes)}, made at {timestamp(self.at)}"
        rows = [["FILE", "SIZE", "ABOUT"]]
        for file in self.files:
            cut = f"; {size(file.cut_bytes)} left out" if file.cut_bytes else ""
            rows.append([file.path, size(file.bytes), f"{file.about}{cut}"])
        yield from columns(rows)
        for missing in self.missing:
            yield f"left out   {missing.what}: {missing.why}"
        yield f"{self.redacted} values were redacted and Secrets are not in it; read it before you pass it on"

    def names(self) -> Iterator[str]:
        """Yield nothing: a bundle is about no object of its own."""
        return iter(())


@dataclass(slots=True)
class Contents:
    """The files of a bundle within its limits; files that do not fit are cut or left out, and recorded."""

    most_bytes: int
    most_of_one: int
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    files: list[BundleFile] = field(default_factory=list[BundleFile])
    missing: list[Missing] = field(default_factory=list[Missing])

    @property
    def total(self) -> int:
        """Return the bytes of all files so far."""
        return sum(map(len, self.parts.values()))

    @property
    def left_bytes(self) -> int:
        """Return how many bytes another file may have."""
        return max(min(self.most_bytes - self.total, self.most_of_one), 0)

    def add(self, path: str, content: bytes, about: str) -> None:
        """Add a file that is only useful as a whole; leave it out if it is too large."""
        if len(content) > self.left_bytes:
            self.lacks(
                path, f"its {size(len(content))} do not fit into what is left, {size(self.left_bytes)}"
            )
            return
        self._put(path, content, about, 0)

    def add_newest(self, path: str, content: bytes, about: str, *, cut: int = 0) -> None:
        """Add as much of the end of a file as fits.

        `cut`: bytes that are missing before its beginning already.
        """
        remaining = self.left_bytes
        if content and not remaining:
            self.lacks(path, "the bundle is full")
            return
        excess = max(len(content) - remaining, 0)
        self._put(path, content[excess:], about, cut + excess)

    def lacks(self, what: str, why: str) -> None:
        """Record something that is not in the bundle."""
        self.missing.append(Missing(what=what, why=why))

    def _put(self, path: str, content: bytes, about: str, cut: int) -> None:
        self.parts[path] = content
        self.files.append(BundleFile(path=path, about=about, bytes=len(content), cut_bytes=cut))


def size(of: int) -> str:
    """Format a number of bytes: 1.2 MiB, 34 KiB, 512 B."""
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if of >= bytes_:
            return f"{of / bytes_:.1f} {unit}"
    return f"{of} B"
