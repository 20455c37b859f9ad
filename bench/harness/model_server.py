"""One Triton with models of three kinds, and loads on it whose answers are compared."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import onnxruntime as ort
import tritonclient.grpc as triton_grpc
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from builders.batched_models import publish_attention, publish_dense
from builders.columns_model import COLUMNS, ENTRIES, publish_columns
from fixtures.triton import RunningTriton, a_triton, staged
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, is_batched, plan_hash
from tidegate_dataplane.agent.artefacts.onnx_file import read_onnx
from tidegate_dataplane.agent.artefacts.table_fetch import converted_path, table_path
from tidegate_dataplane.agent.model_config import render_config, with_versions
from tidegate_dataplane.agent.repository import HOST_MODELS, PACKAGE, ModelRepository
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.contract import DesiredState
from tidegate_dataplane.features.conversion import ConversionOrder
from tidegate_dataplane.features.convert import convert_file
from tidegate_localcluster.ports import find_unused_port

_messages: Any = import_module("tritonclient.grpc.service_pb2")
METHOD = "/inference.GRPCInferenceService/ModelInfer"
CONTROL = {"triton-grpc-protocol-tidegate-control": "not-set"}
ROWS = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 64)
LENGTHS = (20, 25, 30, 40, 50)
MAX_UNDER_WAY = 256
SLICE_S = 1.0
TOLERANCE = 1e-4
"""Of the largest number of an answer: kernels differ with the number of rows."""

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Model:
    """How a model is published, and the inputs of one request of so many rows."""

    publish: Callable[[Path, int], None]
    make_inputs: Callable[[np.random.Generator, int, int], Inputs]


def column_inputs(generator: np.random.Generator, rows: int, _number: int) -> Inputs:
    """Return ids of all columns."""
    return {"ids": generator.integers(0, ENTRIES, (rows, COLUMNS))}


def dense_inputs(generator: np.random.Generator, rows: int, _number: int) -> Inputs:
    """Return numbers."""
    return {"x": generator.normal(size=(rows, 64)).astype(np.float32)}


def history_inputs(generator: np.random.Generator, rows: int, number: int) -> Inputs:
    """Return a history of another length for each request, without the id that pads."""
    history = generator.integers(1, 1000, (rows, LENGTHS[number % len(LENGTHS)]))
    return {"history": history, "target": generator.integers(1, 1000, (rows, 1))}


MODELS = {
    "columns": Model(publish_columns, column_inputs),
    "dense": Model(publish_dense, dense_inputs),
    "history": Model(publish_attention, history_inputs),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A serialised request, and the scores that the model gives to it alone."""

    body: bytes
    scores: NDArray[np.float32]


