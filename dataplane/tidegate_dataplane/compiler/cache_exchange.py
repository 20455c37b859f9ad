"""Files through which the compiler reads and writes an object store, for which only the agent has credentials.

Every file appears by a rename, so each side can be killed at any moment.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_RECORD_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 2 << 30
"""Of a graph or an engine."""
MAX_OUTGOING_BYTES: Final = 4 << 30
"""Of all files that wait to be written to the store; while it is away, further ones are not kept."""
_NAME: Final = re.compile(r"[0-9a-f]{64}\.(graph|engine|result|withdrawal|bucket)")
_RECORDS: Final = (".result", ".withdrawal", ".bucket")
_OPEN: Final = "open"


def find_size_limit(name: str) -> int:
    """Return how many bytes a file of this name may have."""
    return MAX_RECORD_BYTES if name.endswith(_RECORDS) else MAX_FILE_BYTES


class CacheExchange:
    """`<root>/open`, if there is a store, and the folders `wanted`, `found`, `missing` and `outgoing`.

    An empty file in `wanted` asks for the file of that name, which then appears in `found`, or empty in `missing`. A file in
    `outgoing` is to be written to the store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def is_open(self) -> bool:
        """Return whether there is a store."""
        return (self._root / _OPEN).exists()

    # The compiler's side

    def request_file(self, name: str) -> None:
        """Ask for a file of the store."""
        self.withdraw_request(name)
        self._create_marker("wanted", name)

    def read_answer(self, name: str) -> tuple[bool, Path | None]:
        """Return whether the request was answered, and the file, None if the store does not have it."""
        answer = self._root / "found" / name
        if answer.exists():
            return True, answer
        return (self._root / "missing" / name).exists(), None

    def withdraw_request(self, name: str) -> None:
        """Remove a request and its answer."""
        for folder in ("wanted", "found", "missing"):
            (self._root / folder / name).unlink(missing_ok=True)

    def offer_file(self, name: str, content: Path | bytes) -> None:
        """Let a file be written to the store, unless too many bytes wait for it."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        folder = self._make_folder("outgoing")
        waiting = sum(path.stat().st_size for path in folder.iterdir())
        if size > find_size_limit(name) or waiting + size > MAX_OUTGOING_BYTES:
            return
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".")
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
        Path(temporary).replace(folder / name)

    def remove_leftovers(self) -> None:
        """Remove the requests of an earlier compiler, their answers, and files that it had not finished."""
        for folder in ("wanted", "found", "missing"):
            shutil.rmtree(self._root / folder, ignore_errors=True)
        for path in (self._root / "outgoing").glob(".*"):
            path.unlink(missing_ok=True)

    # The agent's side

    def set_open(self, *, is_open: bool) -> None:
        """Let the compiler know whether there is a store; without one, no file waits for it."""
        if is_open and not self.is_open:
            self._make_folder("").joinpath(_OPEN).touch()
        elif not is_open and self._root.exists():
            shutil.rmtree(self._root, ignore_errors=True)

    def list_requests(self) -> list[str]:
        """Return the names of files that the compiler waits for."""
        return [name for name in self._list_names("wanted") if self.read_answer(name) == (False, None)]

    def answer_request(self, name: str, part: Path | None) -> None:
        """Give the compiler a file of the store, which is moved; None if there is none."""
        if part is None:
            self._create_marker("missing", name)
        else:
            part.replace(self._make_folder("found") / name)

    def make_part(self) -> Path:
        """Return a new file to download into."""
        descriptor, path = tempfile.mkstemp(dir=self._make_folder("found"), prefix=".")
        os.close(descriptor)
        return Path(path)

    def list_offers(self) -> list[Path]:
        """Return the files to write to the store, the oldest first, so that no record comes before what it names."""
        folder = self._root / "outgoing"
        files = [folder / name for name in self._list_names("outgoing")]
        return sorted((path for path in files if _is_plain_file(path)), key=_read_time)

    def _list_names(self, folder: str) -> Iterator[str]:
        """Yield the names that only a compiler gives; the model's own processes write into this volume too."""
        try:
            names = sorted(os.listdir(self._root / folder))
        except OSError:
            return
        yield from (name for name in names if _NAME.fullmatch(name))

    def _create_marker(self, folder: str, name: str) -> None:
        (self._make_folder(folder) / name).touch()

    def _make_folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _is_plain_file(path: Path) -> bool:
    """Return whether it is a file of this volume: a link could name one of the agent's."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _read_time(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
