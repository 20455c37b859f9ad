"""What a FeatureCompute's server answers: requests alone, joined as they arrive, and by two processes.

    python bench/feature_speed.py [--seconds 6] [--users 200000] [--keys 64] [--before COMMIT] [--output FILE]

One Triton has the same plan once for each arm; the arms take turns in slices of a second, under closed loops of 1, 4 and 32
clients. A request has `--keys` rows of a user (int64) and an item (string), and gets eight features: lookups of a number, a list
and a price, a bucket, hashes and a cross. Prices are compared with the table's. With --before, two more arms have the data
plane of that commit (`git archive`).

Prints one JSON document; exits 1 if an answer is wrong or missing, or if joined requests are fewer than three times those of one
at a time under 32 clients, with --before those of the code before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from harness.model_server import Request, load_plan, measure_closed_loops, running_server
from harness.revisions import unpack_code
from tritonclient.utils import serialize_byte_tensor

from builders.desired import a_desired_state
from builders.features import ITEM_KEY, USER_KEY, a_plan, of_item, of_user, write_table
from tidegate_dataplane.contract import (
    BatchingMode,
    Bucketize,
    Cross,
    Hash,
    Lookup,
    LookupType,
    ModelFormat,
    OwnerKind,
)

_messages: Any = import_module("tritonclient.grpc.service_pb2")
ITEMS = 10_000
CLIENTS = (1, 4, 32)
LEAST_RATIO = 3.0
"""Joined over one at a time, under the most clients."""
ARMS: dict[str, dict[str, Any]] = {
    "alone": {"batching": BatchingMode.OFF},
    "joined": {"batching": BatchingMode.FIXED},
    "joined, 2 processes": {"batching": BatchingMode.FIXED, "instances": 2},
}
BEFORE = ("alone", "joined")
"""The arms of which there is another with the code of --before."""
PLAN = a_plan(
    Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1"),
    Lookup(name="history", field=of_user("history"), type=LookupType.INT64, length=50),
    Bucketize(name="age_bucket", field=of_user("age"), boundaries=(18, 35, 50)),
    Hash(name="user_hash", field=USER_KEY, buckets=1000),
    Hash(name="item_hash", field=ITEM_KEY, buckets=1000),
    Cross(name="user_x_item", fields=(USER_KEY, ITEM_KEY), buckets=1_000_000),
    Lookup(name="rank", field=of_item("rank"), type=LookupType.INT64),
    # The last output, whose bytes end the answer.
    Lookup(name="price", field=of_item("price"), type=LookupType.FLOAT32),
)


def write_tables(folder: Path, users: int) -> None:
    """Write the tables of the plan."""
    random = np.random.default_rng(1)
    histories = random.integers(0, ITEMS, (users, 50))
    write_table(
        folder / "profiles.parquet",
        user_id=list(range(users)),
        age=random.integers(0, 90, users).tolist(),
        history=histories.tolist(),
    )
    write_table(
        folder / "catalogue.parquet",
        item_id=[f"item-{number}" for number in range(ITEMS)],
        rank=list(range(ITEMS)),
        price=[number / 4 for number in range(ITEMS)],
    )


def make_requests(model: str, keys: int, users: int) -> list[Request]:
    """Return 32 requests, with the price of each item."""
    random = np.random.default_rng(2)
    requests: list[Request] = []
    for _ in range(32):
        items = random.integers(0, ITEMS, keys)
        texts = np.array([f"item-{number}".encode() for number in items], dtype=object)
        contents = {
            "user_id": ("INT64", random.integers(0, users, keys).astype(np.int64).tobytes()),
            "item_id": ("BYTES", serialize_byte_tensor(texts).item()),
        }
        message = _messages.ModelInferRequest(model_name=model)
        for name, (datatype, content) in contents.items():
            message.inputs.add(name=name, datatype=datatype, shape=[keys, 1])
            message.raw_input_contents.append(content)
        requests.append(Request(message.SerializeToString(), (items / 4).astype(np.float32)))
    return requests


async def measure_arms(address: str, arms: dict[str, Sequence[Request]], seconds: float) -> dict[str, Any]:
    """Return the figures of each load, by arm."""
    async with grpc.aio.insecure_channel(address) as channel:
        return await measure_closed_loops(channel, arms, CLIENTS, seconds)


def find_missed_targets(loads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what misses its target in the figures of each load, by arm."""
    missed = [
        f"{load}, {arm}: {figures['wrong']} wrong, {figures['failed']} failed"
        for load, arms in loads.items()
        for arm, figures in arms.items()
        if figures["wrong"] or figures["failed"]
    ]
    load = f"{CLIENTS[-1]} clients"
    base = "alone, before" if "alone, before" in loads[load] else "alone"
    ratio = loads[load]["joined"]["per_second"] / loads[load][base]["per_second"]
    if ratio < LEAST_RATIO:
        missed.append(f"{load}: joined over {base} {ratio:.2f}, not {LEAST_RATIO:g}")
    return missed


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each arm under each load")
    parser.add_argument("--users", type=int, default=200_000, help="rows of the users' table")
    parser.add_argument("--keys", type=int, default=64, help="rows of a request")
    parser.add_argument("--before", metavar="COMMIT", help="compare with the code of this commit")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with running_server() as (server, folder):
        tables = folder / "tables"
        tables.mkdir()
        write_tables(tables, options.users)
        arms: dict[str, Sequence[Request]] = {}
        sources: dict[str, Path | None] = dict.fromkeys(ARMS)
        if options.before:
            source = unpack_code(options.before, folder / "code")
            sources |= {f"{arm}, before": source for arm in BEFORE}
        for number, (arm, source) in enumerate(sources.items()):
            order = a_desired_state(
                kind=OwnerKind.FEATURE_COMPUTE,
                model=f"features-{number}",
                format=ModelFormat.FEATURES,
                uri="",
                plan=PLAN,
                max_batch_size=4096,
                **ARMS[arm.removesuffix(", before")],
            )
            load_plan(server, order, folder / order.model, tables, source)
            arms[arm] = make_requests(order.model, options.keys, options.users)
        loads = asyncio.run(measure_arms(server.grpc, arms, options.seconds))
    for load, figures in loads.items():
        cells = (
            f"{arm}: {each['per_second']:.0f}/s p99 {each['p99_ms']:.1f} ms" for arm, each in figures.items()
        )
        print(f"{load:10} {'   '.join(cells)}", file=sys.stderr)
    missed = find_missed_targets(loads)
    text = json.dumps({**loads, "missed_targets": missed}, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
