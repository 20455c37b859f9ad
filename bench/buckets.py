"""P15: what engines compiled for shapes cost and gain, on one Triton with a compiler beside it.

    python bench/buckets.py [--shapes 10000] [--requests 400] [--output FILE]

The model weighs a history of ids by a network, as DIN does. It is loaded four times, as an agent loads it: without an engine
(`plain`), with OpenVINO in 32 bits, in 16, and in 16 with `Auto`. Requests of four numbers of rows make four buckets. Then:

- requests of shapes that have never come, in turn with the same ones to `plain`: the first answers, and their time;
- a shape that has no engine again and again, until its engine answers;
- requests of a bucket in turn with one of `--shapes` shapes that have never come, and in turn with one of a hundred known shapes
  without a bucket: the time of the former must not depend on the latter;
- the compiler and the version start again with nothing but the node's cache.

Prints one JSON document; exits 1 when more or fewer engines were compiled than there are buckets, a first answer takes more
than 1.2 of `plain` in the median, the p99 of a bucket's requests is more than 1.1 with new shapes, anything is compiled after
the restart or fewer engines than buckets come from the cache, an answer in 32 bits differs by more than 1e-5 of the largest
number, or in 16 bits by more than 2e-2, or `Auto` is less than 0.97 as fast as `plain` at any number of rows. The speed-ups of
the others are reported and not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tritonclient.grpc as triton_grpc
from harness.model_server import load_version, running_server
from numpy.typing import NDArray

from builders.desired import a_desired_state
from builders.engine_models import build_history_model, make_history_request
from builders.metrics_page import metric
from builders.waiting import wait_until
from fixtures.triton import RunningTriton
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, is_batched
from tidegate_dataplane.agent.artefacts.onnx_file import read_onnx
from tidegate_dataplane.compiler.exchange import CompileFolder, CompileJob, CompileResult
from tidegate_dataplane.contract import EngineMode, EngineOrder, EnginePrecision
from tidegate_dataplane.graph_passes.proof import Session

ROWS = (1, 16, 64, 128)
LENGTH = 50
NEW_SHAPES = 200
EXPORT_S = 1.2
ORDERS = {
    "plain": None,
    "fp32": EngineOrder(engine=EngineMode.OPENVINO),
    "bf16": EngineOrder(engine=EngineMode.OPENVINO, precision=EnginePrecision.BF16),
    "auto": EngineOrder(engine=EngineMode.AUTO, precision=EnginePrecision.BF16),
}
TOLERANCES = {"plain": 1e-5, "fp32": 1e-5, "bf16": 2e-2, "auto": 2e-2}


@dataclass
class Arm:
    """One copy of the model, with the compiler of its pod."""

    name: str
    server: RunningTriton
    folder: Path
    session: Session
    client: triton_grpc.InferenceServerClient
    errors: list[float] = field(default_factory=list[float])
    largest: float = 0.0
    """The largest number of any answer, of which errors are a share."""

    @property
    def exchange(self) -> Path:
        """Where the runner and the compiler exchange files."""
        return self.folder / "cache" / "compile"

    def load(self, number: int) -> None:
        """Load the model as the agent of a new pod does."""
        staging = self.folder / f"staging{number}"
        path = staging / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        onnx.save(build_history_model(), path)
        onnx_file = read_onnx(path)
        order = a_desired_state(model=self.name, version=1, max_batch_size=4096, engine=ORDERS[self.name])
        facts = ArtefactFacts(
            uri=order.uri,
            version=1,
            format=order.format,
            digest="bench",
            files=(),
            inputs=tuple(tensor.spec for tensor in onnx_file.inputs),
            outputs=tuple(tensor.spec for tensor in onnx_file.outputs),
            batched=is_batched(onnx_file),
        )
        shutil.rmtree(self.server.repository / self.name, ignore_errors=True)
        # Nothing is left of the pod before: a runner looks for engines within a second.
        shutil.rmtree(self.exchange, ignore_errors=True)
        (staging / "cache").symlink_to(self.exchange.parent)
        load_version(self.server, order, facts, staging)
        # The runner before has then told its last misses, which are not those of a new pod.
        time.sleep(EXPORT_S)
        folder = CompileFolder(self.exchange)
        source = self.server.repository / self.name / "1" / "model.onnx"
        folder.write_result("bench", CompileResult())
        folder.write_job(
            CompileJob(model=self.name, version=1, digest="bench", source=source, engine=order.engine)
        )

    @contextlib.contextmanager
    def run_compiler(self) -> Generator[None]:
        """Run the compiler for as long as the block lasts."""
        environment = {
            **os.environ,
            "TIDEGATE_COMPILER_EXCHANGE_DIR": str(self.exchange),
            "TIDEGATE_COMPILER_NODE_CACHE_DIR": str(self.folder / "node"),
            "TIDEGATE_COMPILER_NODE_CACHE_BYTES": str(256 << 20),
            "TIDEGATE_COMPILER_POLL_S": "0.2",
        }
        (self.folder / "node").mkdir(exist_ok=True)
        with (self.folder / "compiler.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidegate_dataplane.compiler"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield
        finally:
            process.kill()
            process.wait(10)

    def count_compiled(self, *, cached: bool) -> int:
        """Return how many engines were compiled here, or taken from the cache."""
        lines = (self.folder / "compiler.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if '"engine_compiled"' in line]
        return sum(bool(event["engine"]) and event["cached"] is cached for event in events)

    def send_request(self, rows: int, length: int, seed: int) -> float:
        """Return the seconds that the server takes to answer, and record the error of the answer."""
        request = make_history_request(rows, length, seed)
        seconds, scores = self._measure_request(request)
        expected = self.session.run_request(request)
        assert expected is not None
        self.largest = max(self.largest, float(np.abs(expected[0]).max()))
        self.errors.append(float(np.abs(scores - expected[0]).max()) / self.largest)
        return seconds

    def _measure_request(self, request: Mapping[str, NDArray[Any]]) -> tuple[float, NDArray[np.float32]]:
        tensors: list[triton_grpc.InferInput] = []
        for name, array in request.items():
            # Triton wants [rows, 1] for what the model has as [rows].
            shaped = array.reshape(-1, 1) if array.ndim == 1 else array
            tensor = triton_grpc.InferInput(name, list(shaped.shape), "INT64")
            tensor.set_data_from_numpy(shaped)
            tensors.append(tensor)
        started = time.perf_counter()
        result: Any = self.client.infer(self.name, tensors)
        return time.perf_counter() - started, result.as_numpy("score").reshape(-1)

    def read_ways(self) -> dict[str, float]:
        """Return the runner's own counts, which it exports once a second."""
        page = self.server.read_metrics_page()
        name = "tidegate_model_bucket_requests_total"
        return {
            way: metric(page, name, model=self.name, version="1", way=way)
            for way in ("hit", "miss", "original")
        }

    def await_engine(self, rows: int, length: int) -> int:
        """Send requests of a shape until an engine answers them; return how many it took."""
        # The runner exports its counts with the first answer after a second.
        time.sleep(EXPORT_S)
        self.send_request(rows, length, 0)
        before, sent = self.read_ways()["hit"], 1

        def is_hit() -> bool:
            nonlocal sent
            for _ in range(20):
                self.send_request(rows, length, sent)
                sent += 1
            return self.read_ways()["hit"] > before

        wait_until(
            is_hit, what=f"an engine of {self.name} answers {rows} rows of length {length}", timeout_s=120
        )
        return sent

    def await_decision(self, rows: int, length: int) -> None:
        """Send requests of a shape until the compiler has decided about its engine, and the runner has measured it."""
        engines = CompileFolder(self.exchange).find_engines("bench", ORDERS["auto"])

        def is_decided() -> bool:
            for number in range(20):
                self.send_request(rows, length, number)
            shapes = {bucket.shape[0][1] for bucket in engines.read_buckets() if bucket.file or bucket.reason}
            return (rows, length) in shapes

        wait_until(is_decided, what=f"{rows} rows of length {length} are decided about", timeout_s=120)
        time.sleep(2 * EXPORT_S)
        for number in range(100):
            self.send_request(rows, length, number)


