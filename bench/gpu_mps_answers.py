"""What NVIDIA's MPS control program answers on a real GPU, and what the node agent makes of it, through faults.

    python bench/gpu_mps_answers.py [--output FILE]

Needs a GPU that nothing else uses, NVIDIA's MPS programs, PyTorch and CuPy. It starts an MPS daemon of its own, and takes it
through these states: no daemon, no client, two clients, one of them killed, a fatal fault of one, a new client during the fault,
the last old client gone, a daemon that does not answer, a daemon that was killed. In each state it records the answer to each
command, and the report of the node agent's own watcher. Pids are replaced by names. Prints one JSON document, which is the
recording in tests/fixtures/mps_recorded.json; exits 1 if the watcher reported a state otherwise than it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu.mps_daemon import PROGRAM, MpsDaemon, running_daemon
from gpu.workers import Worker, WorkerError, ready_worker
from gpu_sharing import name_card

from tidegate_dataplane.contract.sharing import DaemonState, NodeReport, ServerStatus
from tidegate_dataplane.node_agent.mps import MpsControl
from tidegate_dataplane.node_agent.watcher import MpsWatcher

UNKNOWN_PID = 99999999
_INTERVAL_S = 0.1
_STATE_TIMEOUT_S = 20.0
_COMMAND_TIMEOUT_S = 2.0


class Recorder:
    """The states so far, and the watcher that runs beside them."""

    def __init__(self, daemon: MpsDaemon, watcher: MpsWatcher) -> None:
        """Record what `daemon` answers and `watcher` reports."""
        self.states: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._daemon = daemon
        self._watcher = watcher
        self._names: dict[int, str] = {UNKNOWN_PID: "UNKNOWN"}

    def name_pid(self, pid: int, name: str) -> None:
        """Write `name` for a pid from here on."""
        self._names[pid] = name

    async def wait_for(self, what: str, matches: Callable[[NodeReport], bool]) -> float | None:
        """Return the seconds until a report matches; None, and a problem, if none does in time."""
        began = time.monotonic()
        while time.monotonic() - began < _STATE_TIMEOUT_S:
            report = self._watcher.report
            if report is not None and matches(report):
                return round(time.monotonic() - began, 2)
            await asyncio.sleep(_INTERVAL_S)
        self.problems.append(f"the watcher did not report {what} within {_STATE_TIMEOUT_S:g} s")
        return None

    async def record_state(self, name: str, **facts: Any) -> None:
        """Record the answers of the control program and the report."""
        report = self._watcher.report
        servers = [server.pid for server in report.servers] if report is not None else []
        self._names |= dict.fromkeys(servers, "SERVER")
        commands = ["get_server_list"]
        for pid in (*servers, UNKNOWN_PID):
            commands += [f"get_server_status {pid}", f"get_client_list {pid}"]
        answers = {}
        for command in commands:
            try:
                answer = await asyncio.to_thread(self._daemon.send_command, command, _COMMAND_TIMEOUT_S)
                answers[self._replace_pids(command)] = {
                    "output": self._replace_pids(answer.output),
                    "status": answer.status,
                }
            except subprocess.TimeoutExpired:
                answers[self._replace_pids(command)] = {"output": None, "status": None}
                break
        summary = None
        if report is not None:
            document = report.model_dump(mode="json", include={"daemon", "message", "servers", "clients"})
            summary = json.loads(
                self._replace_pids(re.sub(r'"since": "[^"]*"', '"since": ""', json.dumps(document)))
            )
        self.states.append({"state": name, "answers": answers, "report": summary, **facts})
        print(json.dumps(self.states[-1]), file=sys.stderr, flush=True)

    def _replace_pids(self, text: str) -> str:
        for pid, name in self._names.items():
            text = re.sub(rf"(?<!\d){pid}(?!\d)", name, text)
        return re.sub(r'("(?:pid|server)": )([A-Z]+)', r'\1"\2"', text)


async def record_all(folder: Path) -> dict[str, Any]:
    """Take a daemon through all states."""
    with running_daemon(folder) as daemon:
        control = MpsControl(PROGRAM, daemon.pipe, _COMMAND_TIMEOUT_S)
        watcher = MpsWatcher("gpu-0", control, _read_pod, lambda: datetime.now(UTC))
        recorder = Recorder(daemon, watcher)
        watching = asyncio.create_task(watcher.run(_INTERVAL_S))
        try:
            await _record_clients(recorder, daemon)
            await _record_fault(recorder, daemon)
            await _record_daemon_faults(recorder, daemon)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return {"card": name_card(), "states": recorder.states, "problems": recorder.problems}


async def _record_clients(recorder: Recorder, daemon: MpsDaemon) -> None:
    await recorder.wait_for("a daemon", lambda report: report.daemon is DaemonState.ANSWERS)
    await recorder.record_state("no server")
    with ready_worker("hog", {}, daemon.environment) as (first, _):
        recorder.name_pid(first.pid, "FIRST")
        await recorder.wait_for("a client", _has_clients(first))
        await recorder.record_state("a client")
        with ready_worker("hog", {}, daemon.environment) as (second, _):
            recorder.name_pid(second.pid, "SECOND")
            await recorder.wait_for("two clients", _has_clients(first, second))
            await recorder.record_state("two clients")
            second.start_work()
            os.kill(second.pid, signal.SIGKILL)
            seconds = await recorder.wait_for("a killed client", _has_clients(first))
            await recorder.record_state("a client killed while it computes", seconds=seconds)
    seconds = await recorder.wait_for("no client", _has_clients())
    await recorder.record_state("no client", seconds=seconds)


async def _record_fault(recorder: Recorder, daemon: MpsDaemon) -> None:
    with ready_worker("hog", {}, daemon.environment) as (innocent, _):
        recorder.name_pid(innocent.pid, "INNOCENT")
        innocent.start_work()
        with ready_worker("fault", {}, daemon.environment) as (guilty, _):
            recorder.name_pid(guilty.pid, "GUILTY")
            await recorder.wait_for("two clients", _has_clients(innocent, guilty))
            guilty.start_work()
            error = (await asyncio.to_thread(guilty.read_line, 30.0))["error"]
            seconds = await recorder.wait_for("FAULT", _has_fault)
            await recorder.record_state("a fault", seconds=seconds, guilty=error)
        other = await asyncio.to_thread(_describe_end, innocent)
        newcomer = Worker("hog", {}, daemon.environment)
        recorder.name_pid(newcomer.pid, "NEWCOMER")
        try:
            admitted: str = await asyncio.to_thread(_describe_start, newcomer, 10.0)
            await recorder.record_state("a new client during the fault", innocent=other, newcomer=admitted)
            innocent.kill()
            seconds = await recorder.wait_for("the end of the fault", lambda report: not _has_fault(report))
            await recorder.record_state("the last old client gone", seconds=seconds)
        finally:
            newcomer.kill()
    with ready_worker("hog", {}, daemon.environment) as (later, _):
        recorder.name_pid(later.pid, "LATER")
        await recorder.wait_for("a client after the fault", _has_clients(later))
        await recorder.record_state("a client after the fault")


async def _record_daemon_faults(recorder: Recorder, daemon: MpsDaemon) -> None:
    pid = daemon.read_pid()
    with ready_worker("hog", {}, daemon.environment) as (client, _):
        recorder.name_pid(client.pid, "CLIENT")
        client.start_work()
        await recorder.wait_for("a client", _has_clients(client))
        os.kill(pid, signal.SIGSTOP)
        seconds = await recorder.wait_for(
            "a daemon that hangs", lambda report: report.daemon is DaemonState.HANGS
        )
        await recorder.record_state("the daemon is stopped", seconds=seconds)
        os.kill(pid, signal.SIGCONT)
        seconds = await recorder.wait_for(
            "that it answers again", lambda report: report.daemon is DaemonState.ANSWERS
        )
        await recorder.record_state("the daemon goes on", seconds=seconds)
        os.kill(pid, signal.SIGKILL)
        seconds = await recorder.wait_for(
            "that the daemon is gone", lambda report: report.daemon is DaemonState.GONE
        )
        await recorder.record_state("the daemon is killed", seconds=seconds, client_ended=client.has_ended())
        daemon.start()
        seconds = await recorder.wait_for(
            "the new daemon", lambda report: report.daemon is DaemonState.ANSWERS
        )
        await recorder.record_state(
            "a new daemon beside the old client", seconds=seconds, client_ended=client.has_ended()
        )
        newcomer = Worker("hog", {}, daemon.environment)
        recorder.name_pid(newcomer.pid, "NEXT")
        try:
            admitted = await asyncio.to_thread(_describe_start, newcomer, 20.0)
            old = await asyncio.to_thread(_describe_end, client)
            await recorder.record_state("a new client of the new daemon", newcomer=admitted, client=old)
        finally:
            newcomer.kill()


def _has_clients(*workers: Worker) -> Callable[[NodeReport], bool]:
    pids = {worker.pid for worker in workers}
    return lambda report: (
        report.daemon is DaemonState.ANSWERS and {client.pid for client in report.clients} == pids
    )


def _has_fault(report: NodeReport) -> bool:
    return any(server.status is ServerStatus.FAULT for server in report.servers)


def _describe_start(worker: Worker, timeout_s: float) -> str:
    try:
        return f"ready: {worker.read_line(timeout_s)['ready']}"
    except WorkerError as error:
        return str(error).splitlines()[-1][-200:]


def _describe_end(worker: Worker) -> Mapping[str, Any] | str:
    try:
        return worker.read_line(20.0)
    except WorkerError as error:
        return str(error).splitlines()[-1][-200:]


def _read_pod(_pid: int) -> str:
    return ""


def main() -> int:
    """Record once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        document = asyncio.run(record_all(Path(folder) / "mps"))
    text = json.dumps(document, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return 1 if document["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
