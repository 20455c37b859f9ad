"""P13: what the modes of spec.batching answer, on one Triton, with closed and open loops of requests of 1 to 64 rows.

    python bench/batching.py [--seconds 6] [--models columns,dense,history] [--output FILE]

Models: `columns`, 60 embedding columns (many small operations); `dense`, three layers of 512 (computation); `history`,
attention over a history, whose length differs between requests. Arms: Disabled; Fixed without a delay, with 0.5 ms and with
2 ms; Adaptive. All arms of a model are loaded in one server and take turns in slices of a second. Closed loops have 1, 4, 32
and 128 clients; open loops have Poisson arrivals at 0.3, 0.8 and 1.2 of what Disabled answers to 32 clients, and at most 256 requests
under way. Answers are compared with those that ONNX Runtime gives to each request alone.

Prints one JSON document; exits 1 when Adaptive answers less than 0.95 of the better of Disabled and the best Fixed under any
load, less than 1.3 of Disabled at 128 clients, or when an answer is wrong or missing. Percentiles in open loops are reported and
not judged: on two cores that the load shares, they differ by a factor between runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
from harness.model_server import (
    MODELS,
    SLICE_S,
    Request,
    load_arm,
    measure_closed_loops,
    measure_load,
    running_server,
    unload_models,
)

from builders.desired import a_desired_state
from tidegate_dataplane.contract import BatchingMode

CLIENTS = (1, 4, 32, 128)
LOADS = (0.3, 0.8, 1.2)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "Disabled": {"batching": BatchingMode.OFF},
    "Fixed": {"batching": BatchingMode.FIXED},
    "Fixed 0.5ms": {"batching": BatchingMode.FIXED, "max_queue_delay_us": 500},
    "Fixed 2ms": {"batching": BatchingMode.FIXED, "max_queue_delay_us": 2000},
    "Adaptive": {"batching": BatchingMode.ADAPTIVE},
}
FIXED = tuple(name for name in ARMS if name.startswith("Fixed"))


async def measure_model(
    address: str, arms: Mapping[str, Sequence[Request]], seconds: float
) -> dict[str, Any]:
    """Return the figures of each load, by arm."""
    async with grpc.aio.insecure_channel(address) as channel:
        figures = await measure_closed_loops(channel, arms, CLIENTS, seconds)
        capacity = figures["32 clients"]["Disabled"]["per_second"]
        for share in LOADS:
            name = f"open {share}"
            figures[name] = await measure_load(
                name,
                channel,
                arms,
                seconds,
                lambda load, share=share: load.run_open_loop(share * capacity, SLICE_S),
            )
    return figures


def judge_model(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the ratios that the targets are about."""
    best = {
        name: max(arms[arm]["per_second"] for arm in ("Disabled", *FIXED)) for name, arms in figures.items()
    }
    largest = figures[f"{CLIENTS[-1]} clients"]
    opened = {name: arms for name, arms in figures.items() if "open" in name}
    return {
        "over_better": {
            name: round(arms["Adaptive"]["per_second"] / best[name], 3) for name, arms in figures.items()
        },
        "over_disabled_at_128": round(
            largest["Adaptive"]["per_second"] / largest["Disabled"]["per_second"], 3
        ),
        "p99_over_lowest": {
            name: round(arms["Adaptive"]["p99_ms"] / min(arm["p99_ms"] for arm in arms.values()), 3)
            for name, arms in opened.items()
        },
        "wrong_or_failed": sum(
            arm["wrong"] + arm["failed"] for arms in figures.values() for arm in arms.values()
        ),
    }


def is_met(judged: Mapping[str, Any]) -> bool:
    """Return whether a model meets the targets."""
    return (
        min(judged["over_better"].values()) >= 0.95
        and judged["over_disabled_at_128"] >= 1.3
        and judged["wrong_or_failed"] == 0
    )


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each arm under each load")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    with running_server() as (server, folder):
        for name in options.models.split(","):
            arms: dict[str, Sequence[Request]] = {}
            for number, (arm, batching) in enumerate(ARMS.items()):
                served = f"{name}-{number}"
                order = a_desired_state(model=served, uri=f"file:///{served}", **batching)
                staging = folder / served
                arms[arm] = load_arm(server, order, MODELS[name], staging)
                shutil.rmtree(staging)
            figures = asyncio.run(measure_model(server.grpc, arms, options.seconds))
            document[name] = {"ratios": judge_model(figures), "figures": figures}
            unload_models(server, (f"{name}-{number}" for number in range(len(ARMS))))
    text = json.dumps(document, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return 0 if all(is_met(model["ratios"]) for model in document.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
