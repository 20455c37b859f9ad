"""Work of a bench in a thread of its own, as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class BackgroundWork:
    """Runs `work` while the block lasts; it has to return soon after `_ended` is set."""

    def __init__(self, work: Callable[[], None], *, join_s: float = 30.0) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=work, daemon=True)
        self._join_s = join_s

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Let the work end, and wait for it."""
        self._ended.set()
        self._thread.join(self._join_s)
