"""Run the coroutine of a command so that Ctrl-C ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")


def run_async(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """Run `work` and return its result; Ctrl-C cancels it, and a second one ends the process.

    Raises KeyboardInterrupt at Ctrl-C, once `work` has cleaned up.

    asyncio.run alone leaves SIGINT to Python, which handles it when the loop next wakes. A signal that arrives just before
    the loop goes to sleep, or in another thread, then waits for the next event: up to a minute in a watch without changes.
    A handler of the loop wakes it.
    """
    try:
        return asyncio.run(_run_interruptible(work))
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)


async def _run_interruptible(work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    interrupted = asyncio.Event()

    def interrupt() -> None:
        if signal.getsignal(signal.SIGINT) is not handler:
            return  # a server started since has taken the signal, and raises it again once it has stopped
        interrupted.set()
        # The kernel's default action needs neither the loop nor a thread that runs handlers.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        task.cancel()

    # A command that runs outside the main thread leaves the signals to the main thread.
    with contextlib.suppress(RuntimeError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if not interrupted.is_set():
            with contextlib.suppress(RuntimeError):
                loop.remove_signal_handler(signal.SIGINT)
