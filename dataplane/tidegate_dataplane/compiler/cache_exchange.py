"""Files through which the compiler reads and writes an object store, for which only the agent has credentials.

Every file appears by a rename, so each side can be killed at any moment. Processes of the model have no access to the folder.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

MAX_RECORD_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 2 << 30
"""Of a graph or an engine."""
MAX_OUTGOING_BYTES: Final = 4 << 30
"""Of all files that wait to be written to the store; while it is away, further ones are not kept."""
_RECORDS: Final = ("result", "withdrawal", "bucket")
_NAME: Final = re.compile(rf"[0-9a-f]{{64}}\.(graph|engine|{'|'.join(_RECORDS)})")
_OPEN: Final = "open"
_ANSWERS: Final = ("found", "missing")


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
        (self._make_folder("wanted") / name).touch()

    def read_answer(self, name: str) -> tuple[bool, Path | None]:
        """Return whether the request was answered, and the file, None if the store does not have it."""
        answer = self._root / "found" / name
        if answer.exists():
            return True, answer
        return (self._root / "missing" / name).exists(), None

    def withdraw_request(self, name: str) -> None:
        """Remove a request and its answer."""
        for folder in ("wanted", *_ANSWERS):
            (self._root / folder / name).unlink(missing_ok=True)

    def offer_file(self, name: str, content: Path | bytes) -> bool:
        """Let a file be written to the store; return False if it is too large, or too many bytes wait already."""
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        folder = self._make_folder("outgoing")
        waiting = sum(path.stat().st_size for path in folder.iterdir())
        if size > find_size_limit(name) or waiting + size > MAX_OUTGOING_BYTES:
            return False
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".")
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
        Path(temporary).replace(folder / name)
        return True

    def remove_requests(self) -> None:
        """Remove the requests of an earlier compiler, their answers, and files that it had not finished."""
        shutil.rmtree(self._root / "wanted", ignore_errors=True)
        self.remove_answers()
        for path in (self._root / "outgoing").glob(".*"):
            path.unlink(missing_ok=True)

    # The agent's side

    def set_open(self, *, is_open: bool) -> None:
        """Let the compiler know whether there is a store; without one, no file waits for it. Raises OSError."""
        if is_open and not self.is_open:
            self._make_folder("").joinpath(_OPEN).touch()
        elif not is_open and self.is_open:
            (self._root / _OPEN).unlink()
            for folder in ("wanted", *_ANSWERS, "outgoing"):
                shutil.rmtree(self._root / folder, ignore_errors=True)

    def remove_answers(self) -> None:
        """Remove all answers, those that an earlier agent had not finished too; what is still wanted is answered again."""
        for folder in _ANSWERS:
            shutil.rmtree(self._root / folder, ignore_errors=True)

    def list_requests(self) -> list[str]:
        """Return the names of files that the compiler waits for."""
        return [name for name in self._list_names("wanted") if self.read_answer(name) == (False, None)]

    def answer_missing(self, name: str) -> None:
        """Let the compiler know that the store does not have a file."""
        (self._make_folder("missing") / name).touch()

    @contextmanager
    def answer_file(self, name: str) -> Generator[IO[bytes]]:
        """Yield a file to write the answer to, which the compiler gets at the end of the block, if it still waits."""
        folder = self._make_folder("found")
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            if (self._root / "wanted" / name).exists():
                Path(temporary).replace(folder / name)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def list_offers(self) -> list[str]:
        """Return the names of files to write to the store, the oldest first, and no record before what it names."""
        times = {name: self._read_time(name) for name in self._list_names("outgoing")}
        return sorted(times, key=lambda name: (times[name], name.endswith(_RECORDS)))

    def open_offer(self, name: str) -> IO[bytes] | None:
        """Open a file to write to the store; None if it is none, or too large, and then it is removed.

        No link is followed: it could name a file of the agent's.
        """
        path = self._root / "outgoing" / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            self._remove_offer(path)
            return None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= find_size_limit(name):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        self._remove_offer(path)
        return None

    def finish_offer(self, name: str, written: IO[bytes]) -> None:
        """Remove a file that was written to the store, unless the compiler has replaced it meanwhile."""
        path = self._root / "outgoing" / name
        try:
            if os.path.samestat(path.lstat(), os.fstat(written.fileno())):
                path.unlink()
        except FileNotFoundError:
            return

    def _remove_offer(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _list_names(self, folder: str) -> Iterator[str]:
        """Yield the names that a compiler gives."""
        try:
            names = sorted(os.listdir(self._root / folder))
        except OSError:
            return
        yield from (name for name in names if _NAME.fullmatch(name))

    def _read_time(self, name: str) -> int:
        try:
            return (self._root / "outgoing" / name).lstat().st_mtime_ns
        except OSError:
            return 0

    def _make_folder(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder
