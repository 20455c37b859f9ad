"""Asks the solver in a process of its own, and answers by the greedy order whenever that process does not.

A solver that is killed, hangs, fails or answers nonsense costs one tick its optimum; the controllers never notice more than the note.
One that is late is no such case: it goes on, stays warm, and shows how long a question of that size takes, so that none is asked
whose answer would come too late. Of such a question the process is asked for the greedy answer instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tidegate.allocation.answer import Limits, solve_greedily
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.check import wrong_with
from tidegate.allocation.snapshot import Snapshot
from tidegate.runtime.frames import LENGTH_BYTES, frame

log: Final = structlog.stdlib.get_logger()

COMMAND: Final = (sys.executable, "-m", "tidegate.runtime.solver_worker")
_START_S: Final = 30.0
_GRACE_S: Final = 2.0
"""Beyond the time box: to build the program, to order and to explain the moves."""
_HANGS_S: Final = 30.0
"""As long as the greedy answer of the largest pools may take, and more than their optimum does."""
_TRIED_AGAIN_S: Final = 600.0
"""How long a question that was answered too late stands for others: the machine may have been busy with other things."""
_LARGEST_BYTES: Final = 1 << 28


class _NoAnswerError(Exception):
    """Why there is none, in words for the decision's note."""


class _LateError(_NoAnswerError):
    """There is none yet, and the process goes on."""


@dataclass(frozen=True, slots=True)
class _Late:
    """A question that was answered too late."""

    size: int
    took_s: float
    at_s: float
    """On the loop's clock."""


class SolverProcess:
    """One process, started when it is first asked and again after it ended. One question at a time."""

    def __init__(
        self, command: Sequence[str] = COMMAND, *, grace_s: float = _GRACE_S, hangs_s: float = _HANGS_S
    ) -> None:
        """An answer may come `grace_s` after the time box; a process that gives none within `hangs_s` is ended."""
        self._command = command
        self._grace_s = grace_s
        self._hangs_s = hangs_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._outstanding: asyncio.Task[None] | None = None
        """Takes the answer for which nobody waits any more."""
        self._late: _Late | None = None

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
            except _LateError as error:
                log.info("solver_late", reason=str(error))
                note = str(error)
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
        if self._outstanding is not None and not self._outstanding.done():
            raise _LateError("the solver is still busy with an earlier question")
        process = await self._running()
        allowed_s, size = limits.seconds + self._grace_s, _size(snapshot)
        needed_s = self._needed_s(size)
        asked: Limits | str = limits
        if needed_s > allowed_s:
            asked = (
                f"the solver would need about {needed_s:.1f} s for {_models(size)}, and has {allowed_s:g} s"
            )
            allowed_s = self._hangs_s
        # For ten thousand models writing, reading and checking take a good part of a second each: not on the event loop either.
        request = frame(await asyncio.to_thread(pickle.dumps, (snapshot, asked)))
        begun_s = asyncio.get_running_loop().time()
        answer = asyncio.create_task(_exchange(process, request), name="ask-solver")
        try:
            await asyncio.wait((answer,), timeout=allowed_s)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if not answer.done():
            self._outstanding = asyncio.create_task(
                self._outwait(answer, size, begun_s), name="outwait-solver"
            )
            raise _LateError(
                f"the solver did not answer within {allowed_s:g} s for {_models(size)}, and goes on"
            )
        return await asyncio.to_thread(_checked, snapshot, answer.result())

    def _needed_s(self, size: int) -> float:
        """How long an answer for so many would take, by the last one that was too late; zero where none was."""
        if self._late is None or asyncio.get_running_loop().time() - self._late.at_s > _TRIED_AGAIN_S:
            return 0.0
        return self._late.took_s * size / self._late.size

    async def _outwait(self, answer: asyncio.Task[bytes], size: int, begun_s: float) -> None:
        """Lets the process finish, and learns how long that took; ends it where it hangs."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(begun_s + self._hangs_s):
                await answer
            self._late = _Late(size, clock() - begun_s, clock())
        except (TimeoutError, _NoAnswerError) as error:
            log.warning("solver_failed", reason=str(error) or f"no answer within {self._hangs_s:g} s")
            await self._kill()

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
        outstanding, self._outstanding = self._outstanding, None
        if outstanding is not None:
            outstanding.cancel()
            await asyncio.wait((outstanding,))
        await self._kill()

    async def _kill(self) -> None:
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


def _size(snapshot: Snapshot) -> int:
    return max(len(snapshot.inferences), 1)


def _models(size: int) -> str:
    return "1 Inference" if size == 1 else f"{size} Inferences"


def _checked(snapshot: Snapshot, answer: bytes) -> Assignment:
    assignment = _parsed(answer)
    wrong = wrong_with(snapshot, assignment)
    if wrong:
        raise _NoAnswerError(f"the solver's answer was not used: {wrong}")
    return assignment


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
