"""Child processes that end with their parent, log to a file and report why they ended."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tidegate_localcluster.errors import LocalClusterError, NotReadyError, ProcessDiedError

POLL_INTERVAL_S = 0.05
LAST_LINES = 12


class ChildProcess:
    """One long-running program.

    The kernel kills it when the thread that called `start` ends (setpriv sets PR_SET_PDEATHSIG, which
    outlives exec), so that a killed parent leaves no processes: start them from a thread that lives as long as they
    should. A preexec_fn would do the same but forks a copy of every lock of a threaded parent.
    It runs in a session of its own: Ctrl-C reaches only us, and we choose the order in which processes stop.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Describe a process without starting it.

        `start` adds `environment` to ours, overwrites `log`, and lets the process inherit our file `descriptors`.
        """
        self.name = name
        self.log = log
        self._arguments = tuple(str(argument) for argument in arguments)
        self._environment = dict(environment or {})
        self._directory = directory
        self._descriptors = tuple(descriptors)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs, else None."""
        return self._child.pid if self._child is not None and self.running else None

    @property
    def running(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the program unless it runs; raises LocalClusterError when it cannot be run at all."""
        if self.running:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            try:
                self._child = subprocess.Popen(
                    [*_make_pdeathsig_command(), *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    cwd=self._directory,
                    pass_fds=self._descriptors,
                    start_new_session=True,
                )
            except OSError as error:
                raise LocalClusterError(f"{self.name} could not be started: {error}") from error

    def stop(self, timeout_s: float = 10.0) -> None:
        """Send SIGTERM, then SIGKILL after `timeout_s`; do nothing if it does not run."""
        if self._child is None:
            return
        if self.running:
            self._child.terminate()
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def check_running(self) -> None:
        """Raise ProcessDiedError, with the last lines of the log, unless it runs."""
        if not self.running:
            raise ProcessDiedError(
                f"{self.name} {self._describe_exit()}; the end of {self.log}:\n{self.read_last_lines()}"
            )

    def read_last_lines(self, count: int = LAST_LINES) -> str:
        """Return the end of the log, indented, for a message."""
        if not self.log.exists():
            return "  (no log)"
        lines = self.log.read_text(errors="replace").splitlines()[-count:]
        return "\n".join(f"  {line}" for line in lines) or "  (the log is empty)"

    def _describe_exit(self) -> str:
        if self._child is None:
            return "was never started"
        code = self._child.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit status {code}"


def wait_until(
    condition: Callable[[], bool],
    *,
    description: str,
    processes: Iterable[ChildProcess] = (),
    timeout_s: float,
) -> None:
    """Wait until `condition` holds.

    Raises ProcessDiedError as soon as one of `processes` ends, and NotReadyError after `timeout_s` with the
    last lines of their logs: `description` reads like 'kube-apiserver answers /readyz'.
    """
    watched_processes = tuple(processes)
    deadline = time.monotonic() + timeout_s
    while not condition():
        for process in watched_processes:
            process.check_running()
        if time.monotonic() > deadline:
            logs = "".join(
                f"\nthe end of {process.log}:\n{process.read_last_lines()}" for process in watched_processes
            )
            raise NotReadyError(f"waited {timeout_s:g} s in vain until {description}{logs}")
        time.sleep(POLL_INTERVAL_S)


def _make_pdeathsig_command() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv", path=f"{os.environ.get('PATH', '')}:/usr/bin:/bin")
    if setpriv is None:
        raise LocalClusterError("setpriv is not on PATH: install util-linux (it is part of every Debian)")
    # If our process dies before setpriv requests the signal, the child has another parent and must not run.
    run_unless_orphaned = 'test "$PPID" = "$0" || exit 1; exec "$@"'
    return (setpriv, "--pdeathsig", "KILL", "--", "/bin/sh", "-c", run_unless_orphaned, str(os.getpid()))
