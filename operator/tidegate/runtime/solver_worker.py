"""The solver's own process: `python -m tidegate.runtime.solver_worker`. Snapshots come in by stdin, assignments go out by stdout.

Each frame holds a pickle; the first frame out is empty and says that the process is ready.
Each frame in holds a snapshot, and limits for the solver, or a note that says why the answer is to be greedy.
It ends when stdin does, so it never outlives the controllers.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from typing import BinaryIO

from tidegate.allocation.answer import solve_greedily
from tidegate.allocation.solve import Solver
from tidegate.runtime.frames import LENGTH_BYTES, frame


def main() -> None:
    """Answers until stdin ends."""
    # A library that prints must not spoil a frame.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests = sys.stdin.buffer
    solver = Solver(time.monotonic)
    _write(answers, b"")
    while header := requests.read(LENGTH_BYTES):
        # Only the process that started this one can write here.
        snapshot, asked = pickle.loads(requests.read(int.from_bytes(header, "big")))  # noqa: S301
        greedily = isinstance(asked, str)
        answer = solve_greedily(snapshot, asked) if greedily else solver.solve(snapshot, asked)
        _write(answers, pickle.dumps(answer))


def _write(answers: BinaryIO, payload: bytes) -> None:
    answers.write(frame(payload))
    answers.flush()


if __name__ == "__main__":
    main()
