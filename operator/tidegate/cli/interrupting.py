"""Runs what a command does, so that Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")


def run(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """What comes of it. Raises KeyboardInterrupt at Ctrl-C, once `work` has cleaned up.

    asyncio.run alone leaves SIGINT to Python, which hears of it when the loop next wakes. A signal that comes just before
    the loop goes to sleep, or to another thread, is then heard at the next event: of a watch where nothing changes, a minute later.
    A handler of the loop's own wakes it.
    """
    return asyncio.run(_heard(work))


async def _heard(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    loop, doing = asyncio.get_running_loop(), asyncio.ensure_future(work)
    interrupted = asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        doing.cancel()

    # Whoever runs a command in a thread of theirs has the signals to themselves.
    with contextlib.suppress(RuntimeError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await doing
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        with contextlib.suppress(RuntimeError):
            loop.remove_signal_handler(signal.SIGINT)