def measure_buckets(arms: Mapping[str, Arm], shapes: int, requests: int) -> dict[str, Any]:
    """Return the figures of all steps."""
    plain, engines = arms["plain"], [arms["fp32"], arms["bf16"]]
    with contextlib.ExitStack() as compilers:
        for arm in (*engines, arms["auto"]):
            compilers.enter_context(arm.run_compiler())
        for rows in ROWS:
            for arm in engines:
                arm.await_engine(rows, LENGTH)
            arms["auto"].await_decision(rows, LENGTH)
        figures: dict[str, Any] = {
            "buckets": len(ROWS),
            "compiled": {arm.name: arm.count_compiled(cached=False) for arm in engines},
            "speedups": measure_speedups(arms, requests),
            "auto_uses": arms["auto"].count_compiled(cached=False),
        }
        errors = {name: max(arm.errors) for name, arm in arms.items()}
    # Without a compiler beside it, so that only the runner's own work counts.
    fp32 = arms["fp32"]
    figures["first_answers"] = measure_first_answers(plain, fp32)
    with fp32.run_compiler():
        figures["later"] = {"requests_until_engine": fp32.await_engine(23, 61)}
    figures["in_bucket"] = measure_in_bucket(fp32, shapes)
    before = fp32.count_compiled(cached=False)
    fp32.load(1)
    with fp32.run_compiler():
        for rows in ROWS:
            fp32.await_engine(rows, LENGTH)
    figures["restart"] = {
        "compiled": fp32.count_compiled(cached=False) - before,
        "from_cache": fp32.count_compiled(cached=True),
    }
    errors = {name: max(errors[name], *arm.errors) for name, arm in arms.items()}
    return {**figures, "max_error": {name: float(f"{error:.2e}") for name, error in errors.items()}}


