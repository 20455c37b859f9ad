"""The throughput of two versions of the pipeline's code, before the same gateway and models, in turns."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import psutil
import tritonclient.grpc as triton_grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.model_access import a_model_access
from fixtures.agent import ModelPod
from fixtures.envoy import Gateway
from fixtures.pipeline import CONTROL, Rig, a_rig, backend, endpoint_of
from fixtures.triton import RunningTriton, TritonFiles, a_triton
from harness.revisions import SOURCE_ROOT, unpack_code
from tidegate.planning.access.pipeline_plan import Callees
from tidegate.routing.fleet import BackendKind

_messages: Any = import_module("tritonclient.grpc.service_pb2")
METHOD = "/inference.GRPCInferenceService/ModelInfer"
WIDTH = 128
"""The floats of a user's vector, which all models take."""
NAMES = ("ctr", "cvr", "gmv")
LOADS: Mapping[str, int] = {"1 row": 1, "64 rows": 64}
"""The rows of a request by the name of the load."""
MAX_ROWS = 512
SLICE_S = 2.0

_CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

VECTOR = np.arange({width}, dtype=np.float32)

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(one, "{given}").as_numpy()) for one in requests]

    def answer(self, rows):
        values = {expression}
        return pb_utils.InferenceResponse([pb_utils.Tensor("{gives}", values)])
"""


@dataclass(slots=True)
class ArmFigures:
    """What one arm answered under one load."""

    per_s: list[float] = field(default_factory=list[float])
    cpu_ms: list[float] = field(default_factory=list[float])
    latencies_ms: list[float] = field(default_factory=list[float])
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Arm:
    """A pipeline behind the gateway, and the processes of its pod."""

    access: str
    triton: RunningTriton

    def read_cpu_s(self) -> float:
        """Return the CPU time of the pod's Triton and of its models' processes so far."""
        assert self.triton.process is not None
        process = psutil.Process(self.triton.process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(one.user + one.system for one in times)


def write_model(
    repository: Path, name: str, given: tuple[str, str, int], gives: tuple[str, int], expression: str
) -> None:
    """Write version 1 of a model that computes `expression` of its input `rows`."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    code = _CODE.format(given=given[0], gives=gives[0], expression=expression, width=WIDTH)
    (folder / "model.py").write_text(code)
    (folder.parent / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: {MAX_ROWS}\n'
        f'input [{{ name: "{given[0]}" data_type: TYPE_{given[1]} dims: [{given[2]}] }}]\n'
        f'output [{{ name: "{gives[0]}" data_type: TYPE_FP32 dims: [{gives[1]}] }}]\n'
        "instance_group [{ kind: KIND_CPU count: 1 }]\n"
    )


def start_models(triton: RunningTriton) -> None:
    """Start a Triton with the features and the models."""
    write_model(
        triton.repository,
        "users",
        ("user_id", "INT64", 1),
        ("vector", WIDTH),
        "(rows + VECTOR).astype(np.float32)",
    )
    for number, name in enumerate(NAMES):
        write_model(
            triton.repository, name, ("vector", "FP32", WIDTH), ("score", 1), f"rows[:, :1] + {number}"
        )
    triton.start()
    with triton_grpc.InferenceServerClient(triton.grpc) as client:
        for name in ("users", *NAMES):
            client.load_model(name, headers=CONTROL)


async def serve_pipeline(name: str, rig: Rig) -> None:
    """Let the pod of `rig` serve the pipeline of an access of this name."""
    parts = [{"inference": model, "as": f"p{model}"} for model in NAMES]
    access = a_model_access(
        name, routes=[{"name": "all", "timeout": "10s", "pipeline": {"features": "users", "models": parts}}]
    )
    tensors = {
        "inputs": [{"name": "vector", "dtype": "FP32", "shape": [-1, WIDTH]}],
        "outputs": [{"name": "score", "dtype": "FP32", "shape": [-1, 1]}],
    }
    models = {
        model: an_inference(
            model, batching={"maxBatchSize": MAX_ROWS}, status={"model": {"name": model, **tensors}}
        )
        for model in NAMES
    }
    features = a_feature_compute(
        "users",
        entities=[{"name": "user", "key": "user_id", "type": "int64"}],
        sources=[{"name": "profiles", "entity": "user", "table": {"uri": "file:///models/users.parquet"}}],
        features=[
            {"name": "vector", "lookup": {"field": "profiles.vector", "type": "float32", "length": WIDTH}}
        ],
    )
    await rig.take(access, Callees(models, {"users": features}))
    for part in ("access", "pipeline"):
        rig.fleet[f"{name} {part}"] = rig.fleet.pop(part)


def make_request(access: str, rows: int, user: int) -> bytes:
    """Return a request for so many users from `user` on."""
    users = np.arange(user, user + rows, dtype=np.int64)
    request = _messages.ModelInferRequest(model_name=access, raw_input_contents=[users.tobytes()])
    tensor = request.inputs.add()
    tensor.name, tensor.datatype = "user_id", "INT64"
    tensor.shape.extend([rows, 1])
    return bytes(request.SerializeToString())


