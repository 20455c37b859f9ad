"""Ctrl-C ends a command, whichever thread the kernel hands it to and whatever the loop is doing."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tidegate.cli.interrupts import run_async

PROGRAM = """
    import asyncio, os, signal, sys, threading, time
    from tidegate.cli.interrupts import run_async

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
    assert ended("run_async", 25)[:2] == (130, "cleaned up\n")


STUBBORN = """
    import asyncio, os, signal, sys, threading, time
    from tidegate.cli.interrupts import run_async

    interrupts, cleaning = int(sys.argv[1]), threading.Event()

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        if interrupts > 1:
            cleaning.wait()
            os.kill(os.getpid(), signal.SIGINT)

    async def work():
        threading.Thread(target=interrupt).start()
        try:
            await asyncio.sleep(30)
        finally:
            cleaning.set()
            # Of two the second comes in the middle of it, however late.
            time.sleep(2 if interrupts == 1 else 50)
            print("cleaned up", flush=True)

    try:
        run_async(work())
    except KeyboardInterrupt:
        sys.exit(130)
"""


def stubborn(interrupts: int) -> tuple[int, str]:
    """Exit status and output of a program that takes its time over cleaning up, and hears nothing meanwhile."""
    program = [sys.executable, "-c", textwrap.dedent(STUBBORN), str(interrupts)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def test_a_second_ctrl_c_ends_the_process_at_once() -> None:
    # What a shell shows as 130.
    assert stubborn(2) == (-signal.SIGINT, "")


def test_one_ctrl_c_waits_for_what_is_cleaned_up() -> None:
    assert stubborn(1) == (130, "cleaned up\n")


def test_what_comes_of_the_work_is_handed_on() -> None:
    async def answer() -> int:
        return 7

    async def failure() -> int:
        message = "not so"
        raise LookupError(message)

    assert run_async(answer()) == 7
    with pytest.raises(LookupError, match="not so"):
        run_async(failure())
