"""Partially downloaded files, kept with their validator so that a later attempt can resume them."""

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tidegate_dataplane.agent.artefacts.source import ResumePoint

READ_BYTES = 1 << 20


@dataclass(slots=True)
class PartialFile:
    """A partially downloaded file at `path`; the note beside it identifies its content."""

    path: Path
    size: int = 0
    validator: str | None = None
    expected_size: int | None = None
    """Bytes of the whole file, where the source said it."""
    counted_bytes: int = 0
    """Bytes of it that the progress already shows."""
    hasher: Any = field(default_factory=hashlib.sha256)
    _file: BinaryIO | None = None

    @property
    def note_path(self) -> Path:
        """Return the path of the file that holds the validator."""
        return self.path.with_name(f"{self.path.name}.json")

    def resume_point(self) -> ResumePoint | None:
        """Return where to resume; None to start at the beginning.

        A file that is complete but was never finished starts again: no server has a range behind its end.
        """
        if not self.size or not self.validator:
            return None
        is_complete = self.expected_size is not None and self.size >= self.expected_size
        return None if is_complete else ResumePoint(self.size, self.validator, self.expected_size)

    def load(self) -> None:
        """Load what an earlier attempt received, if its note identifies the content."""
        try:
            note = json.loads(self.note_path.read_bytes())
            with self.path.open("rb") as file:
                while chunk := file.read(READ_BYTES):
                    self.hasher.update(chunk)
                    self.size += len(chunk)
            self.validator, self.expected_size = str(note["validator"]), note["size"]
        except (OSError, ValueError, KeyError, TypeError):
            self.begin_content(None)

    def begin_content(self, validator: str | None, size: int | None = None) -> None:
        """Discard the received bytes and begin with other content, of `size` bytes."""
        self.close()
        self.size, self.validator, self.expected_size, self.hasher = 0, validator, size, hashlib.sha256()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        if validator is None:
            self.note_path.unlink(missing_ok=True)
        else:
            self.note_path.write_text(json.dumps({"validator": validator, "size": size}))

    def append(self, chunk: bytes) -> None:
        """Append a chunk."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        self._file.write(chunk)
        self.hasher.update(chunk)
        self.size += len(chunk)

    def close(self) -> None:
        """Close the file and keep the received bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove the received bytes to free disk space."""
        self.close()
        self.size, self.validator = 0, None
        self.path.unlink(missing_ok=True)
        self.note_path.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        """Move the complete file to its target."""
        self.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FileExistsError(f"{target.name} arrived twice")
        self.path.replace(target)
        self.note_path.unlink(missing_ok=True)


class PartialFiles:
    """Folder of an order's partial files; those of all other orders are removed."""

    def __init__(self, root: Path, identity: str) -> None:
        self._folder = root / hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._root = root

    def prepare_folder(self) -> None:
        """Create the folder and remove those of other orders."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for folder in self._root.iterdir():
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def open_part(self, name: str) -> PartialFile:
        """Return the partial file with the name `name`, with what an earlier attempt received."""
        part = PartialFile(self._folder / hashlib.sha256(name.encode()).hexdigest()[:32])
        part.load()
        return part

    def make_scratch(self) -> Path:
        """Create and return an empty folder for unpacked files; `remove_scratch` removes it."""
        folder = self._folder / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def remove_scratch(self) -> None:
        """Remove the unpacked files."""
        shutil.rmtree(self._folder / "scratch", ignore_errors=True)
