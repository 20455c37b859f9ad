"""Start worker.py in processes of their own, together or one after the other, and read their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 15.0
_PROGRAM = Path(__file__).with_name("worker.py")
WITHOUT_MPS: Mapping[str, str] = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
"""Environment of a process that shares the GPU by time."""


class WorkerError(Exception):
    """A worker printed no result in time, or ended before; the message has the end of its errors."""


class Worker:
    """One process with a role; lines of its standard output arrive in a queue."""

    def __init__(
        self,
        role: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        program: Path = _PROGRAM,
    ) -> None:
        """Start `program` with a role and options; `environment` says how it shares the GPU."""
        self._process = subprocess.Popen(
            [sys.executable, str(program), role, json.dumps(dict(options))],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: Queue[str | None] = Queue()
        self._errors: list[str] = []
        threading.Thread(target=self._read_output, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    @property
    def pid(self) -> int:
        """Return the pid of the process."""
        return self._process.pid

    def read_line(self, timeout_s: float) -> dict[str, Any]:
        """Return the next line. Raises WorkerError if none comes in time."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            message = f"no line within {timeout_s:g} s; errors: {self._quote_errors()}"
            raise WorkerError(message) from None
        if line is None:
            # For the next call.
            self._lines.put(None)
            self._process.wait(_END_TIMEOUT_S)
            message = f"ended with {self._process.returncode}; errors: {self._quote_errors()}"
            raise WorkerError(message)
        return dict(json.loads(line))

    def start_work(self) -> None:
        """Let the worker begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """End the worker's standard input, which ends its work if that has no end of its own."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def _quote_errors(self) -> str:
        return "".join(self._errors)[-1500:]


@contextmanager
def ready_worker(
    role: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[tuple[Worker, dict[str, Any]]]:
    """Start a worker, and yield it with what it printed when it was ready; end it."""
    worker = Worker(role, options, environment)
    try:
        yield worker, worker.read_line(START_TIMEOUT_S)
    finally:
        worker.kill()


def run_rounds(
    role: str,
    options: Mapping[str, Any],
    environments: Sequence[Mapping[str, str]],
    rounds: int,
    timeout_s: float,
) -> list[list[dict[str, Any]]]:
    """Run a worker in each environment, all at the same time; return their results, [rounds][workers]."""
    with ExitStack() as stack:
        workers: list[Worker] = []
        for environment in environments:
            workers.append(Worker(role, options, environment))
            stack.callback(workers[-1].kill)
        return [measure_round(workers, timeout_s) for _ in range(rounds)]


def measure_round(workers: Sequence[Worker], timeout_s: float) -> list[dict[str, Any]]:
    """Wait until all workers are ready, let them begin together, and return their results."""
    for worker in workers:
        worker.read_line(START_TIMEOUT_S)
    for worker in workers:
        worker.start_work()
    return [worker.read_line(timeout_s) for worker in workers]
