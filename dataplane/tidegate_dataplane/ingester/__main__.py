"""Run the ingester of a pod: `python3 -m tidegate_dataplane.ingester`.

A process that only waits starts the one that reads, and starts it again whenever it ends: if the container ended instead, the
pod would become unready, although its server answers from the events that are stored.
"""

import os
import subprocess
import sys
import time

import structlog

from tidegate_dataplane.agent.logs import log_as_json
from tidegate_dataplane.agent.stopping import catch_stop_signals
from tidegate_dataplane.ingester.settings import IngesterSettings

READ = "--read"
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 60.0
"""A process that ran for this time is started again at once."""
EXIT_S = 10.0

log = structlog.get_logger()


def run_readers(settings: IngesterSettings) -> int:
    """Run one process that reads at a time, until SIGTERM or SIGINT; return the exit status."""
    stop = catch_stop_signals()
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        started_s = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "tidegate_dataplane.ingester", READ])
        while process.poll() is None and not stop.wait(settings.watch_s):
            pass
        if stop.is_set():
            return _end_process(process)
        log.error("reader_ended", status=process.returncode, pause_s=pause_s)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if time.monotonic() - started_s > STEADY_S:
            pause_s = FIRST_PAUSE_S
    return 0


def _end_process(process: "subprocess.Popen[bytes]") -> int:
    process.terminate()
    try:
        return process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read_streams(settings: IngesterSettings) -> None:
    """Read the streams in this process; only it needs the libraries of the store and the brokers."""
    import asyncio

    from tidegate_dataplane.ingester.process import run_ingester

    asyncio.run(run_ingester(settings))


if __name__ == "__main__":
    log_as_json()
    environment_settings = IngesterSettings.from_environment(os.environ)
    if READ in sys.argv[1:]:
        _read_streams(environment_settings)
    else:
        sys.exit(run_readers(environment_settings))
