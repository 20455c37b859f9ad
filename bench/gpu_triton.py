"""What a model on one GPU answers behind Triton: by instances of one server, and by servers, with MPS and without.

    python bench/gpu_triton.py [--triton FOLDER] [--seconds 4] [--rows 64,1024] [--clients 16] [--output FILE]

Needs what bench/gpu_sharing.py needs, and a tritonserver with the Python backend whose Python has PyTorch: the one on PATH, or
FOLDER with bin, lib and backends. Arms: 1, 2 and 4 instances of the model in one server, and 1, 2 and 4 servers, which are what
the slices of a GPU run; each with MPS and without, and servers also with the slices' share of the GPU. A closed loop of
`--clients` clients in four processes asks, and compares every answer. Prints one JSON document that names the card, and tables to
stderr; exits 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu.mps_daemon import running_daemon
from gpu.workers import START_TIMEOUT_S, WITHOUT_MPS, Worker, WorkerError, measure_round
from gpu_sharing import count_problems, name_card, summarize_results

from tidegate_localcluster.ports import find_unused_port

LOAD_PROCESSES = 4
_RESULT_TIMEOUT_S = 90.0
_LOAD = Path(__file__).parent / "gpu" / "triton_load.py"
_CONFIG = """
name: "attention"
backend: "python"
max_batch_size: 0
input [{{name: "history", data_type: TYPE_INT64, dims: [-1, 50]}}, {{name: "target", data_type: TYPE_INT64, dims: [-1, 1]}}]
output [{{name: "scores", data_type: TYPE_FP32, dims: [-1, 1]}}]
instance_group [{{count: {count}, kind: KIND_GPU, gpus: [0]}}]
parameters {{key: "rows", value: {{string_value: "{rows}"}}}}
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all arms share."""

    triton: Path | None
    seconds: float
    rows: Sequence[int]
    clients: int
    counts: Sequence[int]
    folder: Path


@dataclass(frozen=True, slots=True)
class GpuServer:
    """A running Triton."""

    process: subprocess.Popen[bytes]
    address: str
    http_port: int
    log: Path

    def wait_until_ready(self) -> None:
        """Return once all models are loaded. Raises WorkerError, with the end of the log, if they are not in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                url = f"http://127.0.0.1:{self.http_port}/v2/health/ready"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        lines = self.log.read_text().splitlines()
        events = "\n".join(line for line in lines if not line.startswith(("|", "+")))
        message = f"Triton is not ready; the end of its log: {events[-3000:]}"
        raise WorkerError(message)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)


def start_server(settings: Settings, instances: int, environment: Mapping[str, str]) -> GpuServer:
    """Start a Triton with so many instances of the model."""
    folder = Path(tempfile.mkdtemp(dir=settings.folder))
    version = folder / "models" / "attention" / "1"
    version.mkdir(parents=True)
    source = Path(__file__).parent / "gpu"
    shutil.copy(source / "triton_model.py", version / "model.py")
    shutil.copy(source / "worker.py", version / "worker.py")
    rows = ",".join(str(count) for count in settings.rows)
    (version.parent / "config.pbtxt").write_text(_CONFIG.format(count=instances, rows=rows))
    http, grpc = find_unused_port("127.0.0.1"), find_unused_port("127.0.0.1")
    command = ["tritonserver", f"--model-repository={version.parents[1]}", "--allow-metrics=false"]
    command.append("--disable-auto-complete-config")
    command += [f"--http-port={http}", f"--grpc-port={grpc}"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1"]
    variables = {**os.environ, **environment}
    if settings.triton is not None:
        command[0] = str(settings.triton / "bin" / "tritonserver")
        command.append(f"--backend-directory={settings.triton / 'backends'}")
        variables["LD_LIBRARY_PATH"] = f"{settings.triton / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
    return GpuServer(process, f"127.0.0.1:{grpc}", http, folder / "log")


def measure_servers(
    settings: Settings, servers: int, instances: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return what `servers` servers with `instances` instances each answer together, by the rows of a request."""
    options = {
        "rows": settings.rows,
        "seconds": settings.seconds,
        "clients": max(settings.clients // LOAD_PROCESSES, 1),
    }
    with ExitStack() as stack:
        opened: list[GpuServer] = []
        for _ in range(servers):
            opened.append(start_server(settings, instances, environment))
            stack.callback(opened[-1].stop)
        loads: list[Worker] = []
        for number in range(LOAD_PROCESSES):
            address = opened[number % servers].address
            loads.append(Worker(address, options, WITHOUT_MPS, program=_LOAD))
            stack.callback(loads[-1].kill)
        for server in opened:
            server.wait_until_ready()
        return {
            f"{rows} rows": summarize_results(measure_round(loads, _RESULT_TIMEOUT_S))
            for rows in settings.rows
        }


def measure_arms(settings: Settings) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each arm's name and figures."""
    larger = [count for count in settings.counts if count > 1]
    for count in settings.counts:
        yield f"{count} instances by time", measure_servers(settings, 1, count, WITHOUT_MPS)
    for count in larger:
        yield f"{count} servers by time", measure_servers(settings, count, 1, WITHOUT_MPS)
    with running_daemon(settings.folder / "mps") as daemon:
        for count in settings.counts:
            yield f"{count} instances under MPS", measure_servers(settings, 1, count, daemon.environment)
        for count in larger:
            yield f"{count} servers under MPS", measure_servers(settings, count, 1, daemon.environment)
    for count in larger:
        # The default is that of servers that start afterwards.
        with running_daemon(settings.folder / "slices") as daemon:
            daemon.send_command(f"set_default_active_thread_percentage {100 / count:g}")
            yield f"{count} slices under MPS", measure_servers(settings, count, 1, daemon.environment)


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--triton", type=Path, help="folder with bin, lib and backends")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each arm and number of rows")
    parser.add_argument("--rows", default="64,1024", help="of a request, separated by commas")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--counts", default="1,2,4", help="of instances and servers, separated by commas")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    arms: dict[str, Any] = {}
    document = {"card": name_card(), "arms": arms}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        rows = [int(text) for text in options.rows.split(",")]
        counts = [int(text) for text in options.counts.split(",")]
        settings = Settings(options.triton, options.seconds, rows, options.clients, counts, Path(folder))
        try:
            for name, measured in measure_arms(settings):
                arms[name] = measured
                failed |= count_problems(measured) > 0
                print(f"{name:24} {json.dumps(measured)}", file=sys.stderr, flush=True)
                if options.output is not None:
                    options.output.write_text(json.dumps(document, indent=1) + "\n")
        except WorkerError as error:
            print(error, file=sys.stderr)
            failed = True
    print(json.dumps(document, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
