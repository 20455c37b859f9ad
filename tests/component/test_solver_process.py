"""The solver's process, real and really killed: a dead or slow solver is a greedy tick, never a dead controller."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator

import pytest

from builders.allocation import a_model, a_placement, a_pool, a_snapshot
from builders.waiting import eventually
from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import SolveMethod
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.runtime.solver_process import SolverProcess

ROOMY = SolveLimits(seconds=20.0)
SNAPSHOT = a_snapshot(
    a_model("ctr", Tier.REALTIME, a_placement(ready=2), rate=550.0),
    a_model("off", Tier.OFFLINE, a_placement(ready=6), rate=600.0, value=0.1),
)
WANTED = {"ads/ctr": 6, "ads/off": 2}


@pytest.fixture
async def solver() -> AsyncIterator[SolverProcess]:
    process = SolverProcess(grace_s=20.0)
    yield process
    await process.close()


def replicas(assignment) -> dict[str, int]:
    return {each.inference: each.replicas for each in assignment.replicas}


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def stop(solver: SolverProcess) -> int:
    """Stop the process once it has answered, so that it takes questions and answers none; return its id."""
    await solver.solve(SNAPSHOT, ROOMY)
    assert solver.pid is not None
    os.kill(solver.pid, signal.SIGSTOP)
    return solver.pid


async def test_it_answers_what_the_solver_answers_here_and_stays_while_the_loop_runs_on(
    solver: SolverProcess,
) -> None:
    assignment = await solver.solve(SNAPSHOT, ROOMY)
    assert assignment == Solver(time.monotonic).solve(SNAPSHOT, ROOMY)
    assert replicas(assignment) == WANTED
    assert assignment.note == ""
    assert assignment.method is not SolveMethod.GREEDY

    pid, turns = solver.pid, 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await solver.solve(SNAPSHOT, ROOMY)
    counting.cancel()
    assert turns > 2  # a loop that waits for the answer itself takes none, or the one before it
    assert solver.pid == pid

    # The time box is its own: the process lives on, and the pools that were not reached are greedy.
    assignment = await solver.solve(large(), SolveLimits(seconds=1e-6))
    assert (assignment.method, assignment.note) == (SolveMethod.GREEDY, "out of time")
    assert solver.pid == pid
    assert (await solver.solve(large(), ROOMY)).note == ""


async def test_killed_while_it_solves_it_is_a_greedy_tick_and_comes_back(solver: SolverProcess) -> None:
    # Stopped, it has the question and no answer: the kill hits it in the middle.
    killed = await stop(solver)
    answer = asyncio.create_task(solver.solve(SNAPSHOT, ROOMY))
    await asyncio.sleep(0)
    os.kill(killed, signal.SIGKILL)
    assignment = await answer
    assert assignment.method is SolveMethod.GREEDY
    assert assignment.note == "the solver ended with signal 9"
    assert replicas(assignment) == WANTED
    assert (await solver.solve(SNAPSHOT, ROOMY)).note == ""
    assert solver.pid != killed

    # Between two ticks it is not even missed.
    killed = solver.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: gone(killed), what="the killed solver is gone")
    assert replicas(await solver.solve(SNAPSHOT, ROOMY)) == WANTED


async def test_one_that_is_no_longer_waited_for_does_not_answer_the_next_question(
    solver: SolverProcess,
) -> None:
    asked = await stop(solver)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await solver.solve(SNAPSHOT, ROOMY)
    assert gone(asked)
    assignment = await solver.solve(large(), ROOMY)
    assert assignment.note == ""
    assert len(assignment.replicas) == 50


async def test_one_that_hangs_is_ended_after_its_time() -> None:
    solver = SolverProcess(grace_s=0.2, hangs_s=1.0)
    hanging = await stop(solver)
    assignment = await solver.solve(SNAPSHOT, SolveLimits(seconds=0.3))
    assert assignment.method is SolveMethod.GREEDY
    assert assignment.note == "the solver did not answer within 0.5 s for 2 Inferences, and goes on"
    await eventually(lambda: gone(hanging), what="the solver that hangs is gone")

    async def answers_again() -> bool:
        return (await solver.solve(SNAPSHOT, ROOMY)).note == ""

    await eventually(answers_again, what="the next one answers")
    await solver.close()


async def test_a_late_answer_that_is_given_up_keeps_nobody_waiting_and_predicts_nothing() -> None:
    solver = SolverProcess(grace_s=0.2, hangs_s=60.0)
    stopped = await stop(solver)
    late = await solver.solve(large(), SolveLimits(seconds=0.3), outwait=False)
    assert late.method is SolveMethod.GREEDY
    assert late.note == "the solver did not answer within 0.5 s for 50 Inferences, and is given up"
    assert gone(stopped)
    next_one = await solver.solve(large(), ROOMY)
    assert (next_one.note, solver.pid != stopped) == ("", True)
    await solver.close()


async def test_one_that_is_late_for_a_large_pool_lives_on_and_is_not_asked_for_as_much_again() -> None:
    solver = SolverProcess(grace_s=0.2, hangs_s=60.0)
    slow = await stop(solver)
    late = await solver.solve(large(), SolveLimits(seconds=0.3))
    assert (late.method, late.note) == (
        SolveMethod.GREEDY,
        "the solver did not answer within 0.5 s for 50 Inferences, and goes on",
    )
    busy = await solver.solve(SNAPSHOT, ROOMY)
    assert busy.note == "the solver is still busy with an earlier question"
    os.kill(slow, signal.SIGCONT)

    async def asked() -> bool:
        return "busy" not in (await solver.solve(SNAPSHOT, ROOMY)).note

    await eventually(asked, what="the solver has answered the question for which nobody waits any more")
    assert solver.pid == slow
    again = await solver.solve(large(), SolveLimits(seconds=0.3))
    assert again.method is SolveMethod.GREEDY
    assert re.fullmatch(
        r"the solver would need about \d+\.\d s for 50 Inferences, and has 0\.5 s", again.note
    )
    assert replicas(again) == replicas(late)
    assert (await solver.solve(SNAPSHOT, ROOMY)).note == ""
    assert solver.pid == slow
    await solver.close()


def large() -> AllocationSnapshot:
    return a_snapshot(
        a_pool(slices=60),
        *(
            a_model(f"m{number}", Tier.NEARLINE, a_placement(ready=1), rate=150.0, value=1.0 + number)
            for number in range(50)
        ),
    )


@pytest.mark.parametrize(
    ("program", "note"),
    [
        ("import sys; sys.exit(3)", "the solver ended with status 3"),
        ("print('not a frame at all')", "the solver's answer was not readable"),
        (
            "import sys; sys.stdout.buffer.write(bytes(8) + bytes(7) + b'\\x05hello'); sys.stdout.flush(); sys.stdin.read()",
            "the solver's answer was not readable",
        ),
    ],
    ids=["ends", "prints", "nonsense"],
)
async def test_one_that_fails_is_a_greedy_tick(program: str, note: str) -> None:
    solver = SolverProcess((sys.executable, "-c", program))
    assignment = await solver.solve(SNAPSHOT, ROOMY)
    assert assignment.method is SolveMethod.GREEDY
    assert assignment.note.startswith(note)
    assert replicas(assignment) == WANTED
    await solver.close()


async def test_one_that_is_not_there_is_a_greedy_tick() -> None:
    assignment = await SolverProcess(("/nonexistent/solver",)).solve(SNAPSHOT, ROOMY)
    assert assignment.note.startswith("the solver did not start")
    assert replicas(assignment) == WANTED


async def test_it_ends_with_its_parent(tmp_path) -> None:
    """Even when that is killed: its stdin ends."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from tidegate.runtime.solver_process import SolverProcess\n"
        "from tidegate.allocation.snapshot import AllocationSnapshot\n"
        "async def main():\n"
        "    solver = SolverProcess()\n"
        "    await solver.solve(AllocationSnapshot((), ()))\n"
        "    print(solver.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await parent.communicate()
    pid = int(out)
    await eventually(lambda: gone(pid) or _zombie(pid), what="the orphan has ended")


def _zombie(pid: int) -> bool:
    """Where nothing reaps orphans, an ended one stays in the table."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
