"""Ctrl-C ends a command, whichever thread the kernel hands it to and whatever the loop is doing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from tidegate.cli.interrupting import run

PROGRAM = """
    import asyncio, os, signal, sys, threading, time
    from tidegate.cli.interrupting import run

    # The main thread sleeps in the loop, and another one gets the signal: it is not woken by that.
    going = threading.Event()
    threading.Thread(target=lambda: (going.wait(), time.sleep(0.3), os.kill(os.getpid(), signal.SIGINT))).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})

    async def work():
        going.set()
        try:
            await asyncio.sleep(30)
        finally:
            print("cleaned up", flush=True)

    try:
        {runner}(work())
    except KeyboardInterrupt:
        sys.exit(130)
"""


def ended(runner: str, within_s: float) -> tuple[int, str, float]:
    """Exit status, output and duration of a program whose work is interrupted at once and lasts half a minute."""
    began = time.monotonic()
    program = textwrap.dedent(PROGRAM.format(runner=runner))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=within_s)
    return done.returncode, done.stdout, time.monotonic() - began


def test_ctrl_c_is_heard_while_the_loop_sleeps() -> None:
    assert ended("run", 25)[:2] == (130, "cleaned up\n")


def test_asyncio_alone_would_sleep_on() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ended("asyncio.run", 6)


def test_what_comes_of_the_work_is_handed_on() -> None:
    async def answer() -> int:
        return 7

    async def failure() -> int:
        message = "not so"
        raise LookupError(message)

    assert run(answer()) == 7
    with pytest.raises(LookupError, match="not so"):
        run(failure())
