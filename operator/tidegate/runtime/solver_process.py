"""Solver in a process of its own, with the greedy answer whenever that process gives none in time.

A solver that crashes, hangs or answers nonsense costs one tick its optimum, and the controllers see only the note. A late
solver goes on and stays warm; its time predicts that of further requests, and those that would be late are sent with an
order to answer greedily.
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

from tidegate.allocation.assembly import SolveLimits, solve_greedily
from tidegate.allocation.assignment import Assignment
from tidegate.allocation.check import find_defect
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.runtime.frames import LENGTH_BYTES, encode_frame

log: Final = structlog.stdlib.get_logger()

COMMAND: Final = (sys.executable, "-m", "tidegate.runtime.solver_worker")
_START_S: Final = 30.0
_GRACE_S: Final = 2.0
"""Time beyond the time box to build the program, and to order and explain the moves."""
_HANG_S: Final = 30.0
"""Time after which the process counts as hung: more than the greedy answer of the largest pools takes."""
_LATE_VALID_S: Final = 600.0
"""Time for which a late answer predicts others; the machine may have been busy with other work."""
_MAX_BYTES: Final = 1 << 28


class _NoAnswerError(Exception):
    """Failure of the solver process; the message is the decision's note."""


class _LateError(_NoAnswerError):
    """Answer that is not there yet; the process goes on, unless it is ended."""


class _BusyError(_NoAnswerError):
    """Request that was not sent, because the process has not answered an earlier one."""


@dataclass(frozen=True, slots=True)
class _LateAnswer:
    """Request that was answered too late."""

    size: int
    took_s: float
    ended_s: float
    """Time on the event loop's clock."""


