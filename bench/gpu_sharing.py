"""How processes share one GPU, with MPS and without: overlap, caps, memory limits, and streams against processes.

    python bench/gpu_sharing.py [--seconds 4] [--rows 64,1024] [--sections overlap,caps,memory,streams] [--output FILE]

Needs a GPU that nothing else uses, NVIDIA's MPS programs, PyTorch and CuPy. It starts an MPS daemon of its own and changes no
setting of the GPU. The sections:

overlap  share of the time of one process' kernel during which that of another process runs, by the clock of the GPU
caps     p99 of a model beside a process that uses all of the GPU that it may: without MPS, with, capped at 30 %, of lower priority
memory   a process over its memory limit gets an error, and the model beside it none
streams  answers per second of k streams in a process, and of k processes with MPS and without, from which `instances` is chosen

Prints one JSON document that names the card, and tables to stderr; exits 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu.mps_daemon import running_daemon
from gpu.workers import WITHOUT_MPS, WorkerError, ready_worker, run_rounds

COUNTS = (1, 2, 4, 8)
CAP_PERCENT = 30
LIMIT_GIB = 4
_RESULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What all sections share."""

    seconds: float
    rows: Sequence[int]
    folder: Path


def measure_overlap(settings: Settings) -> dict[str, Any]:
    """Return the share of overlap and the time that two processes take, with MPS and without."""
    options = {"steps": 20_000, "blocks": 16}

    def measure_pair(environment: Mapping[str, str]) -> dict[str, Any]:
        results = run_rounds("steps", options, [environment] * 2, 1, _RESULT_TIMEOUT_S)[0]
        first, second = (find_running_spans(result["times_ns"]) for result in results)
        times = [time for result in results for time in result["times_ns"]]
        return {
            "overlap": round(compute_overlap(first, second), 3),
            "milliseconds": round((max(times) - min(times)) / 1e6, 1),
        }

    without = measure_pair(WITHOUT_MPS)
    with running_daemon(settings.folder / "overlap") as daemon:
        return {"without_mps": without, "with_mps": measure_pair(daemon.environment)}


def find_running_spans(times: Sequence[int]) -> list[tuple[int, int]]:
    """Return the steps between times during which the kernel ran: those that took less than three times the median."""
    steps = list(pairwise(times))
    limit = 3 * statistics.median(ended - began for began, ended in steps)
    return [(began, ended) for began, ended in steps if ended - began < limit]


def compute_overlap(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> float:
    """Return the share of the first spans' time during which a second span lasts, while both processes had work.

    Spans are in order and do not overlap within a process.
    """
    start, end = max(first[0][0], second[0][0]), min(first[-1][1], second[-1][1])
    total = sum(max(0, min(ended, end) - max(began, start)) for began, ended in first)
    shared = position = 0
    for began, ended in first:
        while position < len(second) and second[position][1] <= began:
            position += 1
        following = position
        while following < len(second) and second[following][0] < ended:
            shared += min(ended, second[following][1]) - max(began, second[following][0])
            following += 1
    return shared / total if total else 0.0


def measure_caps(settings: Settings) -> dict[str, Any]:
    """Return what a model answers beside a busy process, by how the two share the GPU."""

    def measure_model(model: Mapping[str, str], neighbour: Mapping[str, str] | None) -> dict[str, Any]:
        options = {"rows": settings.rows[:1], "seconds": settings.seconds}
        if neighbour is None:
            return summarize_results(run_rounds("serve", options, [model], 1, _RESULT_TIMEOUT_S)[0])
        with ready_worker("hog", {}, neighbour) as (hog, facts):
            hog.start_work()
            measured = summarize_results(run_rounds("serve", options, [model], 1, _RESULT_TIMEOUT_S)[0])
            hog.end_input()
            used = hog.read_line(_RESULT_TIMEOUT_S)
            return {**measured, "neighbour": {**used, "multiprocessors": facts["multiprocessors"]}}

    measured = {
        "alone, without MPS": measure_model(WITHOUT_MPS, None),
        "neighbour, without MPS": measure_model(WITHOUT_MPS, WITHOUT_MPS),
    }
    with running_daemon(settings.folder / "caps") as daemon:
        shared = daemon.environment
        capped = {**shared, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(CAP_PERCENT)}
        remaining = {**shared, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 - CAP_PERCENT)}
        yielding = {**shared, "CUDA_MPS_CLIENT_PRIORITY": "1"}
        measured |= {
            "alone": measure_model(shared, None),
            "neighbour": measure_model(shared, shared),
            f"neighbour capped at {CAP_PERCENT} %": measure_model(shared, capped),
            f"neighbour at {CAP_PERCENT} %, model at {100 - CAP_PERCENT} %": measure_model(remaining, capped),
            "neighbour of priority 1": measure_model(shared, yielding),
            "neighbour capped, of priority 1": measure_model(shared, {**capped, **yielding}),
        }
    return measured


