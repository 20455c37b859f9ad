"""Tables of features that are mapped from a converted file, against the code that read them into memory.

    python bench/feature_tables.py --before COMMIT [--rows 4000000] [--slices 40] [--folder DIR] [--output FILE]

One process has the data plane's code of --before, one today's; both have the same tables, and the arms take turns in slices of a
hundred calls of the engine; they are compared by the processor time of their median call. A request has 64 rows of a user (int64) and an item (string) with eight features, or one user and 200
items. First with tables that fit the processor's caches or nearly, of 200,000 users and 10,000 items; then with `--rows` users,
whose lists of 50 ids and other values are a table of 2 GB.

Of the large table it measures the conversion (seconds, peak of the process's own memory), the start of a process with and without
a converted file, the memory of two processes that have it mapped and of one that has read it, and lookups with a page cache that
is warm, and that has just been emptied. Needs 4 GB of disk in --folder, which must be a disk, and 8 GB of memory.

Prints one JSON document; exits 1 if an answer is wrong, a call takes more than 1.1 times the processor time of the code before, or
a conversion more than 256 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness.figures import round_figures
from harness.revisions import unpack_code

from builders.features import ITEM_KEY, USER_KEY, a_plan, of_item, of_user
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.contract import Bucketize, Cross, FeaturePlan, Hash, Lookup, LookupType
from tidegate_dataplane.features.conversion import ConversionOrder

ROOT = Path(__file__).resolve().parents[1]
ITEMS = 10_000
HISTORY = 50
CALLS = 100
"""Calls of a slice."""
MOST_RATIO, MOST_CONVERSION_MIB = 1.1, 256
SHAPES = {"64 keys x 8 features": 64, "1 user x 200 items": 200}
PLAN = a_plan(
    Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1"),
    Lookup(name="history", field=of_user("history"), type=LookupType.INT64, length=HISTORY),
    Bucketize(name="age_bucket", field=of_user("age"), boundaries=(18, 35, 50)),
    Hash(name="user_hash", field=USER_KEY, buckets=1000),
    Hash(name="item_hash", field=ITEM_KEY, buckets=1000),
    Cross(name="user_x_item", fields=(USER_KEY, ITEM_KEY), buckets=1_000_000),
    Lookup(name="rank", field=of_item("rank"), type=LookupType.INT64),
    Lookup(name="price", field=of_item("price"), type=LookupType.FLOAT32),
)
RATIO = "mapped over memory"
PARQUET = {"profiles": "profiles.parquet", "catalogue": "catalogue.parquet"}

WORKER = """
import json, sys, time
from pathlib import Path
import numpy as np
from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.features.engine import FeatureEngine

def read_memory():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) >> 10
    return {"peak": peak} | {name: kib[name] >> 10 for name in ("Rss", "Anonymous", "Pss_File")}

order = json.loads(sys.stdin.readline())
plan = FeaturePlan.model_validate(order["plan"])
before = time.perf_counter()
engine = FeatureEngine.from_files(plan, {name: Path(path) for name, path in order["paths"].items()})
print(json.dumps({"seconds": time.perf_counter() - before}), flush=True)
random = np.random.default_rng(order["seed"])
for line in sys.stdin:
    task = json.loads(line)
    times, spent, wrong = [], [], 0
    for _ in range(task["calls"]):
        rows = task["rows"]
        users = random.integers(0, order["users"], 64)[:rows] if rows == 64 else np.full(rows, random.integers(0, order["users"]))
        items = random.integers(0, order["items"], rows)
        inputs = {
            "user_id": users.astype(np.int64),
            "item_id": np.array([f"item-{number}".encode() for number in items], dtype=object),
        }
        start, begun = time.perf_counter_ns(), time.thread_time_ns()
        answer = {name: np.ascontiguousarray(values) for name, values in engine.compute_features(inputs).items()}
        times.append(time.perf_counter_ns() - start)
        spent.append(time.thread_time_ns() - begun)
        wrong += int((answer["price"][:, 0] != items / 4).sum() + (answer["age"][:, 0] != users % 90).sum())
        wrong += int((answer["history"][:, 0] != users % 1000).sum())
    print(json.dumps({"times": times, "spent": spent, "wrong": wrong, "memory": read_memory()}), flush=True)
