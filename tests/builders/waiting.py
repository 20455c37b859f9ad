"""Waits for what is to become true: the one place where tests wait.

A limit counts on a clock that runs slower while processes wait for a core, down to a quarter of its speed: it says how
long something may take on a machine that works on it. No test needs a limit of its own because the machine is busy.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

LIMIT_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.1
_SLOWEST: Final = 0.25
LONGEST_S: Final = LIMIT_S / _SLOWEST
"""As long as LIMIT_S may last by the clock on the wall, for clients that can only count on that one."""
_PRESSURE: Final = Path("/proc/pressure/cpu")

T = TypeVar("T")


class NotInTimeError(AssertionError):
    """What was waited for has not come true within the limit."""


class Patience:
    """How long is still waited, on a clock that slows down with the kernel's figure for processes that wait for a core."""

    def __init__(self, limit_s: float) -> None:
        """Begin to count."""
        self._limit_s = limit_s
        self._counted_s = 0.0
        self._at, self._stalled_s = time.monotonic(), _read_stalled_s()

    def is_over(self) -> bool:
        """Count the time since the last call, and return whether the limit is reached."""
        at, stalled_s = time.monotonic(), _read_stalled_s()
        passed_s = at - self._at
        self._counted_s += max(passed_s * _SLOWEST, passed_s - (stalled_s - self._stalled_s))
        self._at, self._stalled_s = at, stalled_s
        return self._counted_s > self._limit_s


def wait_until(
    holds: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float = LIMIT_S,
    evidence: Callable[[], object] | None = None,
) -> T:
    """Return the first true answer of `holds`.

    Raises NotInTimeError with `what`, and with what `evidence` says, when there is none in time.
    """
    patience = Patience(timeout_s)
    for pause_s in _pauses():
        looked = time.monotonic()
        answer = holds()
        if answer:
            return answer
        if patience.is_over():
            raise NotInTimeError(_describe(what, timeout_s, evidence))
        time.sleep(max(pause_s, time.monotonic() - looked))
    raise AssertionError


async def eventually(
    holds: Callable[[], Awaitable[T | None] | T | None],
    what: str,
    *,
    timeout_s: float = LIMIT_S,
    evidence: Callable[[], object] | None = None,
) -> T:
    """Do the same without blocking the event loop; `holds` may be asynchronous."""
    patience = Patience(timeout_s)
    for pause_s in _pauses():
        looked = time.monotonic()
        answer = holds()
        found: T | None = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found
        if patience.is_over():
            raise NotInTimeError(_describe(what, timeout_s, evidence))
        await asyncio.sleep(max(pause_s, time.monotonic() - looked))
    raise AssertionError


@asynccontextmanager
async def ends_in_time(what: str, *, timeout_s: float = LIMIT_S) -> AsyncIterator[None]:
    """Cancel the block once the limit is over: `asyncio.timeout` on the clock of all waits.

    Raises NotInTimeError with `what` then.
    """
    patience, loop = Patience(timeout_s), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as deadline:

            def look() -> None:
                nonlocal timer
                if patience.is_over():
                    deadline.reschedule(loop.time())
                else:
                    timer = loop.call_later(_LONGEST_PAUSE_S, look)

            timer = loop.call_later(_LONGEST_PAUSE_S, look)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise NotInTimeError(_describe(what, timeout_s, None)) from error


def stays(read: Callable[[], object], what: str, *, for_s: float) -> None:
    """Fail as soon as what `read` gives changes within `for_s` seconds, by the clock on the wall."""
    before, end = read(), time.monotonic() + for_s
    while time.monotonic() < end:
        now = read()
        if now != before:
            message = f"{what} changed: {before} became {now}"
            raise AssertionError(message)
        time.sleep(1.0)


def at_rest(read: Callable[[], T], *, what: str, for_s: float = 2.0, timeout_s: float = LIMIT_S) -> T:
    """Return what is read once it has not moved for a while, as the base of a difference: a Triton answers before it counts."""
    found, since, patience = read(), time.monotonic(), Patience(timeout_s)
    while time.monotonic() - since < for_s:
        if patience.is_over():
            message = f"does not rest within {timeout_s:g} s: {what}, now {found}"
            raise NotInTimeError(message)
        time.sleep(_LONGEST_PAUSE_S)
        now = read()
        if now != found:
            found, since = now, time.monotonic()
    return found


def _pauses() -> Iterator[float]:
    """Yield ever longer pauses: a look at another process costs both of them time."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 1.3, _LONGEST_PAUSE_S)


def _describe(what: str, timeout_s: float, evidence: Callable[[], object] | None) -> str:
    said = f". It is: {evidence()}" if evidence is not None else ""
    return f"not within {timeout_s:g} s: {what}{said}"


def _read_stalled_s() -> float:
    """Return the seconds in which some process has waited for a core since the machine started; 0 where nothing counts them."""
    try:
        some = _PRESSURE.read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