class SolverProcess:
    """Solver process that is started on first use and again after it ended; it solves one request at a time."""

    def __init__(
        self, command: Sequence[str] = COMMAND, *, grace_s: float = _GRACE_S, hangs_s: float = _HANG_S
    ) -> None:
        """Wait for an answer until `grace_s` after the time box; kill a process that gives none within `hangs_s`."""
        self._command = command
        self._grace_s = grace_s
        self._hangs_s = hangs_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._outstanding: asyncio.Task[None] | None = None
        """Task that reads the answer to a request that timed out."""
        self._late: _LateAnswer | None = None

    @property
    def pid(self) -> int | None:
        """Return the process's id while it runs."""
        return self._process.pid if self._process else None

    async def solve(
        self, snapshot: AllocationSnapshot, limits: SolveLimits | None = None, *, outwait: bool = True
    ) -> Assignment:
        """Return the solver's checked assignment, or the greedy one with a note that says why.

        A late solver goes on, and its time predicts that of others. Without `outwait` it is ended, so that the next request
        does not wait for it, and predicts nothing.
        """
        limits = limits or SolveLimits()
        async with self._turn:
            try:
                return await self._request_answer(snapshot, limits)
            except _BusyError as error:
                note = str(error)
                log.info("solver_late", reason=note)
            except _LateError as error:
                if not outwait:
                    await self._end_process()
                note = f"{error}, and {'goes on' if outwait else 'is given up'}"
                log.info("solver_late", reason=note)
            except _NoAnswerError as error:
                await self._end_process()
                log.warning("solver_failed", reason=str(error))
                note = str(error)
            except asyncio.CancelledError:
                # End the process: its late answer would be read as that to the next request.
                await self._end_process()
                raise
        # A thousand models take half a second: compute outside the event loop, which renews leases.
        return await asyncio.to_thread(solve_greedily, snapshot, note)

    async def close(self) -> None:
        """End the process."""
        async with self._turn:
            await self._end_process()

    async def _request_answer(self, snapshot: AllocationSnapshot, limits: SolveLimits) -> Assignment:
        """Send the snapshot and return the checked answer; raise _LateError or _NoAnswerError."""
        if self._outstanding is not None and not self._outstanding.done():
            raise _BusyError("the solver is still busy with an earlier question")
        process = await self._ensure_running()
        allowed_s, size = limits.seconds + self._grace_s, _count_models(snapshot)
        needed_s = self._estimate_s(size)
        instruction: SolveLimits | str = limits
        if needed_s > allowed_s:
            instruction = f"the solver would need about {needed_s:.1f} s for {_format_models(size)}, and has {allowed_s:g} s"
            allowed_s = self._hangs_s
        # For ten thousand models pickling and checking take a good part of a second each: use a thread as well.
        request = encode_frame(await asyncio.to_thread(pickle.dumps, (snapshot, instruction)))
        begun_s = asyncio.get_running_loop().time()
        answer = asyncio.create_task(_exchange_frames(process, request), name="ask-solver")
        try:
            await asyncio.wait((answer,), timeout=allowed_s)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if not answer.done():
            self._outstanding = asyncio.create_task(
                self._await_late_answer(answer, size, begun_s), name="outwait-solver"
            )
            raise _LateError(f"the solver did not answer within {allowed_s:g} s for {_format_models(size)}")
        return await asyncio.to_thread(_load_checked, snapshot, answer.result())

    def _estimate_s(self, size: int) -> float:
        """Estimate the seconds for `size` models from the last late answer; 0 without one."""
        if self._late is None or asyncio.get_running_loop().time() - self._late.ended_s > _LATE_VALID_S:
            return 0.0
        return self._late.took_s * size / self._late.size

    async def _await_late_answer(self, answer: asyncio.Task[bytes], size: int, begun_s: float) -> None:
        """Wait until the process answers and remember how long that took; kill it when it hangs."""
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout_at(begun_s + self._hangs_s):
                await answer
            self._late = _LateAnswer(size, clock() - begun_s, clock())
        except (TimeoutError, _NoAnswerError) as error:
            log.warning("solver_failed", reason=str(error) or f"no answer within {self._hangs_s:g} s")
            await self._kill_process()

    async def _ensure_running(self) -> Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end_process()
        try:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
            async with asyncio.timeout(_START_S):
                await _exchange_frames(self._process, b"")
        except TimeoutError as error:
            raise _NoAnswerError(f"the solver did not start within {_START_S:g} s") from error
        except OSError as error:
            raise _NoAnswerError(f"the solver did not start: {error}") from error
        return self._process

    async def _end_process(self) -> None:
        outstanding, self._outstanding = self._outstanding, None
        if outstanding is not None:
            outstanding.cancel()
            await asyncio.wait((outstanding,))
        await self._kill_process()

    async def _kill_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange_frames(process: Process, request: bytes) -> bytes:
    """Send `request` and return the next frame; raise _NoAnswerError when the process has ended."""
    if process.stdin is None or process.stdout is None:
        raise _NoAnswerError("the solver was started without pipes")
    try:
        process.stdin.write(request)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        if length > _MAX_BYTES:
            raise _NoAnswerError("the solver's answer was not readable")
        return await process.stdout.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise _NoAnswerError(f"the solver ended with {_describe_exit(await process.wait())}") from error


def _count_models(snapshot: AllocationSnapshot) -> int:
    return max(len(snapshot.inferences), 1)


def _format_models(size: int) -> str:
    return "1 Inference" if size == 1 else f"{size} Inferences"


def _load_checked(snapshot: AllocationSnapshot, answer: bytes) -> Assignment:
    assignment = _unpickle_answer(answer)
    defect = find_defect(snapshot, assignment)
    if defect:
        raise _NoAnswerError(f"the solver's answer was not used: {defect}")
    return assignment


def _unpickle_answer(answer: bytes) -> Assignment:
    try:
        # Only our own child writes here.
        assignment = pickle.loads(answer)  # noqa: S301
    except Exception as error:
        raise _NoAnswerError(f"the solver's answer was not readable: {error!r}") from error
    if not isinstance(assignment, Assignment):
        raise _NoAnswerError("the solver's answer was not readable: it is no assignment")
    return assignment


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"