"""


class Worker:
    """A process with an engine, of the code in a folder."""

    def __init__(self, code: Path, paths: dict[str, Path], users: int, seed: int = 1) -> None:
        self.times: dict[str, list[int]] = {shape: [] for shape in SHAPES}
        self.spent: dict[str, list[int]] = {shape: [] for shape in SHAPES}
        self.wrong = 0
        self.memory: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            env={**os.environ, "PYTHONPATH": str(code)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started = time.perf_counter()
        order = {
            "plan": PLAN.model_dump(mode="json"),
            "paths": {name: str(path) for name, path in paths.items()},
            "users": users,
            "items": ITEMS,
            "seed": seed,
        }
        self.load_s = round(self._ask(order)["seconds"], 3)
        self.start_s = round(time.perf_counter() - started, 3)

    def measure(self, shape: str, calls: int = CALLS) -> None:
        """Add a slice of calls to the figures."""
        answer = self._ask({"rows": SHAPES[shape], "calls": calls})
        self.times[shape] += answer["times"]
        self.spent[shape] += answer["spent"]
        self.wrong += answer["wrong"]
        self.memory = answer["memory"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, task: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def write_tables(folder: Path, users: int) -> None:
    """Write the tables, that of the users in portions."""
    random = np.random.default_rng(1)
    schema = pa.schema(
        [("user_id", pa.int64()), ("age", pa.int64()), ("history", pa.list_(pa.int64()))],
    )
    with pq.ParquetWriter(folder / PARQUET["profiles"], schema) as writer:
        order = random.permutation(users)
        for start in range(0, users, 250_000):
            keys = order[start : start + 250_000]
            history = random.integers(0, 1 << 20, (len(keys), HISTORY))
            history[:, 0] = keys % 1000
            offsets = np.arange(len(keys) + 1, dtype=np.int32) * HISTORY
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(history.reshape(-1)))
            writer.write_table(pa.table([pa.array(keys), pa.array(keys % 90), lists], schema=schema))
    numbers = list(range(ITEMS))
    catalogue = {
        "item_id": [f"item-{number}" for number in numbers],
        "rank": numbers,
        "price": [number / 4 for number in numbers],
    }
    pq.write_table(pa.table(catalogue), folder / PARQUET["catalogue"])


def convert_tables(folder: Path, plan: FeaturePlan) -> dict[str, Any]:
    """Convert the tables as an agent does, each in a process; return the figures by table."""
    figures: dict[str, Any] = {}
    for name, file in PARQUET.items():
        parquet = folder / file
        order = ConversionOrder(
            plan=plan,
            table=name,
            parquet=parquet,
            sha256=hash_file(parquet),
            target=parquet.with_suffix(".table"),
        )
        started = time.perf_counter()
        script = (
            "import sys\nfrom pathlib import Path\nfrom tidegate_dataplane.features.convert import convert_file\n"
            "from tidegate_dataplane.features.conversion import ConversionOrder\n"
            "result = convert_file(ConversionOrder.model_validate_json(sys.stdin.read()))\n"
            "assert not result.error, result.error\n"
            "status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())\n"
            "print(int(status['VmHWM'].split()[0]) >> 10)"
        )
        process = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(ROOT / "dataplane")},
            input=order.model_dump_json().encode(),
            stdout=subprocess.PIPE,
            check=True,
        )
        figures[name] = {
            "seconds": round(time.perf_counter() - started, 2),
            "peak_mib": int(process.stdout),
            "parquet_mib": parquet.stat().st_size >> 20,
            "table_mib": order.target.stat().st_size >> 20,
        }
    return figures


def summarize(worker: Worker, shapes: Sequence[str] = tuple(SHAPES)) -> dict[str, Any]:
    """Return the figures of a worker, times in microseconds."""
    figures: dict[str, Any] = {}
    for shape in shapes:
        times = sorted(worker.times[shape])
        figures[shape] = {
            "calls": len(times),
            "processor_p50_us": round(statistics.median(worker.spent[shape]) / 1000, 1),
            "p50_us": round(statistics.median(times) / 1000, 1),
            "p99_us": round(times[int(len(times) * 0.99)] / 1000, 1),
        }
    return {**figures, "start_s": worker.start_s, "load_s": worker.load_s, "memory_mib": worker.memory}


def compare(folder: Path, before: Path, users: int, slices: int) -> tuple[dict[str, Any], int]:
    """Measure both arms in turns over the tables in a folder; return the figures and the number of wrong answers."""
    arms = {
        "memory": Worker(before, {name: folder / file for name, file in PARQUET.items()}, users),
        "mapped": Worker(ROOT / "dataplane", mapped_paths(folder), users),
    }
    for worker in arms.values():
        for shape in SHAPES:
            worker.measure(shape)
            worker.times[shape].clear()
            worker.spent[shape].clear()
    for _ in range(slices):
        for shape in SHAPES:
            for worker in arms.values():
                worker.measure(shape)
    for worker in arms.values():
        worker.close()
    figures: dict[str, Any] = {arm: summarize(worker) for arm, worker in arms.items()}
    figures |= compute_ratios(arms["mapped"].spent, arms["memory"].spent)
    return figures, sum(worker.wrong for worker in arms.values())


def compute_ratios(
    mapped: Mapping[str, Sequence[int]], memory: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """Return the median processor time of mapped tables over that of tables in memory, from the nanoseconds of each shape's calls."""
    return {
        f"{RATIO}, {shape}": statistics.median(mapped[shape]) / statistics.median(memory[shape])
        for shape in SHAPES
    }