async def run_slice(
    channel: grpc.aio.Channel, arm: Arm, rows: int, clients: int, figures: ArmFigures
) -> None:
    """Let so many clients ask, each again as soon as it has an answer, and record what was answered."""
    call = channel.unary_unary(METHOD)
    ends_at_s = time.perf_counter() + SLICE_S
    metadata = (("x-tidegate-access", f"ads/{arm.access}"),)

    async def ask(client: int) -> int:
        request = make_request(arm.access, rows, client)
        expected = [
            (np.arange(client, client + rows, dtype=np.float32) + number).tobytes()
            for number in range(len(NAMES))
        ]
        answers = 0
        while time.perf_counter() < ends_at_s:
            began_s = time.perf_counter()
            answer = _messages.ModelInferResponse.FromString(
                await call(request, metadata=metadata, timeout=30)
            )
            figures.latencies_ms.append((time.perf_counter() - began_s) * 1000)
            figures.wrong += list(answer.raw_output_contents) != expected
            answers += 1
        return answers

    cpu_s, began_s = arm.read_cpu_s(), time.perf_counter()
    answers = sum(await asyncio.gather(*(ask(client) for client in range(clients))))
    figures.per_s.append(answers / (time.perf_counter() - began_s))
    figures.cpu_ms.append((arm.read_cpu_s() - cpu_s) * 1000 / answers)


@asynccontextmanager
async def running_arms(
    files: TritonFiles, folder: Path, sources: Mapping[str, Path]
) -> AsyncIterator[tuple[str, Sequence[Arm]]]:
    """Run one gateway, one server of models, and for each arm a pod with the code of its folder."""
    with ExitStack() as stack:
        (folder / "models").mkdir()
        models = stack.enter_context(a_triton(files, folder / "models"))
        start_models(models)
        stack.callback(models.kill)
        pods: dict[str, ModelPod] = {}
        for name, source in sources.items():
            (folder / name).mkdir()
            triton = stack.enter_context(a_triton(files, folder / name))
            pods[name] = ModelPod(folder / name, triton)
            pods[name].settings["PYTHONPATH"] = str(source)
            stack.callback(pods[name].kill_agent)
            pods[name].start_agent()
            triton.start()
            stack.callback(triton.kill)
        (folder / "gateway").mkdir()
        async with AsyncExitStack() as async_stack:
            gateway = await async_stack.enter_async_context(Gateway(folder / "gateway"))
            rig = await async_stack.enter_async_context(a_rig(gateway, next(iter(pods.values())), models))
            server = endpoint_of(models)
            await rig.push(
                **{name: backend(name, server) for name in NAMES},
                features=backend("users", server, kind=BackendKind.FEATURE_COMPUTE),
            )
            for name, pod in pods.items():
                rig.pod = pod
                await serve_pipeline(name, rig)
            await rig.push()
            yield gateway.envoy.address, [Arm(name, pod.triton) for name, pod in pods.items()]


async def compare_revisions(
    files: TritonFiles, folder: Path, revision: str, rounds: int, clients: int
) -> dict[str, Any]:
    """Return answers per second of the code of `revision` and of today's, in alternate slices of `SLICE_S`."""
    sources = {"before": unpack_code(revision, folder / "code"), "now": SOURCE_ROOT / "dataplane"}
    loads: dict[str, Any] = {}
    async with (
        running_arms(files, folder, sources) as (address, arms),
        grpc.aio.insecure_channel(address) as channel,
    ):
        for load, rows in LOADS.items():
            figures = {arm.access: ArmFigures() for arm in arms}
            for arm in arms:  # Connections and the instances' first requests.
                await run_slice(channel, arm, rows, clients, ArmFigures())
            for number in range(rounds):
                for arm in arms if number % 2 else arms[::-1]:
                    await run_slice(channel, arm, rows, clients, figures[arm.access])
            loads[load] = summarize_load(figures)
    return {"before": revision, "clients": clients, "slices_s": SLICE_S, "loads": loads}


def summarize_load(figures: Mapping[str, ArmFigures]) -> dict[str, Any]:
    """Return the medians of each arm, and the ratio of the throughputs."""
    arms = {
        name: {
            "answers_per_s": round(statistics.median(arm.per_s), 1),
            "p50_ms": round(statistics.median(arm.latencies_ms), 1),
            "pod_cpu_ms_per_answer": round(statistics.median(arm.cpu_ms), 2),
            "wrong": arm.wrong,
        }
        for name, arm in figures.items()
    }
    ratios = [now / before for before, now in zip(figures["before"].per_s, figures["now"].per_s, strict=True)]
    return {**arms, "ratio": round(statistics.median(ratios), 2)}