def measure_memory(settings: Settings) -> dict[str, Any]:
    """Return where a limited process gets an error, and what the model beside it notices."""
    limit = f"{LIMIT_GIB}G"
    limits: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
        "by environment": ((), {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}"}),
        "by daemon": ((f"set_default_device_pinned_mem_limit 0 {limit}",), {}),
    }
    model_options = {"rows": settings.rows[:1], "seconds": settings.seconds}
    greedy_options = {"limit_mib": 3 * LIMIT_GIB * 1024}
    measured = {}
    for name, (commands, variables) in limits.items():
        with running_daemon(settings.folder / "memory") as daemon, ExitStack() as stack:
            for command in commands:
                daemon.send_command(command)
            shared = daemon.environment
            model, _ = stack.enter_context(ready_worker("serve", model_options, shared))
            greedy, facts = stack.enter_context(
                ready_worker("memory", greedy_options, {**shared, **variables})
            )
            model.start_work()
            greedy.start_work()
            refused = greedy.read_line(_RESULT_TIMEOUT_S)
            answered = summarize_results([model.read_line(_RESULT_TIMEOUT_S)])
            measured[name] = {**refused, **facts, "model": answered}
    return measured


def measure_streams(settings: Settings) -> dict[str, Any]:
    """Return what k streams in a process, and k processes with MPS and without, answer, by the rows of a request."""

    def measure_arm(processes: int, environment: Mapping[str, str], streams: int = 1) -> dict[str, Any]:
        options = {"rows": settings.rows, "seconds": settings.seconds, "streams": streams}
        rounds = run_rounds(
            "serve", options, [environment] * processes, len(settings.rows), _RESULT_TIMEOUT_S
        )
        return {
            f"{rows} rows": summarize_results(results)
            for rows, results in zip(settings.rows, rounds, strict=True)
        }

    arms = {f"{count} streams": measure_arm(1, WITHOUT_MPS, count) for count in COUNTS}
    arms |= {f"{count} processes by time": measure_arm(count, WITHOUT_MPS) for count in COUNTS[1:]}
    with running_daemon(settings.folder / "streams") as daemon:
        for count in COUNTS:
            arms[f"{count} processes under MPS"] = measure_arm(count, daemon.environment)
    for count in COUNTS[1:]:
        # The default is that of servers that start afterwards.
        with running_daemon(settings.folder / "slices") as daemon:
            daemon.send_command(f"set_default_active_thread_percentage {100 / count:g}")
            arms[f"{count} slices under MPS"] = measure_arm(count, daemon.environment)
    return arms


def summarize_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return answers per second of all workers, and the quantiles of their latencies in ms."""
    latencies = sorted(value for result in results for value in result["latencies_ms"])
    seconds = max(result["seconds"] for result in results)

    def find_quantile(share: float) -> float | None:
        return latencies[min(int(share * len(latencies)), len(latencies) - 1)] if latencies else None

    return {
        "per_second": round(len(latencies) / seconds, 1),
        "p50_ms": find_quantile(0.5),
        "p99_ms": find_quantile(0.99),
        "wrong": sum(result["wrong"] for result in results),
        "errors": [error for result in results for error in result["errors"]],
    }


def name_card() -> str:
    """Return the name of the GPU and the driver's version."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def count_problems(measured: Any) -> int:
    """Return the number of wrong answers and of errors of models anywhere in a document."""
    if not isinstance(measured, Mapping):
        return 0
    errors = measured.get("errors", ())
    return int(measured.get("wrong", 0)) + len(errors) + sum(map(count_problems, measured.values()))


SECTIONS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "overlap": measure_overlap,
    "caps": measure_caps,
    "memory": measure_memory,
    "streams": measure_streams,
}


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="of each arm")
    parser.add_argument("--rows", default="64,1024", help="of a request, separated by commas")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="separated by commas")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {"card": name_card()}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(options.seconds, [int(text) for text in options.rows.split(",")], Path(folder))
        for name in options.sections.split(","):
            try:
                document[name] = SECTIONS[name](settings)
            except (WorkerError, subprocess.SubprocessError) as error:
                document[name] = {"failed": str(error)}
            print(f"{name}: {json.dumps(document[name])}", file=sys.stderr, flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    return (
        1
        if count_problems(document) or any("failed" in document[name] for name in document if name != "card")
        else 0
    )


if __name__ == "__main__":
    sys.exit(main())
