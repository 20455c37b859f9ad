"""What the sample log costs a request: shares of 0, 0.1 and 1 in turn, on one Triton, with a real NATS server.

    python bench/sample_log.py [--rounds 6] [--requests 500] [--features 256]

One client asks one request after the other, so a figure is the request's own and not that of a queue.
Prints one JSON document; exits 1 when a request failed, or a sample is neither in the stream nor counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
import onnx
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from builders.metrics_page import metric
from builders.runner_agent import RunnerAgent
from builders.waiting import wait_until
from fixtures.agent import ModelPod
from fixtures.nats import SUBJECT, RunningNats, a_nats
from fixtures.triton import a_triton, staged
from tidegate_dataplane.contract import AgentPhase

SHARES = (0.0, 0.1, 1.0)
ROWS = 16


def publish_model(folder: Path, features: int) -> None:
    """Publish a model of one layer: `features` numbers in, one score out."""
    weights = numpy_helper.from_array(np.full((features, 1), 0.01, dtype=np.float32), "weights")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["sum"]),
            helper.make_node("Sigmoid", ["sum"], ["score"]),
        ],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", features])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["rows", 1])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")


class SampleLogBench:
    """One pod and one client."""

    def __init__(self, pod: ModelPod, nats: RunningNats, features: int) -> None:
        self._pod = pod
        self._nats = nats
        self._generation = 0
        self._sent = 0
        self._tensor = triton.InferInput("x", [ROWS, features], "FP32")
        rows: NDArray[np.float32] = np.random.default_rng(7).random((ROWS, features), dtype=np.float32)
        self._tensor.set_data_from_numpy(rows)

    def order_share(self, share: float) -> None:
        """Order the share, and wait until the pod applies it."""
        self._generation += 1
        samples = {"share": share, "url": self._nats.url, "subject": SUBJECT} if share else None
        self._pod.put(self._pod.order(1, generation=self._generation, samples=samples))
        self._pod.wait_for(
            "it serves", lambda report: report.phase is AgentPhase.READY and report.serving == 1
        )

    def measure_arm(self, client: Any, share: float, requests: int) -> list[float]:
        """Return the seconds of each request."""
        self.order_share(share)
        seconds: list[float] = []
        for _ in range(requests):
            self._sent += 1
            started = time.perf_counter()
            client.infer("ctr", [self._tensor], request_id=f"request-{self._sent}")
            seconds.append(time.perf_counter() - started)
        wait_until(lambda: self.read_counter("_held") == 0, what="all is written", timeout_s=60)
        return seconds

    def read_counter(self, name: str) -> int:
        """Return a counter of the agent's metrics page."""
        return int(metric(self._pod.metrics(), f"tidegate_agent_samples{name}"))


def measure_hand_over_us(folder: Path, features: int, share: float) -> float:
    """Return the microseconds that a request itself spends on the log.

    The best of many, and so without the time of other processes.
    """
    with RunnerAgent(folder, share=share) as agent, agent.sampler() as sampler:
        inputs = {"x": np.ones((ROWS, features), dtype=np.float32)}
        outputs = {"score": np.ones((ROWS, 1), dtype=np.float32)}
        best = float("inf")
        for number in range(300):  # these fit into the buffer
            started = time.perf_counter()
            if sampler.is_active:
                sampler.offer_sample(f"request-{number}", inputs, outputs)
            best = min(best, time.perf_counter() - started)
        return round(best * 1e6, 2)


def quantile_ms(seconds: list[float], share: float) -> float:
    """Return a quantile in milliseconds."""
    return round(float(np.quantile(seconds, share)) * 1000, 3)


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--features", type=int, default=256)
    options = parser.parse_args()
    arms: dict[float, list[list[float]]] = {share: [] for share in SHARES}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = staged(folder)
        with a_triton(files, folder) as server, a_nats(folder / "nats") as nats:
            nats.make_stream()
            pod = ModelPod(folder, server)
            pod.settings = {"TIDEGATE_AGENT_ALLOW_LOOPBACK": "true"}
            publish_model(pod.artefact, options.features)
            try:
                pod.start_agent()
                server.start()
                bench = SampleLogBench(pod, nats, options.features)
                with triton.InferenceServerClient(server.grpc) as client:
                    bench.order_share(0.0)
                    bench.measure_arm(client, 1.0, 200)  # warm
                    for number in range(options.rounds):
                        turn = number % len(SHARES)
                        for share in (*SHARES[turn:], *SHARES[:turn]):
                            arms[share].append(bench.measure_arm(client, share, options.requests))
                figures: dict[str, Any] = {
                    "sampled": bench.read_counter("_total"),
                    "written": bench.read_counter("_written_total"),
                    "dropped": bench.read_counter("_dropped_total"),
                    "in_stream": nats.count(),
                }
            finally:
                pod.kill_agent()
        costs = {
            f"{share:g}": measure_hand_over_us(folder, options.features, share) for share in (0.0, 1e-9, 1.0)
        }
    figures["hand_over_us_of_share"] = costs
    record_bytes = ROWS * (options.features + 1) * 4
    for share, rounds in arms.items():
        p50, p99 = ([quantile_ms(seconds, q) for seconds in rounds] for q in (0.5, 0.99))
        figures[f"share_{share:g}"] = {
            "p50_ms": statistics.median(p50),
            "p99_ms": statistics.median(p99),
            "p50_ms_of_rounds": p50,
            "p99_ms_of_rounds": p99,
        }
    complete = figures["written"] == figures["in_stream"] and figures["sampled"] == (
        figures["written"] + figures["dropped"]
    )
    print(json.dumps({"tensor_bytes_of_a_record": record_bytes, "whole": complete, **figures}, indent=2))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
