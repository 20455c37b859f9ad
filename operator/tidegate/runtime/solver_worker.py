"""Solver's own process: `python -m tidegate.runtime.solver_worker` reads snapshots and writes assignments.

Each frame holds a pickle; the first frame on stdout is empty and means that the process is ready. A frame on stdin holds a
snapshot with limits for the solver, or with a note, which asks for the greedy answer and is its reason.
The process ends when stdin does, so it never outlives the controllers.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from typing import BinaryIO

from tidegate.allocation.assembly import solve_greedily
from tidegate.allocation.solver import Solver
from tidegate.runtime.frames import LENGTH_BYTES, encode_frame


def main() -> None:
    """Answer requests until stdin ends."""
    # Move stdout away from libraries: what one prints would corrupt a frame.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests = sys.stdin.buffer
    solver = Solver(time.monotonic)
    _write_frame(answers, b"")
    while header := requests.read(LENGTH_BYTES):
        # Unpickling is safe: only the process that started this one can write here.
        snapshot, instruction = pickle.loads(requests.read(int.from_bytes(header, "big")))  # noqa: S301
        greedily = isinstance(instruction, str)
        answer = solve_greedily(snapshot, instruction) if greedily else solver.solve(snapshot, instruction)
        _write_frame(answers, pickle.dumps(answer))


def _write_frame(answers: BinaryIO, payload: bytes) -> None:
    answers.write(encode_frame(payload))
    answers.flush()


if __name__ == "__main__":
    main()
