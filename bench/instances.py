"""What processes and threads of a model answer, on one Triton: the table from which `spec.instances` is chosen.

    python bench/instances.py [--cpus 2] [--seconds 6] [--models columns,dense,history] [--factor 1] [--output FILE]

Arms: each division of the processors into processes (`instances`) and threads of each. Models are those of bench/batching.py,
requests have 1 to 64 rows, or `--factor` times as many, and batching is Disabled; all arms of a model are loaded in one server and take turns in slices of a second, under
closed loops of 1, 4 and 32 clients. Memory is the private memory of all processes of the model after load. The load takes
processors too: on a machine with no more of them than `--cpus`, the gain of more processes is underestimated.

Prints one JSON document, and the table to stderr; exits 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
from harness.model_server import (
    MODELS,
    Request,
    load_arm,
    measure_closed_loops,
    running_server,
    unload_models,
)

from builders.desired import a_desired_state
from builders.metrics_page import metric

CLIENTS = (1, 4, 32)


def list_arms(cpus: int) -> dict[str, tuple[int, int]]:
    """Return processes and threads of each, from one process with all threads to one thread in each process."""
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cpus]
    arms = {f"{count} x {cpus // count}": (count, cpus // count) for count in counts}
    return {"1 x 1": (1, 1), **arms}


async def measure_model(
    address: str, arms: Mapping[str, Sequence[Request]], seconds: float
) -> dict[str, Any]:
    """Return the figures of each load, by arm."""
    async with grpc.aio.insecure_channel(address) as channel:
        return await measure_closed_loops(channel, arms, CLIENTS, seconds)


def print_table(document: Mapping[str, Any]) -> None:
    """Print requests per second and the p99 of each arm."""
    for model, measured in document.items():
        for load, arms in measured["loads"].items():
            cells = (
                f"{arm}: {each['per_second']:.0f}/s p99 {each['p99_ms']:.1f} ms" for arm, each in arms.items()
            )
            print(f"{model:8} {load:10} {'   '.join(cells)}", file=sys.stderr)
        print(f"{model:8} memory     {measured['memory_mib']}", file=sys.stderr)


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpus", type=int, default=os.cpu_count(), help="processors to divide")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each arm under each load")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--factor", type=int, default=1, help="of the rows of requests")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    with running_server() as (server, folder):
        for name in options.models.split(","):
            arms: dict[str, Sequence[Request]] = {}
            memory: dict[str, int] = {}
            for number, (arm, (instances, threads)) in enumerate(list_arms(options.cpus).items()):
                served = f"{name}-{number}"
                order = a_desired_state(
                    model=served,
                    uri=f"file:///{served}",
                    instances=instances,
                    max_batch_size=64 * options.factor,
                )
                staging = folder / served
                arms[arm] = load_arm(
                    server, order, MODELS[name], staging, threads=threads, factor=options.factor
                )
                shutil.rmtree(staging)
                page = server.read_metrics_page()
                memory[arm] = round(metric(page, "tidegate_model_memory_bytes", model=served) / 2**20)
            loads = asyncio.run(measure_model(server.grpc, arms, options.seconds))
            document[name] = {"loads": loads, "memory_mib": memory}
            unload_models(server, (f"{name}-{number}" for number in range(len(arms))))
    print_table(document)
    text = json.dumps(document, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    measured = (
        arm for model in document.values() for arms in model["loads"].values() for arm in arms.values()
    )
    return int(any(arm["wrong"] or arm["failed"] for arm in measured))


if __name__ == "__main__":
    sys.exit(main())
