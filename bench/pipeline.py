"""What a pipeline of three models of 50 ms costs: its latency, its calls under load, and its answers without a model (C, proof 5).

    python bench/pipeline.py [--rounds 5] [--requests 40] [--clients 64] [--before COMMIT]

Our pipeline on a real Triton, a real Envoy before and behind it, and the three models on a second real Triton, all
on loopback. In each round: single requests to the pipeline and to one model alone, in turn; then so many requests at
once; then requests while the optional model is gone.

With --before, it then compares throughputs: a second pod has the data plane of that commit (`git archive`), and 16 clients in a
closed loop ask the one and the other in turns, in slices of 2 s. Features give each row 128 floats, which three models take
that answer at once; a request has 1 or 64 rows. Clients, gateway, models and both pods share the processors.

Prints one JSON document; exits 1 when the median latency is 80 ms or more, a model is asked more than 8 times for 64
requests at once, an answer without the optional model is missing, wrong or not marked, or the throughput is less than 1.5 times
that of before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from harness.pipeline_throughput import compare_revisions
from tritonclient.grpc import service_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from builders.model_access import a_model_access, a_route
from builders.slow_models import SlowModel
from fixtures.agent import ModelPod
from fixtures.envoy import Gateway
from fixtures.pipeline import Rig, a_rig, an_inference_of, backend, endpoint_of, slow_models
from fixtures.triton import TritonFiles, a_triton, staged
from tidegate.planning.access.pipeline_plan import Callees
from tidegate_dataplane.contract import DEFAULTED

MODELS = tuple(SlowModel(name, factor) for name, factor in (("ctr", 2), ("cvr", 3), ("gmv", 5)))
NAMES = [model.name for model in MODELS]
MOST_MS, MOST_CALLS, LEAST_RATIO = 80.0, 8, 1.5
THROUGHPUT_CLIENTS = 16


@dataclass(slots=True)
class PipelineFigures:
    """Measured values."""

    pipeline_ms: list[float] = field(default_factory=list[float])
    one_model_ms: list[float] = field(default_factory=list[float])
    calls: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    at_once_ms: list[float] = field(default_factory=list[float])
    without_optional: dict[str, int] = field(default_factory=lambda: {"marked": 0, "wrong": 0, "failed": 0})


async def time_ms(ask: Callable[[], Awaitable[Any]]) -> float:
    """Return the duration of one request in milliseconds."""
    began = time.perf_counter()
    await ask()
    return (time.perf_counter() - began) * 1000


async def measure_rounds(options: argparse.Namespace, rig: Rig) -> PipelineFigures:
    """Measure all rounds."""
    pods = endpoint_of(rig.models)
    optional = {"optional": True, "timeout": "500ms", "default": "0.25"}
    parts = [{"inference": name, "as": f"p{name}", **(optional if name == "gmv" else {})} for name in NAMES]
    scene = a_model_access("scene", routes=[{"name": "all", "timeout": "10s", "pipeline": {"models": parts}}])
    await rig.push(
        **{name: backend(name, pods) for name in NAMES},
        alone=a_model_access("alone", routes=[a_route("default", "ctr")]),
    )
    await rig.take(scene, Callees(inferences={model.name: an_inference_of(model) for model in MODELS}))

    async def ask_one_model() -> None:
        request = service_pb2.ModelInferRequest(model_name="ctr", raw_input_contents=[bytes(4)])
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = "x", "FP32"
        tensor.shape.extend([1, 1])
        await rig.client.stub().ModelInfer(request, metadata=(("x-tidegate-access", "ads/alone"),))

    for _ in range(8):  # Connections and the four instances' first requests.
        await asyncio.gather(ask_one_model(), *(rig.infer([1.0]) for _ in range(8)))
    figures = PipelineFigures()
    for _ in range(options.rounds):
        for _ in range(options.requests):
            figures.pipeline_ms.append(await time_ms(lambda: rig.infer([1.0, 2.0])))
            figures.one_model_ms.append(await time_ms(ask_one_model))
        await measure_concurrent(options.clients, rig, figures)
        await measure_without_optional(options.requests, rig, figures)
    return figures


async def measure_concurrent(clients: int, rig: Rig, figures: PipelineFigures) -> None:
    """Send so many requests at the same time, and count the calls by the models' own Triton."""
    before = await rig.asked()
    figures.at_once_ms += await asyncio.gather(
        *(time_ms(lambda place=place: rig.infer([float(place)])) for place in range(clients))
    )
    after = await rig.asked()
    while True:  # Triton answers first and counts afterwards.
        await asyncio.sleep(0.2)
        later = await rig.asked()
        if later == after:
            break
        after = later
    figures.calls.append({name: after[name] - before[name] for name in NAMES})


