"""Asks the solver in a process of its own, and answers by the greedy order whenever that process does not.

A solver that is killed, hangs, fails or answers nonsense costs one tick its optimum; the controllers never notice more than the note.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Final

import structlog

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.check import wrong_with
from tidegate.allocation.snapshot import Snapshot
from tidegate.allocation.solve import Limits, solve_greedily
from tidegate.runtime.solver_worker import LENGTH_BYTES, frame

log: Final = structlog.stdlib.get_logger()

COMMAND: Final = (sys.executable, "-m", "tidegate.runtime.solver_worker")
_START_S: Final = 30.0
_GRACE_S: Final = 2.0
"""Beyond the time box: to build the program, to order and to explain the moves."""
_LARGEST_BYTES: Final = 1 << 28


class _NoAnswerError(Exception):
    """Why there is none, in words for the decision's note."""


class SolverProcess:
    """One process, started when it is first asked and again after it ended. One question at a time."""

    def __init__(self, command: Sequence[str] = COMMAND, *, grace_s: float = _GRACE_S) -> None:
        self._command = command
        self._grace_s = grace_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process else None

    async def solve(self, snapshot: Snapshot, limits: Limits | None = None) -> Assignment:
        """The solver's assignment, or the greedy one with a note that says why; always within the limits of `check`."""
        limits = limits or Limits()
        async with self._turn:
            try:
                return await self._ask(snapshot, limits)
            except _NoAnswerError as error:
                await self._end()
                log.warning("solver_failed", reason=str(error))
                note = str(error)
            except asyncio.CancelledError:
                # Its answer would be taken for that of the next question.
                await self._end()
                raise
        # Half a second of computing for a thousand models: not on the event loop, where leases are renewed.
        return await asyncio.to_thread(solve_greedily, snapshot, note)

    async def close(self) -> None:
        """Ends the process."""
        async with self._turn:
            await self._end()

    async def _ask(self, snapshot: Snapshot, limits: Limits) -> Assignment:
        process = await self._running()
        allowed_s = limits.seconds + self._grace_s
        try:
            async with asyncio.timeout(allowed_s):
                answer = await _exchange(process, frame(pickle.dumps((snapshot, limits))))
        except TimeoutError as error:
            message = f"the solver did not answer within {allowed_s:g} s and was ended"
            raise _NoAnswerError(message) from error
        assignment = _parsed(answer)
        wrong = wrong_with(snapshot, assignment)
        if wrong:
            raise _NoAnswerError(f"the solver's answer was not used: {wrong}")
        return assignment

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        try:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
            async with asyncio.timeout(_START_S):
                await _exchange(self._process, b"")
        except TimeoutError as error:
            raise _NoAnswerError(f"the solver did not start within {_START_S:g} s") from error
        except OSError as error:
            raise _NoAnswerError(f"the solver did not start: {error}") from error
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange(process: Process, request: bytes) -> bytes:
    """Sends `request` and returns the next frame. Raises _NoAnswerError when the process has ended."""
    if process.stdin is None or process.stdout is None:
        raise _NoAnswerError("the solver was started without pipes")
    try:
        process.stdin.write(request)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        if length > _LARGEST_BYTES:
            raise _NoAnswerError("the solver's answer was not readable")
        return await process.stdout.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise _NoAnswerError(f"the solver ended with {_status(await process.wait())}") from error


def _parsed(answer: bytes) -> Assignment:
    try:
        # Written by our own child.
        assignment = pickle.loads(answer)  # noqa: S301
    except Exception as error:
        raise _NoAnswerError(f"the solver's answer was not readable: {error!r}") from error
    if not isinstance(assignment, Assignment):
        raise _NoAnswerError("the solver's answer was not readable: it is no assignment")
    return assignment


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"
