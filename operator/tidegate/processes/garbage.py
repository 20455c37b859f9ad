"""The garbage collector, where a process makes many objects that are there to stay."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """No collection in this block: the more objects are made and kept, the more often all of them would be looked through.

    For work of a second at most; what it leaves over is collected after it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