async def measure_without_optional(requests: int, rig: Rig, figures: PipelineFigures) -> None:
    """Send requests while the optional model has no pods."""
    alive = rig.fleet["gmv"]
    await rig.push(gmv=backend("gmv"))
    for number in range(requests):
        try:
            answer = await rig.infer([float(number)])
        except grpc.aio.AioRpcError:
            figures.without_optional["failed"] += 1
            continue
        right = (answer["pctr"][0, 0], answer["pgmv"][0, 0]) == (2.0 * number, 0.25)
        marked = answer[DEFAULTED].tolist() == [[b"pgmv"]]
        figures.without_optional["marked" if right and marked else "wrong"] += 1
    await rig.push(gmv=alive)


async def run_measurement(options: argparse.Namespace, files: TritonFiles, folder: Path) -> PipelineFigures:
    """Start everything, measure, and stop it."""
    pod_folder = folder / "pod"
    pod_folder.mkdir()
    with ExitStack() as stack:
        models = stack.enter_context(slow_models(files, folder / "models", *MODELS))
        triton = stack.enter_context(a_triton(files, pod_folder))
        pod = ModelPod(pod_folder, triton)
        stack.callback(pod.kill_agent)
        pod.start_agent()
        triton.start()
        (folder / "gateway").mkdir()
        async with Gateway(folder / "gateway") as gateway, a_rig(gateway, pod, models) as rig:
            return await measure_rounds(options, rig)


def compute_quantiles(values: list[float]) -> dict[str, float]:
    """Return median and 99th percentile."""
    return {
        "p50": round(statistics.median(values), 1),
        "p99": round(statistics.quantiles(values, n=100)[98], 1),
    }


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--before", metavar="COMMIT", help="compare with the throughput of this commit")
    options = parser.parse_args()
    throughput: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        folder = Path(name)
        files = staged(folder)
        figures = asyncio.run(run_measurement(options, files, folder))
        if options.before:
            (folder / "throughput").mkdir()
            throughput = asyncio.run(
                compare_revisions(
                    files, folder / "throughput", options.before, options.rounds, THROUGHPUT_CLIENTS
                )
            )
    most_calls = max(count for calls in figures.calls for count in calls.values())
    median = statistics.median(figures.pipeline_ms)
    answers = figures.without_optional
    result = {
        "pipeline_of_three_ms": compute_quantiles(figures.pipeline_ms),
        "one_model_alone_ms": compute_quantiles(figures.one_model_ms),
        "limit_ms": MOST_MS,
        "requests_at_once": options.clients,
        "calls_of_each_model": figures.calls,
        "most_calls": most_calls,
        "limit_calls": MOST_CALLS,
        "at_once_ms": compute_quantiles(figures.at_once_ms),
        "without_the_optional_model": answers,
        **({"throughput": throughput, "limit_ratio": LEAST_RATIO} if throughput else {}),
    }
    print(json.dumps(result, indent=2))
    slow = any(load["ratio"] < LEAST_RATIO for load in throughput.get("loads", {}).values())
    failed = slow or median >= MOST_MS or most_calls > MOST_CALLS or answers["wrong"] or answers["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