def measure_speedups(arms: Mapping[str, Arm], requests: int) -> dict[str, dict[str, float]]:
    """Return the time of `plain` over that of each engine, by rows: medians through Triton, the arms in turn."""
    ratios: dict[str, dict[str, float]] = {name: {} for name in arms if name != "plain"}
    for rows in ROWS:
        times: dict[str, list[float]] = {name: [] for name in arms}
        names = list(arms)
        for number in range(requests):
            # Each comes after each other alike: instructions of 16 bits change the processor's clock for what follows.
            order = names[number % len(names) :] + names[: number % len(names)]
            for name in order if number // len(names) % 2 else reversed(order):
                times[name].append(arms[name].send_request(rows, LENGTH, number))
        for name, by_rows in ratios.items():
            by_rows[str(rows)] = round(statistics.median(times["plain"]) / statistics.median(times[name]), 3)
    return ratios


def measure_first_answers(plain: Arm, engine: Arm) -> dict[str, float]:
    """Return the time of the first answer to shapes without a bucket, over that of a model without an engine."""
    ratios: list[float] = []
    for number in range(NEW_SHAPES):
        # Longer than any bucket, so that none covers it.
        shape = 100 + number % 20, LENGTH + 1 + number // 20
        pair = [
            arm.send_request(*shape, number) for arm in ((plain, engine) if number % 2 else (engine, plain))
        ]
        ratios.append(pair[1] / pair[0] if number % 2 else pair[0] / pair[1])
    return {"shapes": NEW_SHAPES, "time_ratio": round(statistics.median(ratios), 3)}


def measure_in_bucket(arm: Arm, shapes: int) -> dict[str, float]:
    """Return the p99 of a bucket's requests, in turn with new shapes and with one shape that is known."""
    times: dict[str, list[float]] = {"known": [], "new": []}
    for number in range(shapes):
        # As many elements in the mean.
        for name, length in (("known", 100), ("new", LENGTH + 1 + number // 100)):
            arm.send_request(1 + number % 100, length, number)
            times[name].append(arm.send_request(16, LENGTH, number))
    p99_ms = {name: sorted(taken)[int(len(taken) * 0.99)] * 1e3 for name, taken in times.items()}
    return {
        "new_shapes": shapes,
        "p99_ms": round(p99_ms["new"], 3),
        "p99_ms_without": round(p99_ms["known"], 3),
        "p99_ratio": round(p99_ms["new"] / p99_ms["known"], 3),
    }


def list_problems(figures: Mapping[str, Any]) -> Sequence[str]:
    """Return what misses its target."""
    checks = {
        "engines compiled": all(count == figures["buckets"] for count in figures["compiled"].values()),
        "time of first answers": figures["first_answers"]["time_ratio"] <= 1.2,
        "p99 in a bucket": figures["in_bucket"]["p99_ratio"] <= 1.1,
        "speed of auto": min(figures["speedups"]["auto"].values()) >= 0.97,
        "compiled after a restart": figures["restart"] == {"compiled": 0, "from_cache": figures["buckets"]},
        **{f"answers of {name}": figures["max_error"][name] <= bound for name, bound in TOLERANCES.items()},
    }
    return [name for name, holds in checks.items() if not holds]


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=int, default=10_000, help="shapes that come once")
    parser.add_argument("--requests", type=int, default=400, help="requests for each speed-up")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with running_server() as (server, folder):
        session = Session(build_history_model())
        arms: dict[str, Arm] = {}
        for name in ORDERS:
            home = folder / name
            (home / "cache").mkdir(parents=True)
            arms[name] = Arm(name, server, home, session, triton_grpc.InferenceServerClient(server.grpc))
            arms[name].load(0)
        figures = measure_buckets(arms, options.shapes, options.requests)
    figures["missed"] = list_problems(figures)
    text = json.dumps(figures, indent=2)
    if options.output:
        options.output.write_text(text)
    print(text)
    return 1 if figures["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
