"""Keep a few requests of a version in files, for the compiler to compare both graphs on them, and read them there.

A runner writes into the folder of a compilation, the compiler reads and removes. Every file appears by a rename, and is a
NumPy archive: the names of the inputs, then their arrays.
"""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REQUESTS_FOLDER: Final = "requests"
"""In the folder of a compilation; it is there as long as the compiler wants requests."""
MAX_FILES: Final = 8
"""Files of all runners that the compiler has not read yet."""
MAX_REQUEST_BYTES: Final = 1 << 20
FIRST_REQUESTS: Final = 8
"""Requests that are kept as they come; after them, one in each INTERVAL_S."""
INTERVAL_S: Final = 60.0
RETRY_S: Final = 1.0
"""Until it is looked again whether the compiler wants requests, and whether there is room."""


class RequestKeeper:
    """Writes requests of one runner, each from a thread of its own, so that no request waits for the disk."""

    def __init__(
        self, version_folder: Path, runner: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`version_folder` is what a compilation of the version has; as long as there is none, nothing is kept."""
        self._folder, self._runner, self._clock = version_folder / REQUESTS_FOLDER, runner, clock
        self._next_s = clock()
        self._kept = 0
        self._writer: threading.Thread | None = None

    def offer_request(self, inputs: Mapping[str, Array]) -> None:
        """Keep a request if one is due and it is small enough; never wait, and raise nothing."""
        now = self._clock()
        if now < self._next_s or (self._writer is not None and self._writer.is_alive()):
            return
        self._next_s = now + RETRY_S
        # Whatever goes wrong, such as a thread that cannot be started, the request is answered.
        with suppress(Exception):
            if (
                not self._folder.is_dir()
                or sum(array.nbytes for array in inputs.values()) > MAX_REQUEST_BYTES
            ):
                return
            # The server reuses the memory of a request once it is answered.
            copies = {name: array.copy() for name, array in inputs.items()}
            self._writer = threading.Thread(target=self._write_request, args=(copies, now), daemon=True)
            self._writer.start()

    def finish_writing(self) -> None:
        """Wait until the last request is written."""
        if self._writer is not None and self._writer.is_alive():
            self._writer.join()

    def _write_request(self, inputs: Mapping[str, Array], now: float) -> None:
        """Write a request, unless the compiler has not read the earlier ones."""
        name = f"{self._runner}-{self._kept + 1}.npz"
        part = self._folder / f".{name}.part"
        # Texts that are too long, a full disk, or a folder that the compiler removes meanwhile.
        with suppress(OSError, ValueError):
            if len(list_requests(self._folder.parent)) >= MAX_FILES:
                return
            arrays = [_encode_texts(array) for array in inputs.values()]
            with part.open("wb") as file:
                np.savez(file, np.array(list(inputs)), *arrays)
            part.replace(self._folder / name)
            self._kept += 1
            self._next_s = now + (INTERVAL_S if self._kept >= FIRST_REQUESTS else 0.0)
        with suppress(OSError):
            part.unlink()


def list_requests(version_folder: Path) -> list[Path]:
    """Return the files of requests that runners have kept, at most MAX_FILES."""
    return sorted((version_folder / REQUESTS_FOLDER).glob("*.npz"))[:MAX_FILES]


def read_request(path: Path) -> dict[str, Array]:
    """Return the inputs of a kept request by name; raise ValueError if the file has no such request."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names, *arrays = (archive[name] for name in archive.files)
            return {
                str(name): _decode_texts(array) for name, array in zip(names.tolist(), arrays, strict=True)
            }
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        message = f"{path.name} cannot be read as a request: {error}"
        raise ValueError(message) from error


def _encode_texts(array: Array) -> Array:
    """Return texts as UTF-8 of one width, each with a mark at its end, since NumPy drops zero bytes there."""
    if array.dtype.kind != "O":
        return array
    texts = [f"{text}.".encode() for text in array.reshape(-1).tolist()]
    if len(texts) * max(map(len, texts), default=0) > MAX_REQUEST_BYTES:
        message = "the texts of the request take too much memory"
        raise ValueError(message)
    return np.array(texts, dtype=np.bytes_).reshape(array.shape)


def _decode_texts(array: Array) -> Array:
    if array.dtype.kind != "S":
        return array
    texts = [text.decode()[:-1] for text in array.reshape(-1).tolist()]
    decoded: Array = np.array(texts, dtype=object).reshape(array.shape)
    return decoded
