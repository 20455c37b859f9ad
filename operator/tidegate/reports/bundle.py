"""What is in a support bundle, and what is not: its manifest."""

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
    """How much was left out at the beginning of it, as far as is known; what remains is the newest."""


class Missing(ApiModel):
    """Something that is not in it."""

    what: str
    why: str


class BundleReport(Report):
    """A bundle, which has it as manifest.json too."""

    file: str
    at: datetime
    version: str
    """Of the command that made it."""
    kubernetes: str
    """The API server's version; empty where it does not say."""
    release: str
    release_namespace: str
    namespace: str | None
    """Whose objects; absent: all that could be listed."""
    files: tuple[BundleFile, ...]
    missing: tuple[Missing, ...]
    redacted: int
    """How many values were taken out."""
    bytes: int
    """Of all files together, before they are compressed."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Every file, and all that is missing."""
        del wide
        yield f"{self.file}: {len(self.files)} files, {size(self.bytes)}, made at {timestamp(self.at)}"
        rows = [["FILE", "SIZE", "ABOUT"]]
        for each in self.files:
            cut = f"; {size(each.cut_bytes)} left out" if each.cut_bytes else ""
            rows.append([each.path, size(each.bytes), f"{each.about}{cut}"])
        yield from columns(rows)
        for missing in self.missing:
            yield f"left out   {missing.what}: {missing.why}"
        yield f"{self.redacted} values were redacted and Secrets are not in it; read it before you pass it on"

    def names(self) -> Iterator[str]:
        """A bundle is about no object of its own."""
        return iter(())


@dataclass(slots=True)
class Contents:
    """Files as they come together, within bounds; what does not fit is cut or left out, and said."""

    most_bytes: int
    most_of_one: int
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    files: list[BundleFile] = field(default_factory=list[BundleFile])
    missing: list[Missing] = field(default_factory=list[Missing])

    @property
    def total(self) -> int:
        """Bytes of all files so far."""
        return sum(map(len, self.parts.values()))

    @property
    def left_bytes(self) -> int:
        """How much a further file may have."""
        return max(min(self.most_bytes - self.total, self.most_of_one), 0)

    def add(self, path: str, content: bytes, about: str) -> None:
        """A file that is only of use whole: one that is too large is left out."""
        if len(content) > self.left_bytes:
            self.lacks(
                path, f"its {size(len(content))} do not fit into what is left, {size(self.left_bytes)}"
            )
            return
        self._put(path, content, about, 0)

    def add_newest(self, path: str, content: bytes, about: str, *, cut: int = 0) -> None:
        """A file whose end counts most: as much of it as fits. `cut`: bytes that are missing before it already."""
        left = self.left_bytes
        if content and not left:
            self.lacks(path, "the bundle is full")
            return
        over = max(len(content) - left, 0)
        self._put(path, content[over:], about, cut + over)

    def lacks(self, what: str, why: str) -> None:
        """Notes what is not in it."""
        self.missing.append(Missing(what=what, why=why))

    def _put(self, path: str, content: bytes, about: str, cut: int) -> None:
        self.parts[path] = content
        self.files.append(BundleFile(path=path, about=about, bytes=len(content), cut_bytes=cut))


def size(of: int) -> str:
    """1.2 MiB, 34 KiB, 512 B."""
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if of >= bytes_:
            return f"{of / bytes_:.1f} {unit}"
    return f"{of} B"
