"""Keeps the processes of a cluster alive, and records their restarts and how they ended."""

import time
from collections.abc import Mapping, Sequence

from tidegate_localcluster.errors import ProcessDiedError
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.state import PartState

RESTART_PAUSE_S = 1.0
STOP_TIMEOUT_S = 3.0


class ProcessGroup:
    """Supervised processes in the order of their start, with the restarts of each."""

    def __init__(self) -> None:
        """Begin without processes."""
        self._processes: list[ChildProcess] = []
        self._restarts: dict[str, int] = {}
        self._endings: dict[str, str] = {}
        self._restarted_at: dict[str, float] = {}

    @property
    def processes(self) -> Sequence[ChildProcess]:
        """Return all processes, dead or alive."""
        return tuple(self._processes)

    def start(self, process: ChildProcess) -> None:
        """Start a process and supervise it."""
        process.start()
        self._processes.append(process)

    def adopt_processes(self, processes: Sequence[ChildProcess]) -> None:
        """Supervise processes that run already."""
        self._processes.extend(processes)

    def restart_dead(self) -> Sequence[str]:
        """Restart processes that have died, each at most once a second; return their names."""
        dead = [process for process in self._processes if not process.running]
        for process in dead:
            self._restart_process(process)
        return tuple(process.name for process in dead)

    def stop(self) -> None:
        """Stop all processes, the last one first."""
        for process in reversed(self._processes):
            process.stop(STOP_TIMEOUT_S)

    def report_states(self) -> Mapping[str, PartState]:
        """Return the state of each process by name."""
        return {
            process.name: PartState(
                pid=process.pid,
                restarts=self._restarts.get(process.name, 0),
                last_ending=self._endings.get(process.name),
            )
            for process in self._processes
        }

    def _restart_process(self, process: ChildProcess) -> None:
        now = time.monotonic()
        if now - self._restarted_at.get(process.name, 0.0) < RESTART_PAUSE_S:
            return
        try:
            process.check_running()
        except ProcessDiedError as error:
            self._endings[process.name] = str(error).splitlines()[0]
        if process.log.exists():
            process.log.replace(process.log.with_suffix(".previous.log"))
        self._restarted_at[process.name] = now
        self._restarts[process.name] = self._restarts.get(process.name, 0) + 1
        process.start()