@dataclass(slots=True)
class Results:
    """What came back, in seconds of one arm."""

    lasted_s: float = 0.0
    times_s: list[float] = field(default_factory=list[float])
    failed: int = 0
    wrong: int = 0
    not_sent: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the figures of the arm."""
        times = sorted(self.times_s)
        return {
            "per_second": round(len(times) / self.lasted_s, 1),
            "p50_ms": round(times[len(times) // 2] * 1e3, 2) if times else None,
            "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 2) if times else None,
            "failed": self.failed,
            "wrong": self.wrong,
            "not_sent": self.not_sent,
        }


class Load:
    """Requests to one arm of a model."""

    def __init__(self, channel: grpc.aio.Channel, requests: Sequence[Request], results: Results) -> None:
        self._call: Any = channel.unary_unary(METHOD)
        self._requests, self._results = requests, results
        self._choice = random.Random(1)

    async def run_closed_loop(self, clients: int, seconds: float) -> None:
        """Keep so many requests under way."""
        started = time.perf_counter()
        until = started + seconds

        async def send_requests() -> None:
            while (now := time.perf_counter()) < until:
                await self._send_one(now)

        await asyncio.gather(*(send_requests() for _ in range(clients)))
        self._results.lasted_s += time.perf_counter() - started

    async def run_open_loop(self, rate: float, seconds: float) -> None:
        """Send requests at random times, so many per second in the mean."""
        started = due = time.perf_counter()
        under_way = set[asyncio.Task[None]]()
        while (due := due + self._choice.expovariate(rate)) < started + seconds:
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            if len(under_way) >= MAX_UNDER_WAY:
                self._results.not_sent += 1
                continue
            task = asyncio.create_task(self._send_one(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        self._results.lasted_s += time.perf_counter() - started

    async def _send_one(self, due: float) -> None:
        request = self._requests[self._choice.randrange(len(self._requests))]
        try:
            answer = await self._call(request.body)
        except grpc.aio.AioRpcError:
            self._results.failed += 1
            await asyncio.sleep(0.01)
            return
        self._results.times_s.append(time.perf_counter() - due)
        # The scores are the last bytes of the message.
        scores = np.frombuffer(answer[-request.scores.nbytes :], np.float32)
        bound = TOLERANCE * float(np.abs(request.scores).max())
        self._results.wrong += bool((np.abs(scores - request.scores) > bound).any())


def make_requests(name: str, folder: Path, model: Model, factor: int) -> list[Request]:
    """Return 36 requests of 1 to 64 times `factor` rows."""
    session = ort.InferenceSession(str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    ranks = {tensor.name: len(tensor.shape) for tensor in session.get_inputs()}
    generator = np.random.default_rng(0)
    requests: list[Request] = []
    for number, rows in enumerate(ROWS * 3):
        inputs = model.make_inputs(generator, factor * rows, number)
        message = _messages.ModelInferRequest(model_name=name)
        for tensor, array in inputs.items():
            described = message.inputs.add(
                name=tensor, datatype="FP32" if array.dtype == np.float32 else "INT64"
            )
            described.shape.extend(array.shape)
            message.raw_input_contents.append(array.tobytes())
        # Triton wants [rows, 1] for what the model has as [rows].
        feed = {
            tensor: array.reshape(-1) if ranks[tensor] == 1 else array for tensor, array in inputs.items()
        }
        [scores] = session.run(None, feed)
        requests.append(Request(message.SerializeToString(), scores.reshape(-1)))
    return requests


def load_arm(
    server: RunningTriton,
    order: DesiredState,
    model: Model,
    staging: Path,
    *,
    threads: int = 1,
    factor: int = 1,
) -> list[Request]:
    """Load a model as an agent does, and return requests of 1 to 64 times `factor` rows to it."""
    model.publish(staging, 1)
    requests = make_requests(order.model, staging, model, factor)
    onnx_file = read_onnx(staging / "1" / "model.onnx")
    facts = ArtefactFacts(
        uri=order.uri,
        version=1,
        format=order.format,
        digest="",
        files=(),
        inputs=tuple(tensor.spec for tensor in onnx_file.inputs),
        outputs=tuple(tensor.spec for tensor in onnx_file.outputs),
        batched=is_batched(onnx_file),
    )
    load_version(server, order, facts, staging, threads=threads)
    return requests


def load_version(
    server: RunningTriton,
    order: DesiredState,
    facts: ArtefactFacts,
    staging: Path,
    *,
    threads: int = 1,
    source: Path | None = None,
) -> None:
    """Load the files of `staging`/1 as an agent does; `source` has the data plane's code to run instead of today's."""
    repository = ModelRepository(server.repository, staging / "cache")
    repository.prepare_folders()
    repository.install_version(staging / "1", order, facts)
    if source is not None:
        replace_code(server.repository / order.model / "1", source / PACKAGE.name, order)
    config = render_config(order, facts, backend=OnnxBackend.HOSTED, intra_op_threads=threads)
    assert isinstance(config, dict), config
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.load_model(order.model, headers=CONTROL, config=json.dumps(with_versions(config, [1])))


def replace_code(version: Path, package: Path, order: DesiredState) -> None:
    """Replace the model and the package of an installed version by those of another version of the code."""
    shutil.copyfile(package / HOST_MODELS[order.format].relative_to(PACKAGE), version / "model.py")
    shutil.rmtree(version / PACKAGE.name)
    shutil.copytree(package, version / PACKAGE.name)


def load_plan(
    server: RunningTriton,
    order: DesiredState,
    staging: Path,
    tables: Path | None = None,
    source: Path | None = None,
) -> None:
    """Load the plan of features of an order, with the Parquet files in the folder `tables`, as an agent does.

    `source` has the data plane's code to run instead of today's.
    """
    assert order.plan is not None
    (staging / "1").mkdir(parents=True)
    if tables is None:
        (staging / "1" / "tables").mkdir()
    else:
        shutil.copytree(tables, staging / "1" / "tables")
        for table in order.plan.tables:
            parquet = staging / "1" / table_path(table.name)
            target = staging / "1" / converted_path(table.name)
            result = convert_file(
                ConversionOrder(plan=order.plan, table=table.name, parquet=parquet, sha256="", target=target)
            )
            assert not result.error, result.error
    facts = ArtefactFacts(
        uri="",
        version=1,
        format=order.format,
        plan_hash=plan_hash(order),
        digest="",
        files=(),
        inputs=order.plan.inputs,
        outputs=order.plan.outputs,
        batched=True,
    )
    load_version(server, order, facts, staging, source=source)


def unload_models(server: RunningTriton, models: Iterable[str]) -> None:
    """Unload models that were loaded here."""
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        for model in models:
            client.unload_model(model, headers=CONTROL)


async def measure_load(
    name: str,
    channel: grpc.aio.Channel,
    arms: Mapping[str, Sequence[Request]],
    seconds: float,
    run: Callable[[Load], Any],
) -> dict[str, Any]:
    """Run a load of one slice on all arms in turn, each for so many seconds; return their figures."""
    slices = max(round(seconds / SLICE_S), 1)
    results = {arm: Results() for arm in arms}
    # The first turn is not counted: trials of joined executions, first allocations.
    for turn in range(slices + 1):
        for arm, requests in arms.items():
            await run(Load(channel, requests, results[arm] if turn else Results()))
    figures = {arm: result.to_json() for arm, result in results.items()}
    print(json.dumps({name: figures}), file=sys.stderr)
    return figures


async def measure_closed_loops(
    channel: grpc.aio.Channel, arms: Mapping[str, Sequence[Request]], clients: Iterable[int], seconds: float
) -> dict[str, Any]:
    """Measure all arms under so many requests at once, each for so many seconds."""
    return {
        f"{count} clients": await measure_load(
            f"{count} clients",
            channel,
            arms,
            seconds,
            lambda load, count=count: load.run_closed_loop(count, SLICE_S),
        )
        for count in clients
    }


@contextmanager
def running_server() -> Iterator[tuple[RunningTriton, Path]]:
    """Run a Triton of the files that go into the image triton-cpu."""
    with tempfile.TemporaryDirectory(prefix="tidegate-batching-") as name:
        folder = Path(name)
        (folder / "files").mkdir()
        with a_triton(staged(folder / "files"), folder) as server:
            server.metrics_port = find_unused_port("127.0.0.1")
            server.start()
            yield server, folder