def mapped_paths(folder: Path) -> dict[str, Path]:
    """Return the converted file of each table."""
    return {name: (folder / file).with_suffix(".table") for name, file in PARQUET.items()}


def measure_cold(folder: Path, users: int) -> tuple[dict[str, Any], int]:
    """Measure a process that starts with an empty page cache, and then another one beside it."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    first = Worker(ROOT / "dataplane", mapped_paths(folder), users, seed=2)
    shape = next(iter(SHAPES))
    first.measure(shape)
    cold = summarize(first, [shape])
    first.measure(shape, 2000)
    second = Worker(ROOT / "dataplane", mapped_paths(folder), users, seed=2)
    second.measure(shape, 2000)
    first.measure(shape, 1)
    figures = {
        "first calls": cold,
        "memory_mib of two processes": [worker.memory for worker in (first, second)],
    }
    for worker in (first, second):
        worker.close()
    return figures, first.wrong + second.wrong


def find_missed_targets(sizes: Mapping[str, Mapping[str, Any]], wrong: int) -> list[str]:
    """Return what misses its target in the figures of each size of tables, and in the number of wrong answers."""
    missed = [f"{wrong} answers are wrong"] if wrong else []
    for size, figures in sizes.items():
        for shape in SHAPES:
            ratio = figures[f"{RATIO}, {shape}"]
            if ratio > MOST_RATIO:
                missed.append(f"{size}, {shape}: {RATIO} {ratio:g}, not {MOST_RATIO:g}")
        for table, conversion in figures["conversion"].items():
            if conversion["peak_mib"] > MOST_CONVERSION_MIB:
                missed.append(
                    f"{size}: converting {table} took {conversion['peak_mib']} MiB, not {MOST_CONVERSION_MIB}"
                )
    return missed


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", metavar="COMMIT", required=True, help="code that read tables into memory")
    parser.add_argument("--rows", type=int, default=4_000_000, help="users of the large table")
    parser.add_argument("--slices", type=int, default=40, help="of each arm and request")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="tidegate-tables-", dir=options.folder) as name:
        folder = Path(name)
        before = unpack_code(options.before, folder / "code")
        for size, users in (("200,000 users", 200_000), (f"{options.rows:,} users", options.rows)):
            tables = folder / str(users)
            tables.mkdir()
            write_tables(tables, users)
            conversion = convert_tables(tables, PLAN)
            figures, errors = compare(tables, before, users, options.slices)
            document[size] = {"conversion": conversion, **figures}
            wrong += errors
        cold, errors = measure_cold(tables, options.rows)
        wrong += errors
    missed = find_missed_targets(document, wrong)
    document |= {"with an empty page cache": cold, "wrong": wrong, "missed_targets": missed}
    text = json.dumps(round_figures(document, 3), indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
