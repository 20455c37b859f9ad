"""Runs what a command does, so that Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")


def run(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """What comes of it. Raises KeyboardInterrupt at Ctrl-C, once `work` has cleaned up; a second one ends the process at once.

    asyncio.run alone leaves SIGINT to Python, which hears of it when the loop next wakes. A signal that comes just before
    the loop goes to sleep, or to another thread, is then heard at the next event: of a watch where nothing changes, a minute later.
    A handler of the loop's own wakes it.
    """
    try:
        return asyncio.run(_heard(work))
    finally:
        with contextlib.suppress(ValueError):  # in a thread of somebody's, who has the signals
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)


async def _heard(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    loop, doing = asyncio.get_running_loop(), asyncio.ensure_future(work)
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if signal.getsignal(signal.SIGINT) is not ours:
            return  # a server that began since has taken the signal, and passes it on once it has ended
        interrupted.set()
        # The kernel's own doing, which needs neither the loop nor a thread that hears of it.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        doing.cancel()

    # Whoever runs a command in a thread of theirs has the signals to themselves.
    with contextlib.suppress(RuntimeError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    ours = signal.getsignal(signal.SIGINT)
    try:
        return await doing
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if not interrupted.is_set():
            with contextlib.suppress(RuntimeError):
                loop.remove_signal_handler(signal.SIGINT)
