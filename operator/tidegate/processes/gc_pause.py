"""Pauses the garbage collector while a process creates many long-lived objects."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Generator[None]:
    """Disable the garbage collector in this block, which should take a second at most.

    Each collection would scan all the objects that the block creates and keeps. Garbage is collected afterwards.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
